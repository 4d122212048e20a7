"""The journal of a run: its events in a file, one line each."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from dataclasses import replace
from pathlib import Path

from muster.events import Event, EventKind
from muster.events.data import Note, Progress
from muster.runtime.clock import has_passed

logger = logging.getLogger("muster")

NOT_JOURNALLED = frozenset({EventKind.OUTPUT, EventKind.TRANSFER, EventKind.USAGE})
PROGRESS_INTERVAL = 1.0  # seconds between two journalled progress events of one rank, unless the epoch changes
POINTS = 100  # T seconds after training began the interval is at most T / POINTS, so that curves have enough points
PROGRESS_PER_SECOND = 100  # progress events of all ranks, without new epochs: more ranks have a longer interval
EPOCHS_AT_ONCE = 300  # of one rank that are written as they come; after that epochs are held back like steps
SIGN_SECONDS = 30.0  # between two signs that the session lives, for machines that share the file and see no more of it
RESERVE = 16 << 10  # bytes kept free for the last events, so that a full disk does not hide how a run ended
MOST_WAITING = 1 << 20  # bytes of events to keep until the disk has room again


class Journal:
    """Writes a run's events to ``events.jsonl``, one line each; progress at intervals only.

    Events are in the file at once or, on an event loop, as soon as the loop has handled what has arrived with them.

    It never raises once it is open. Events that the disk has no room for are kept, and tried again with every later
    event and at the end; those that have to be given up are counted, and a ``note`` in the journal says so.

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
        self._flushing: asyncio.AbstractEventLoop | None = None  # the loop on which a write is due
        self._trains_since: float | None = None
        self._last: dict[tuple[str | None, str], tuple[float, int | None]] = {}
        self._epochs: dict[tuple[str | None, str], float] = {}  # time that a rank's epochs would reach at one interval

    def __call__(self, event: Event) -> None:
        """Write ``event``, or hold it back if it is progress that a newer event may replace."""
        if event.kind in NOT_JOURNALLED or self._descriptor is None:
            return
        if type(event.data) is Progress:
            self._take_progress(event, event.data)
            return
        if event.worker is None:
            self._write_all_held()
        else:
            self._write_held(event.worker)
        self._write(event)

    def _take_progress(self, event: Event, told: Progress) -> None:
        """Write progress, or hold it back; merge it with an event held back before, unless that is of another epoch."""
        source = (event.worker, rank := str(told.rank))
        if self._trains_since is None:
            self._trains_since = event.time
        first = (event.time if self._is_crowded(event.time) else float("-inf"), told.epoch)
        written, epoch = self._last.setdefault(source, first)
        ranks = self._held.setdefault(event.worker, {})
        held = ranks.pop(rank, None)
        if held is not None and told.epoch in (None, held.data.get("epoch")):
            event, held = _merged(held, event), None
        is_soon = not has_passed(self._interval(event.time - self._trains_since), written, event.time)
        if is_soon and (told.epoch in (None, epoch) or not self._has_room_for_epoch(source, event.time)):
            ranks[rank] = event
            return
        if held is not None:
            self._write(held)
        self._last[source] = (event.time, epoch if told.epoch is None else told.epoch)
        self._write(event)

    def _is_crowded(self, now: float) -> bool:
        """Return whether so many ranks have reported that the first report of another one has to be held back, too."""
        trained = 0.0 if self._trains_since is None else max(0.0, now - self._trains_since)
        return len(self._last) > PROGRESS_PER_SECOND * (1 + trained)

    def _has_room_for_epoch(self, source: tuple[str | None, str], now: float) -> bool:
        """Return whether a rank's new epoch is to be written at once, and count it; the rate of such is limited."""
        used, interval = self._epochs.get(source, 0.0), self._interval()
        used = used if used <= now else 0.0  # the clock has been set back
        used_until = max(used, now - EPOCHS_AT_ONCE * interval) + interval
        if used_until > now:
            return False
        self._epochs[source] = used_until
        return True

    async def keep_up(self) -> None:
        """Write events that were held back at each interval, until cancelled, so that readers see them in time.

        Now and then touch the file, which tells others that the session lives.
        """
        signed_at = time.monotonic()
        while True:
            await asyncio.sleep(min(self._interval(), SIGN_SECONDS))
            self._write_all_held()
            self._flush()
            if self._descriptor is not None and time.monotonic() - signed_at >= SIGN_SECONDS:
                signed_at = time.monotonic()
                with contextlib.suppress(OSError):
                    os.utime(self._descriptor)

    def _interval(self, trained: float = math.inf) -> float:
        """Return the seconds between two progress events of one rank, ``trained`` seconds after the first of all."""
        trained = trained if trained >= 0 else math.inf  # the clock has been set back
        return max(min(PROGRESS_INTERVAL, trained / POINTS), len(self._last) / PROGRESS_PER_SECOND)

    def close(self) -> None:
        """Write all events that were held back or are waiting, and close the file."""
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
        for rank, event in self._held.pop(worker, {}).items():
            self._last[worker, rank] = (event.time, self._last[worker, rank][1])  # of the epoch that was written
            self._write(event)

    def _write_all_held(self) -> None:
        for worker in list(self._held):
            self._write_held(worker)

    def _write(self, event: Event) -> None:
        line = event.to_json().encode() + b"\n"
        if len(self._waiting) + len(line) > MOST_WAITING:
            self._flush()
        if len(self._waiting) + len(line) > MOST_WAITING and event.kind != EventKind.RUN_ENDED:
            self._lost += 1
        else:
            self._waiting += line
        if event.kind != EventKind.PROGRESS or has_passed(PROGRESS_INTERVAL, self._flushed_at, event.time):
            self._flushed_at = event.time
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Write waiting events with those that follow in the same turn of the event loop, as each write takes time."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._flush()
            return
        if self._flushing is not loop:
            self._flushing = loop
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Write waiting events, as far as the disk has room."""
        self._flushing = None
        if self._descriptor is None:
            return
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


def _merged(held: Event, newer: Event) -> Event:
    """Return the newer of two progress events of a rank, with the fields that only the older one has added."""
    before, news = vars(held.data), vars(newer.data)
    missing = {name: value for name, value in before.items() if value is not None and news[name] is None}
    if not missing and before["metrics"].keys() <= news["metrics"].keys():  # nearly always: saves time
        return newer
    metrics = {**before["metrics"], **news["metrics"]}
    return replace(newer, data=Progress(**{**news, **missing, "metrics": metrics}))
