"""The interface of clients of the workbench's API. Needs only the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

CONNECTIONS = 16  # to the workbench that are kept open


class WorkbenchClient(Protocol):
    """A client for the part of the workbench's API that the platform uses. Workers are dicts, as it sends them."""

    def launch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Launch one worker.

        Args:
            request: ``cpu``, ``memory``, ``nvidia_gpu``, ``kernel``, ``script``, ``code``, ``env``.

        Raises:
            LaunchRefused: the workbench refuses, and has launched nothing.
            PlatformError: it is not known whether the worker was launched.
        """
        ...

    def list(self) -> list[dict[str, Any]]:
        """Return the session's workers. Raises PlatformError."""
        ...

    def stop(self, worker_id: str) -> None:
        """Ask a worker to end. Raises PlatformError."""
        ...
