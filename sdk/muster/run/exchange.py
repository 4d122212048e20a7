"""File exchange for workers that share no files with the session: ships the library, writes logs, gets results.

The workers have folders of their own in place of the run's. Their output comes as it does for the display, and is
written here into the very log files that they would write themselves.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection
from pathlib import Path

from muster.agent import wire
from muster.errors import PlatformError
from muster.events import Event, EventKind
from muster.platforms.agents import default_log_cap
from muster.pools.endpoint import Endpoint
from muster.records.runs import TENSORBOARD
from muster.run.files import FileFailed, Transfers, all_of
from muster.run.request import RunContext

logger = logging.getLogger("muster")

RESULTS_BYTES = 1 << 30  # most that is got from each folder of a worker
FOLDERS = ("results", TENSORBOARD, "logs/ranks")  # of a worker's place for the run
TRANSFERS = (wire.Found, wire.Have, wire.Missing, wire.Chunk)


class Exchange:
    """Brings files to the workers of a run, and back.

    Args:
        context: the run.
        session: where its agents are connected.
    """

    def __init__(self, context: RunContext, session: Endpoint) -> None:
        self._library = context.facts.library_here
        self._run_dir = context.run_dir
        self._session = session
        self._names = [spec.name for spec in context.specs]
        self._logs = {spec.name: WorkerLog(spec.log, default_log_cap()) for spec in context.specs}
        self._transfers = Transfers(session.send, context.platform.lease_seconds)
        self._have_come: set[str] = set()
        self._is_collecting = asyncio.Lock()

    def listen(self) -> None:
        """Take what the endpoint says of files, ahead of those whom it tells everything else."""
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
        self._session.on_cut = _both(self._transfers.on_lost, self._session.on_cut)
        self._session.on_back = _both(self._transfers.on_connected, self._session.on_back)

    def logging(self, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        """Return a function that emits events, and writes the output among them to the workers' logs first."""

        def emit_and_write(event: Event) -> None:
            if event.kind == EventKind.OUTPUT and event.worker in self._logs:
                self._logs[event.worker].write(event.data["text"])
            emit(event)

        return emit_and_write

    async def ship(self) -> None:
        """Put what scripts import and what starts them onto every worker. Raises PlatformError."""
        try:
            await all_of(self._transfers.put_folder(name, "library", self._library) for name in self._names)
        except OSError as error:
            raise PlatformError(f"What workers need cannot be sent to them: {error}.") from error

    async def collect(self, gone: Collection[str] = ()) -> None:
        """Get what the workers have written for the run, as far as it can be got. One that is cut off is waited for.

        Args:
            gone: workers that have ended, and so are not.

        Raises:
            PlatformError: something cannot be got; says what, and of whom.
        """
        async with self._is_collecting:
            troubles = await all_of(
                self._collect_from(name, name in gone) for name in self._names if name in self._have_come
            )
        if any(troubles):
            raise PlatformError(" ".join(trouble for trouble in troubles if trouble))

    async def _collect_from(self, worker: str, is_gone: bool) -> str:
        """Get what a worker has written, and return what cannot be got and why; nothing where all of it is here."""
        is_cut = worker not in self._session.connected
        if is_cut and (is_gone or self._session.leases.seconds_left(worker) <= 0):
            return f"Nothing more is got from {worker}, whose connection has ended."
        left_out: list[str] = []
        for folder in FOLDERS:
            try:
                skipped = await self._transfers.get_folder(worker, "run", folder, self._run_dir, RESULTS_BYTES)
            except FileFailed as error:
                left_out.append(f"{folder} ({error})")
            except (PlatformError, OSError) as error:
                return f"{worker}: {error}"
            else:
                left_out += [f"{folder}/{name} ({why})" for name, why in skipped.items()]
        if not left_out:
            return ""
        more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
        return f"Of {worker} could not be got: {', '.join(left_out[:5])}{more}."


def _both(first: Callable[[str], None], second: Callable[[str], None]) -> Callable[[str], None]:
    def call(worker: str) -> None:
        first(worker)
        second(worker)

    return call


class WorkerLog:
    """A worker's log as the session writes it, in the format of the agent's own: see :mod:`muster.agent.logfile`.

    Args:
        path: the file; what is older is in ``<log>.1``.
        cap: its largest size in bytes.
    """

    def __init__(self, path: Path, cap: int) -> None:
        self._path = path
        self._cap = cap
        self._size = 0
        self._has_failed = False

    def write(self, text: str) -> None:
        """Append what a worker has printed. What cannot be written is left out, and said once."""
        data = text.encode("utf-8", "surrogateescape")
        try:
            if self._size and self._size + len(data) > self._cap:
                os.replace(self._path, self._path.with_name(self._path.name + ".1"))
                self._size = 0
            with open(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600), "wb") as file:
                file.write(data)
            self._size += len(data)
        except OSError as error:
            if not self._has_failed:
                logger.warning("the log %s cannot be written: %s", self._path, error)
            self._has_failed = True
