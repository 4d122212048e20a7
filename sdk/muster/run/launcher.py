"""The strategy's launcher (``horovodrun``, ``mpiexec``), which runs in the session or is run by a worker's agent."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from muster.agent import wire
from muster.agent.places import resolve
from muster.errors import LaunchRefused
from muster.job import SESSION, Launcher, Plan, Process
from muster.platforms.agents import default_log_cap
from muster.pools.pool import AgentPool
from muster.run.tasks import Tasks
from muster.run.worker_log import WorkerLog
from muster.runtime.background import in_thread
from muster.security.ssh import IDENTITY, write_private
from muster.strategies.base import Facts

logger = logging.getLogger("muster")

KILL_SECONDS = 1.0  # how long to wait for the report that a killed launcher has ended


class RunLauncher:
    """The launcher of one run, wherever it runs.

    Args:
        log: file for its output.
        facts: the run, with its scratch folder and places.
        pool: the run's workers, one of which may run it.
        on_exit: called with its return code (minus the number of a signal) when it has ended.
        tasks: the run's tasks, among them the one that waits for its end.
    """

    def __init__(self, log: Path, facts: Facts, pool: AgentPool, on_exit: Callable[[int], None], tasks: Tasks) -> None:
        self._log = log
        self._facts = facts
        self._pool = pool
        self._on_exit = on_exit
        self._tasks = tasks
        self._prestarted: LauncherProcess | None = None
        self._running: _Running | None = None

    async def prestart(self, launcher: Launcher | None) -> None:
        """Start a launcher that runs in the session; it then waits for its arguments. Raises LaunchRefused."""
        if launcher is not None and launcher.where == SESSION:
            started = LauncherProcess(self._log, self._on_exit, self._tasks)
            argv = tuple(self._resolved(word) for word in launcher.prestart)
            await started.start(Process(argv, launcher.env, launcher.cwd))
            self._prestarted = self._running = started

    async def give_arguments(self, plan: Plan) -> None:
        """Write the plan's files, and give the launcher its arguments; it is started first where it is not running.

        Raises:
            LaunchRefused: it cannot be started.
        """
        launcher = plan.launcher
        if self._prestarted is not None and (launcher is None or launcher.where != SESSION):
            await self._prestarted.drop()
            self._prestarted = self._running = None
        if launcher is None or launcher.where == SESSION:
            await in_thread(self._write_files, plan.files)
        if launcher is None:
            return
        if launcher.where != SESSION:
            log = WorkerLog(self._log, default_log_cap())
            self._running = remote = WorkerLauncher(launcher.where, self._pool, log, self._on_exit)
            remote.start(launcher, {**plan.files, **await in_thread(self._identity)})
            return
        if self._prestarted is None:
            await self.prestart(launcher)
        assert self._prestarted is not None, "it has just been started"
        self._prestarted.give_arguments([self._resolved(word) for word in launcher.argv])

    def on_message(self, worker: str, message: wire.LauncherOutput | wire.LauncherExited) -> None:
        """Handle a message about the launcher from the agent that runs it."""
        if isinstance(self._running, WorkerLauncher) and self._running.worker == worker:
            self._running.on_message(message)

    @property
    def has_succeeded(self) -> bool:
        """True if it has ended with status 0."""
        return self._running is not None and self._running.returncode == 0

    @property
    def is_running(self) -> bool:
        """True if it has been started and has not ended, as far as is known."""
        return self._running is not None and self._running.is_running

    def terminate(self, grace: float) -> None:
        """Ask it to end within ``grace`` seconds."""
        if self._running is not None and self.is_running:
            self._running.terminate(grace)

    async def kill(self) -> None:
        """End it, if it still runs. Returns when it is gone."""
        if self._running is not None:
            await self._running.kill()

    def _resolved(self, text: str) -> str:
        """Return a word for a launcher in the session, with symbols of places replaced by paths."""
        return resolve(text, self._facts.places)

    def _write_files(self, files: Mapping[str, str]) -> None:
        for path, text in files.items():
            write_private(self._facts.scratch / path, text)

    def _identity(self) -> dict[str, str]:
        """Return the run's private key for a launcher on a worker, by file name; empty where nobody logs in."""
        path = self._facts.scratch / IDENTITY
        return {IDENTITY: path.read_text()} if path.exists() else {}


