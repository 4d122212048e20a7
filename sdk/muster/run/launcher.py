"""The strategy's launcher (``horovodrun``, ``mpiexec``) as a process of the session."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.errors import LaunchRefused
from muster.job import Process
from muster.run.tasks import Tasks


class LauncherProcess:
    """A launcher that was started before its arguments were known.

    Args:
        log: file that takes what it prints.
        on_exit: called with its return code (minus the number of a signal) when it has ended.
        tasks: those of the run, for the one that waits for its end.
    """

    def __init__(self, log: Path, on_exit: Callable[[int], None], tasks: Tasks) -> None:
        self._log = log
        self._tasks = tasks
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[None] | None = None

    @property
    def has_succeeded(self) -> bool:
        """True if it has ended with status 0."""
        return self._process is not None and self._process.returncode == 0

    async def start(self, process: Process) -> None:
        """Start it; it waits for its arguments.

        Raises:
            LaunchRefused: it cannot be started.
        """
        try:
            with self._log.open("ab") as log:
                self._process = await asyncio.create_subprocess_exec(
                    *process.argv,
                    env=dict(process.env),
                    cwd=process.cwd,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # an interrupt of the notebook's process group is not meant for it
                )
        except OSError as error:
            raise LaunchRefused(f"The launcher {process.argv[0]} cannot be started: {error}.") from error
        self._ended = self._tasks.start(self._watch(self._process), "launcher")

    def go(self, argv: Sequence[str]) -> None:
        """Give the launcher its arguments."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"argv": argv}).encode() + b"\n")

    @property
    def is_running(self) -> bool:
        """True if it has been started and has not ended."""
        return self._process is not None and self._process.returncode is None

    def terminate(self) -> None:
        """Ask it to end."""
        if self._process is not None and self.is_running:
            self._process.terminate()

    async def kill(self) -> None:
        """End it, if it still runs. Returns when it is gone."""
        if self._process is not None and self.is_running:
            self._process.kill()
        if self._ended is not None:
            await asyncio.wait([self._ended])

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        self._on_exit(await process.wait())
