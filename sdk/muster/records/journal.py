"""The journal of a run: its events in a file, one line each."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

from muster.events import Event

NOT_JOURNALLED = frozenset({"output", "usage"})
PROGRESS_INTERVAL = 1.0  # seconds between two journalled progress events of one rank, unless the epoch changes
PROGRESS_PER_SECOND = 100  # of all ranks, but for new epochs: more have a longer interval, else disks would fill up


class Journal:
    """Writes a run's events to ``events.jsonl``, one line each, flushed as they come; progress only now and then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO = path.open("a", encoding="utf-8")
        self._held: dict[tuple[str | None, int | None], Event] = {}
        self._flushed_at = float("-inf")
        self._last: dict[tuple[str | None, int | None], tuple[float, Any]] = {}

    def __call__(self, event: Event) -> None:
        """Write ``event``, or hold it back where a newer one of its kind will say more."""
        if event.kind in NOT_JOURNALLED or self._file.closed:
            return
        if event.kind == "progress":
            source = (event.worker, event.data.get("rank"))
            written, epoch = self._last.get(source, (float("-inf"), None))
            interval = max(PROGRESS_INTERVAL, len(self._last) / PROGRESS_PER_SECOND)
            if event.time - written < interval and event.data.get("epoch") == epoch:
                self._held[source] = event
                return
            self._last[source] = (event.time, event.data.get("epoch"))
            self._held.pop(source, None)
        else:
            self._write_held(event.worker)
        self._write(event)

    def close(self) -> None:
        """Write what was held back, and close the file."""
        if not self._file.closed:
            self._write_held(None)
            self._file.close()

    def _write_held(self, worker: str | None) -> None:
        for source in [key for key in self._held if worker in (None, key[0])]:
            self._write(self._held.pop(source))

    def _write(self, event: Event) -> None:
        self._file.write(event.to_json() + "\n")
        if event.kind != "progress" or event.time - self._flushed_at >= PROGRESS_INTERVAL:
            self._file.flush()
            self._flushed_at = event.time
