"""File exchange with workers that share no files with the session: sends the library, writes logs, gets results.

Such workers have folders of their own in place of the run's. Their output arrives as it does for the display, and is
written here into the log files that workers with shared files write themselves.
"""

from __future__ import annotations

import asyncio
import glob
import posixpath
import sys
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from muster import events
from muster.agent import wire
from muster.agent.places import symbol
from muster.checks.project import Project
from muster.errors import PlatformError
from muster.events import Event, EventData
from muster.platforms.agents import default_log_cap
from muster.pools.endpoint import Endpoint
from muster.records.folders import TENSORBOARD
from muster.records.result import SUFFIXES, mark_lost
from muster.run.context import RunContext
from muster.run.files import FileFailed, Transfers, gather_or_cancel
from muster.run.project import ProjectSync, read_contents, write_list
from muster.run.worker_log import WorkerLog
from muster.runtime import clock
from muster.runtime.background import in_thread

Emit = Callable[[EventData, str | None], None]

PROGRESS_SECONDS = 0.25  # between two events about the files that are sent to a worker
COLLECTED = "collected"  # folder in the run's folder for collected files, with a folder for each worker
HEARD_SECONDS = 2.0  # an agent that was heard within them is alive: at the end of a run all tell of their processes
# Before each look whether another agent has shown that it is, ten seconds in all: soon at first, and then more seldom,
# as at the end of a run with 10,000 workers all may have to be waited for.
ALIVE_PAUSES = (0.02, 0.04, 0.08, 0.16, 0.3, *[0.5] * 3, *[1.0] * 8)
COLLECTED_BYTES = 1 << 30  # most that is collected from each worker for one pattern
RESULTS_BYTES = 1 << 30  # most that is got from each folder of a worker
RESULTS, RANK_LOGS = "results", "logs/ranks"
FOLDERS = (RESULTS, TENSORBOARD, RANK_LOGS)  # of a worker's place for the run
TRANSFERS = (wire.Found, wire.Have, wire.Missing, wire.Chunk, wire.Lacks, wire.Synced)


