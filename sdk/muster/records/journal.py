"""The journal of a run: its events in a file, one line each."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from muster.events import Event, EventKind
from muster.events.data import Note, Progress

logger = logging.getLogger("muster")

NOT_JOURNALLED = frozenset({EventKind.OUTPUT, EventKind.TRANSFER, EventKind.USAGE})
PROGRESS_INTERVAL = 1.0  # seconds between two journalled progress events of one rank, unless the epoch changes
PROGRESS_PER_SECOND = 100  # of all ranks, but for new epochs: more have a longer interval, else disks would fill up
RESERVE = 16 << 10  # bytes kept free for the last events, so that a full disk does not hide how a run ended
MOST_WAITING = 1 << 20  # bytes of events that wait until the disk takes them again


class Journal:
    """Writes a run's events to ``events.jsonl``, one line each, flushed as they come; progress only now and then.

    It never raises once it is open. What the disk does not take waits and is tried again with every later event and at
    the end; what has to be given up is counted, and a ``note`` in the journal says so.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._reserve = path.with_name(f".{path.name}.reserve")
        self._reserve.write_bytes(bytes(RESERVE))
        self._waiting = bytearray()
        self._trouble: OSError | None = None
        self._lost = 0
        self._held: dict[str | None, dict[str, Event]] = {}  # by worker, and by its ranks
        self._flushed_at = float("-inf")
        self._last: dict[tuple[str | None, str], tuple[float, int | None]] = {}

    def __call__(self, event: Event) -> None:
        """Write ``event``, or hold it back where a newer one of its kind will say more."""
        if event.kind in NOT_JOURNALLED or self._descriptor is None:
            return
        if type(event.data) is Progress:
            rank = str(event.data.rank)
            source = (event.worker, rank)
            written, epoch = self._last.get(source, (float("-inf"), None))
            interval = max(PROGRESS_INTERVAL, len(self._last) / PROGRESS_PER_SECOND)
            if event.time - written < interval and event.data.epoch == epoch:
                self._held.setdefault(event.worker, {})[rank] = event
                return
            self._last[source] = (event.time, event.data.epoch)
            self._held.get(event.worker, {}).pop(rank, None)
        elif event.worker is None:
            self._write_all_held()
        else:
            self._write_held(event.worker)
        self._write(event)

    def close(self) -> None:
        """Write what was held back or waits, and close the file."""
        if self._descriptor is None:
            return
        self._write_all_held()
        with contextlib.suppress(OSError):
            self._reserve.unlink()
        self._flush()
        if self._waiting or self._lost:
            lost = self._lost + self._waiting.count(b"\n")
            logger.warning("%d events of the run are not in %s: %s", lost, self.path, self._trouble)
        os.close(self._descriptor)
        self._descriptor = None

    def _write_held(self, worker: str | None) -> None:
        for event in self._held.pop(worker, {}).values():
            self._write(event)

    def _write_all_held(self) -> None:
        for worker in list(self._held):
            self._write_held(worker)

    def _write(self, event: Event) -> None:
        line = event.to_json().encode() + b"\n"
        if len(self._waiting) + len(line) > MOST_WAITING and event.kind != EventKind.RUN_ENDED:
            self._lost += 1
        else:
            self._waiting += line
        if event.kind != EventKind.PROGRESS or event.time - self._flushed_at >= PROGRESS_INTERVAL:
            self._flush()
            self._flushed_at = event.time

    def _flush(self) -> None:
        """Write what waits, as far as the disk takes it."""
        assert self._descriptor is not None
        try:
            while self._waiting:
                del self._waiting[: os.write(self._descriptor, self._waiting)]
                if self._lost and not self._waiting:
                    text = f"{self._lost} events are missing here: the journal could not be written ({self._trouble})."
                    self._lost = 0
                    self._waiting += Event.of(Note(text)).to_json().encode() + b"\n"
        except OSError as error:
            if self._trouble is None:
                logger.warning("the journal %s cannot be written, and will be tried again: %s", self.path, error)
            self._trouble = error
