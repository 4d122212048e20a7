"""The launch of several workers of the workbench at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from muster.errors import LaunchRefused, PlatformError
from muster.job import WorkerSpec
from muster.platforms.workbench.agent_files import launch_request
from muster.platforms.workbench.client import CONNECTIONS, WorkbenchClient


class WorkbenchLaunch:
    """One launch of several workers.

    Attributes:
        specs: the workers.
        started: the workbench's description of each launched worker, by name.
        failed: the errors of other workers, by name: LaunchRefused, or PlatformError where the worker may have been
            launched all the same.
    """

    def __init__(self, client: WorkbenchClient, specs: Sequence[WorkerSpec]) -> None:
        self._client = client
        self.specs = specs
        self._changed = threading.Condition()
        self._under_way = 0
        self._is_over = False
        self.started: dict[str, dict[str, Any]] = {}
        self.failed: dict[str, PlatformError] = {}

    def run(self) -> None:
        """Launch the workers; begin no further launch once one has failed, and return when all begun are answered."""
        with ThreadPoolExecutor(min(len(self.specs), CONNECTIONS), "muster-launch") as pool:
            try:
                for answered in [pool.submit(self._launch, spec) for spec in self.specs]:
                    answered.result()
            finally:
                # After an interrupt no further launch is begun. The pool does not always wait for those begun:
                # it forgets a thread if the interrupt came while that was being started.
                with self._changed:
                    self._is_over = True
                    self._changed.wait_for(lambda: not self._under_way)

    @property
    def may_have_started(self) -> bool:
        """True if there may be launched workers whose id is unknown."""
        return any(not isinstance(error, LaunchRefused) for error in self.failed.values())

    def _launch(self, spec: WorkerSpec) -> None:
        with self._changed:
            if self.failed or self._is_over:
                return
            self._under_way += 1
        try:
            self.started[spec.name] = self._client.launch(launch_request(spec))
        except PlatformError as error:
            self.failed[spec.name] = error
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify()