class Exchange:
    """Transfers files to and from the workers of a run.

    Args:
        context: the run.
        session: the endpoint to which its agents are connected.

    Attributes:
        owner_of: returns the worker that owns the values and the log of a rank or worker, given its name; None if none.
        done_on: returns the names of a worker's ranks, or its own, whose values it has; given its name.
    """

    owner_of: Callable[[str], str | None]
    done_on: Callable[[str], list[str]]

    def __init__(self, context: RunContext, session: Endpoint) -> None:
        self._context = context
        self._library = context.facts.library_here
        self._run_dir = context.run_dir
        self._session = session
        self._names = [spec.name for spec in context.specs]
        self._logs = {spec.name: WorkerLog(spec.log, default_log_cap()) for spec in context.specs}
        self._transfers = Transfers(session.send, context.platform.lease_seconds)
        self._have_come: set[str] = set()
        self._lacking: set[str] = set()  # workers whose results have not all come
        self._is_collecting = asyncio.Lock()
        self.owner_of = lambda name: None
        self.done_on = lambda worker: []

    def listen(self) -> None:
        """Take messages about files from the endpoint; pass all others on to the callbacks that it had before."""
        tell = self._session.on_message

        def on_message(worker: str, message: object) -> None:
            if isinstance(message, TRANSFERS):
                self._transfers.on_message(worker, message)
                return
            if isinstance(message, wire.Hello):
                self._have_come.add(worker)
                self._transfers.on_connected(worker)
            tell(worker, message)

        self._session.on_message = on_message
        self._session.on_lost = _both(self._transfers.on_lost, self._session.on_lost)
        self._session.on_cut = _both(self._transfers.on_cut, self._session.on_cut)
        self._session.on_back = _both(self._transfers.on_connected, self._session.on_back)

    def logging(self, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return a function that emits events, after it has written output among them to the workers' logs."""

        def emit_and_write(event: Event) -> None:
            if isinstance(event.data, events.Output) and event.worker in self._logs:
                trouble = self._logs[event.worker].write(event.data.text)
                if trouble:
                    emit(Event.of(events.Note(trouble), when=event.time))
            emit(event)

        return emit_and_write

    async def ship(self, workers: Sequence[str], emit: Emit) -> None:
        """Send the library that scripts need, and the project's files, to workers. Raises PlatformError."""
        try:
            library = await in_thread(_whole_folder, self._library)
            await self._lay_out(workers, library, "library")
            project = self._context.checked.project
            if project is not None:
                kept = await self._lay_out(workers, project, "project", Sending(emit))
                if kept and (project.files is None or project.files):
                    text = f"The workers keep the project's files in {kept}: the next run sends only what has changed."
                    emit(events.Note(text), None)
        except (OSError, ValueError) as error:
            raise PlatformError(f"What workers need cannot be sent to them: {error}.") from error

    async def _lay_out(
        self, workers: Sequence[str], project: Project, place: str, sending: Sending | None = None
    ) -> str:
        """Send files to workers. Return the folder in which a worker keeps them for later runs; empty if none does."""
        contents = await in_thread(read_contents, project)
        list_file = self._context.facts.scratch / f"{place}.list"
        await in_thread(write_list, contents, list_file)
        sync = ProjectSync(self._transfers, contents, list_file, sending)
        kept = await gather_or_cancel(sync.send_to(name, place, is_kept=sending is not None) for name in workers)
        return next(filter(None, kept), "")

    async def collect(self, gone: Collection[str] = ()) -> None:
        """Get the files that workers have written for the run, as far as possible. Wait for a worker that is cut off.

        Args:
            gone: workers that have ended, and so are not waited for.

        Raises:
            PlatformError: something cannot be got; the message says what, and from which worker.
        """
        async with self._is_collecting:
            troubles = await gather_or_cancel(
                self._collect_from(name, name in gone) for name in self._names if name in self._have_come
            )
        if any(troubles):
            raise PlatformError(" ".join(trouble for trouble in troubles if trouble))

    async def _collect_from(self, worker: str, is_gone: bool) -> str:
        """Get the files that a worker has written; return what could not be got and why, empty if nothing."""
        self._lacking.add(worker)
        try:
            return await self._got_from(worker, is_gone)
        finally:  # also where it takes too long, and is cancelled
            if worker in self._lacking:
                self._mark_lost_values(worker)

    def _mark_lost_values(self, worker: str) -> None:
        """Mark the values of a worker's ranks that have returned, as far as they have not come."""
        script = self._context.job.script
        if script is None or script.kind != "function":
            return
        come = {path.stem for path in (self._run_dir / RESULTS).iterdir() if path.suffix in SUFFIXES}
        mark_lost(self._run_dir, [name for name in self.done_on(worker) if name not in come])

    async def _got_from(self, worker: str, is_gone: bool) -> str:
        is_cut = worker not in self._session.connected
        if is_cut and (is_gone or self._session.leases.seconds_left(worker) <= 0):
            return f"Nothing more is got from {worker}, whose connection has ended."
        if not is_cut and not await self._answers(worker):
            return f"Nothing more is got from {worker}, which does not answer."
        left_out: list[str] = []
        for folder in FOLDERS:
            try:
                skipped = await self._transfers.get_folder(
                    worker, "run", folder, self._run_dir, RESULTS_BYTES, partial(self._is_anothers, worker, folder)
                )
            except FileFailed as error:
                left_out.append(f"{folder} ({error})")
            except (PlatformError, OSError) as error:
                return f"{worker}: {error}"
            else:
                left_out += [f"{folder}/{name} ({why})" for name, why in skipped.items()]
                if folder == RESULTS and not skipped:
                    self._lacking.discard(worker)
        target = self._run_dir / COLLECTED / worker
        for pattern in self._context.checked.collect:
            try:
                skipped = await self._transfers.get_matching(
                    worker, "project", self._in_project(pattern), target, COLLECTED_BYTES
                )
            except FileFailed as error:
                left_out.append(f"{pattern} ({error})")
            except (PlatformError, OSError) as error:
                return f"{worker}: {error}"
            else:
                left_out += [f"{name} ({why})" for name, why in skipped.items()]
        if not left_out:
            return ""
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        return f"Of {worker} could not be got: {', '.join(left_out[:5])}{more}."

    async def _answers(self, worker: str) -> bool:
        """Return whether a connected worker's agent is alive, so that a suspended one does not hold up all others."""
        asked_at = clock.now()

        def is_heard(since: float) -> bool:
            heard_at = self._session.heard_at(worker)
            return heard_at is None or heard_at >= since  # if it is gone, that is noticed at its first file

        if is_heard(asked_at - HEARD_SECONDS):
            return True
        self._session.ask_for_life(worker)
        for pause in ALIVE_PAUSES:  # in which the time of a suspended session is none
            await asyncio.sleep(pause)
            if is_heard(asked_at):
                return True
        return False

    def _is_anothers(self, worker: str, folder: str, path: str) -> bool:
        """Return whether a file of a folder is a value of another worker, or the log of another worker's rank."""
        name, dot, suffix = path.partition(".")
        is_told_by_name = folder == RANK_LOGS or (folder == RESULTS and dot + suffix in SUFFIXES)
        return is_told_by_name and self.owner_of(name) not in (None, worker)

    # -- single files, while it runs ----------------------------------------------------------------------------------

    async def get(self, worker: str, path: str, target: Path) -> Path:
        """Get a file or a folder from a worker's working directory into ``target``, and return its path there.

        Raises:
            PlatformError: there is no such file, or it cannot be got in full.
            OSError: it cannot be written here.
        """
        inner = self._in_project(path)
        found = await self._transfers.find(worker, "project", glob.escape(inner))
        if not found:
            raise PlatformError(f"{worker} has no {path} in its working directory, or nothing is in it.", worker=worker)
        skipped = await self._transfers.get_matching(worker, "project", glob.escape(inner), target, sys.maxsize)
        if skipped:
            name, why = next(iter(skipped.items()))
            raise PlatformError(f"Not all of {path} of {worker} could be got: {name} ({why}).", worker=worker)
        if not (target / inner).exists():
            raise PlatformError(f"{path} of {worker} went while it was got.", worker=worker)
        return target / inner

    async def put(self, source: Path, worker: str, to: str) -> None:
        """Put a file or a folder into a worker's working directory, under the name ``to``.

        Raises:
            PlatformError: the worker cannot take it.
            OSError: it cannot be read.
        """
        inner = self._in_project(to)
        if source.is_dir():
            await self._transfers.put_folder(worker, "project", source, inner)
        else:
            await self._transfers.put(worker, "project", inner, source)

    def _in_project(self, path: str) -> str:
        """Turn a path relative to the workers' working directory into one relative to the project."""
        folder = self._context.job.cwd.removeprefix(symbol("project")).strip("/")
        return posixpath.normpath(posixpath.join(folder, path))


class Sending:
    """Emits an event about how much of the project has arrived on each worker, a few times a second.

    Args:
        emit: called with the data of an event, and the worker.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._next: dict[str, float] = {}

    def __call__(self, worker: str, done: int, total: int) -> None:
        """Emit an event, unless one was emitted just before; always at the beginning and at the end."""
        now = clock.now()
        if done in (0, total) or now >= self._next.get(worker, 0.0):
            self._next[worker] = now + PROGRESS_SECONDS
            self._emit(events.Transfer(done, total), worker)


def _whole_folder(folder: Path) -> Project:
    """Return a project of all files in a folder."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return Project(folder, [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in files])


def _both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    def call(worker: str) -> None:
        first(worker)
        second(worker)

    return call
