"""The workbench's calls as the platform makes them, whatever carries them. Needs nothing but the standard library."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

CONNECTIONS = 16  # that are kept open


class WorkbenchClient(Protocol):
    """The part of the workbench's API that the platform uses. Workers are dicts, as the workbench describes them."""

    def launch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Launch one worker.

        Args:
            request: ``cpu``, ``memory``, ``nvidia_gpu``, ``kernel``, ``script``, ``code``, ``env``.

        Raises:
            LaunchRefused: the workbench says no.
            PlatformError: there is no answer that says whether it was launched.
        """
        ...

    def list(self) -> list[dict[str, Any]]:
        """The session's workers. Raises PlatformError."""
        ...

    def stop(self, worker_id: str) -> None:
        """Ask a worker to end. Raises PlatformError."""
        ...
