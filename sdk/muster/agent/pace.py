"""The pace of reports: progress and use of resources are sent as often as the session asks for, and only if new.

A session with very many workers asks each of them to report less often, so that its load stays the same. An agent sends
at most `MOST_PER_SECOND` reports, however many the processes of its worker send.
"""

import time

from . import wire
from .kinds import MOST_METRICS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

AS_THEY_COME = 1.0  # seconds between two reports from which on progress is held back; processes send less by themselves
MOST_PER_SECOND = 500  # reports of a worker, which is more than a hundred ranks send
MOST_HELD = 1000  # ranks whose progress may be held back
MEMORY_STEP = 20  # bits: a change by less than a mebibyte is not reported
CPU_STEP = 0.01  # of a core: a smaller change is not reported


class Pace:
    """The repeated reports of a worker, paced.

    Args:
        send: sends a message to the session.

    Attributes:
        interval: seconds between two reports of the same kind, of each rank.
    """

    def __init__(self, send: "Callable[[tuple[Any, ...]], object]") -> None:
        self.interval = AS_THEY_COME
        self._send = send
        self._held: "dict[int | None, wire.Progress]" = {}
        self._next: "dict[int | None, float]" = {}
        self._room = float(MOST_PER_SECOND)
        self._room_at = 0.0
        self._usage: "tuple[Any, ...]" = ()  # as it was last sent, rounded
        self._usage_due = 0.0

    def usage(self, usage: wire.Usage) -> None:
        """Send the worker's use of resources, if it has changed and a report is due."""
        now = time.monotonic()
        rounded = (round(usage.cpu / CPU_STEP), usage.memory >> MEMORY_STEP, usage.gpu, usage.gpu_memory)
        if rounded != self._usage and now >= self._usage_due:
            self._usage = rounded
            self._usage_due = now + self.interval - AS_THEY_COME / 2  # it is measured once a second, more or less
            self._send(usage)

    def progress(self, report: wire.Progress) -> None:
        """Send the progress of a rank, or hold it back until it is due; newer progress replaces what is held back."""
        if self.interval <= AS_THEY_COME and report.rank not in self._held and self.has_room():
            self._send(report)
            return
        held = self._held.pop(report.rank, None)
        if held is not None:
            merged = _merged(held, report)
            is_last = report.epoch not in (None, held.epoch) or len(merged.metrics or ()) > MOST_METRICS
            if is_last and self.has_room():  # the last report of an epoch, or more numbers than fit into one report
                self._send(held)
            else:
                report = merged._replace(metrics=_newest(merged.metrics))
        if len(self._held) < MOST_HELD:
            self._held[report.rank] = report
        self.tick()

    def has_room(self) -> bool:
        """Return whether another report may be sent within the limit per second, and if so, count it."""
        now = time.monotonic()
        self._room = min(MOST_PER_SECOND, self._room + (now - self._room_at) * MOST_PER_SECOND)
        self._room_at = now
        if self._room < 1:
            return False
        self._room -= 1
        return True

    def tick(self) -> None:
        """Send progress that has been held back for long enough."""
        if not self._held:
            return
        now = time.monotonic()
        if len(self._next) > MOST_HELD:
            self._next.clear()
        pause = self.interval if self.interval > AS_THEY_COME else 0.0
        for rank in [rank for rank in self._held if now >= self._next.get(rank, 0.0)]:
            if not self.has_room():
                return
            self._next[rank] = now + pause
            self._send(self._held.pop(rank))

    def flush(self) -> None:
        """Send all progress that is held back, before a message that must come after it."""
        for rank in list(self._held):
            self._send(self._held.pop(rank))


def _merged(held: wire.Progress, report: wire.Progress) -> wire.Progress:
    newer = {name: value for name, value in report._asdict().items() if value is not None}
    if held.metrics and report.metrics:
        kept = {name: value for name, value in held.metrics.items() if name not in report.metrics}
        newer["metrics"] = dict(kept, **report.metrics)
    return held._replace(**newer)


def _newest(metrics: "dict[str, float] | None") -> "dict[str, float] | None":
    """Return the newest metrics, as many as fit into one report."""
    return metrics and dict(list(metrics.items())[-MOST_METRICS:])