class _Running(ABC):
    """A launcher that has been started.

    Attributes:
        returncode: minus the number of a signal that ended it; None while it runs.
    """

    returncode: int | None = None

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """True if it has not ended, as far as is known."""

    @abstractmethod
    def terminate(self, grace: float) -> None:
        """Ask it to end; a launcher on a worker is killed by its agent after ``grace`` seconds."""

    @abstractmethod
    async def kill(self) -> None:
        """End it, if it still runs. Returns when it is gone."""


class LauncherProcess(_Running):
    """A launcher that is a process of the session, started before its arguments are known."""

    def __init__(self, log: Path, on_exit: Callable[[int], None], tasks: Tasks) -> None:
        self._log = log
        self._tasks = tasks
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """True if it has been started and has not ended."""
        return self._process is not None and self.returncode is None

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

    def give_arguments(self, argv: Sequence[str]) -> None:
        """Give the launcher its arguments."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"argv": argv}).encode() + b"\n")

    def terminate(self, grace: float) -> None:
        """Ask it to end."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):  # it has ended, which is about to be noticed
                self._process.terminate()

    async def kill(self) -> None:
        """End it, if it still runs. Returns when it is gone."""
        if self._process is not None and self.is_running:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        if self._ended is not None:
            await asyncio.wait([self._ended])

    async def drop(self) -> None:
        """End it because it is not needed, without calling ``on_exit``."""
        self._on_exit = lambda code: None
        await self.kill()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        self.returncode = await process.wait()
        self._on_exit(self.returncode)


class WorkerLauncher(_Running):
    """A launcher that a worker's agent runs.

    Args:
        worker: the worker's name.
        pool: the run's workers.
        log: the log for its output.
        on_exit: called with its return code when it has ended.
    """

    def __init__(self, worker: str, pool: AgentPool, log: WorkerLog, on_exit: Callable[[int], None]) -> None:
        self.worker = worker
        self._send = partial(pool.send, worker)
        self._pool = pool
        self._log = log
        self._on_exit = on_exit
        self._ended = asyncio.Event()

    def start(self, launcher: Launcher, files: Mapping[str, str]) -> None:
        """Have the agent start it."""
        cwd = launcher.cwd or ""
        self._send(wire.Launch(launcher.prestart, dict(launcher.env), cwd, launcher.argv, dict(files)))

    def on_message(self, message: wire.LauncherOutput | wire.LauncherExited) -> None:
        """Handle a message of the agent about it."""
        if isinstance(message, wire.LauncherOutput):
            trouble = self._log.write(message.text)
            if trouble:
                logger.warning("%s", trouble)
        elif self.returncode is None:
            self.returncode = -message.signal if message.signal else message.exit_code or 0  # it has one of the two
            self._ended.set()
            self._on_exit(self.returncode)

    @property
    def is_running(self) -> bool:
        """True if it has not ended, and its agent is there to say so."""
        return self.returncode is None and self.worker in self._pool.connected

    def terminate(self, grace: float) -> None:
        """Have the agent end it."""
        self._send(wire.StopLauncher(max(grace, 0.0)))

    async def kill(self) -> None:
        """Have the agent kill it, and wait up to a second for the agent's report that it has ended."""
        if self.is_running:
            self._send(wire.StopLauncher(0))
            with contextlib.suppress(asyncio.TimeoutError):  # its agent does not answer, and is ended next
                await asyncio.wait_for(self._ended.wait(), KILL_SECONDS)
