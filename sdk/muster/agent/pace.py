"""The pace of reports: progress and use of resources are told as often as the session asks for, and only if new.

A session with very many workers asks each of them to say less, so that all of them together cost it no more.
"""

import time

from . import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

AS_THEY_COME = 1.0  # seconds between two reports from which on progress is held back; processes send less by themselves
MEMORY_STEP = 20  # bits: less than a mebibyte is nothing new
CPU_STEP = 0.01  # of a core: the same


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
        self._usage: "tuple[Any, ...]" = ()  # as it was last told
        self._usage_due = 0.0

    def usage(self, usage: wire.Usage) -> None:
        """Tell what the worker uses, if that is another than before, and it is time."""
        now = time.monotonic()
        rounded = (round(usage.cpu / CPU_STEP), usage.memory >> MEMORY_STEP, usage.gpu, usage.gpu_memory)
        if rounded != self._usage and now >= self._usage_due:
            self._usage = rounded
            self._usage_due = now + self.interval - AS_THEY_COME / 2  # it is measured once a second, more or less
            self._send(usage)

    def progress(self, report: wire.Progress) -> None:
        """Tell the progress of a rank, or hold it back until it is time: what is newer goes over it."""
        if self.interval <= AS_THEY_COME:
            self._send(report)
            return
        held = self._held.pop(report.rank, None)
        if held is not None and report.epoch not in (None, held.epoch):  # the last word on an epoch
            self._send(held)
            held = None
        self._held[report.rank] = _merged(held, report) if held is not None else report
        self.tick()

    def tick(self) -> None:
        """Tell what has been held back for long enough."""
        if not self._held:
            return
        now = time.monotonic()
        for rank in [rank for rank in self._held if now >= self._next.get(rank, 0.0)]:
            self._next[rank] = now + self.interval
            self._send(self._held.pop(rank))

    def flush(self) -> None:
        """Tell what has been held back: something that comes after it is to be told."""
        for rank in list(self._held):
            self._send(self._held.pop(rank))


def _merged(held: wire.Progress, report: wire.Progress) -> wire.Progress:
    newer = {name: value for name, value in report._asdict().items() if value is not None}
    if held.metrics and report.metrics:
        newer["metrics"] = dict(held.metrics, **report.metrics)
    return held._replace(**newer)
