"""Use of resources by a worker's processes: it is measured once a second, and the memory limit is enforced."""

import contextlib
import os
import time

from . import linux
from .loop import Loop
from .processes import Children

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

REPORT_INTERVAL = 1.0  # seconds
CHECK_INTERVAL = 0.25  # seconds
SHARED_INTERVAL = 10.0  # seconds


class UsageMeter:
    """Measures all processes of a worker.

    The limit holds for proportional set size: what is resident, with shared pages counted in proportion. Finding that
    out is slow, so it is asked for only when the plain sum of resident sizes, which is larger, is over the limit.

    Args:
        loop: the agent's event loop.
        processes: the agent's processes.
        limit: memory in bytes that all of them together may have.
        report: called every second with ``cpu`` (1.0 is one busy core) and ``memory`` (bytes), while anything runs.
        on_excess: called with the bytes in use when they are more than ``limit``.

    Attributes:
        shared: processes outside the worker whose memory counts in part as the worker's, with that part.
    """

    def __init__(
        self,
        loop: Loop,
        processes: Children,
        limit: int,
        report: "Callable[[float, int], object]",
        on_excess: "Callable[[int], object]",
    ) -> None:
        self._processes = processes
        self._limit = limit
        self.shared: "dict[int, float]" = {}
        self._shared_memory = 0
        self._shared_at = float("-inf")
        self._report = report
        self._on_excess = on_excess
        self._pids: "list[int]" = []
        self._newest = 0  # id of the newest process when the processes were last listed
        self._ticks: "dict[int, int]" = {}
        self._measured_at = time.monotonic()
        loop.call_every(REPORT_INTERVAL, self._measure)
        loop.call_every(CHECK_INTERVAL, self.check)

    def _measure(self) -> None:
        with contextlib.suppress(OSError):  # no file can be opened at the moment, in this process or on the machine
            self._report_use()

    def _report_use(self) -> None:
        newest = linux.newest_pid()
        if newest != self._newest:  # looking through all processes is what costs an agent most
            self._pids = self._own(linux.snapshot())
            self._newest = newest
        stats = [found for found in map(linux.stat, self._pids) if found is not None]
        ticks = {found.pid: found.ticks for found in stats}
        used = sum(now - self._ticks.get(pid, 0) for pid, now in ticks.items())
        now = time.monotonic()
        cpu = used / linux.TICKS_PER_SECOND / (now - self._measured_at)
        self._ticks = ticks
        self._measured_at = now
        memory = sum(found.rss for found in stats)
        if memory:  # otherwise all have ended, and the last report remains visible
            self._report(round(cpu, 3), memory)

    def check(self) -> None:
        """Call ``on_excess`` if the processes use more memory than the limit."""
        if not self._processes.running:
            return
        known = self._pids or list(self._processes.running)
        if sum(linux.resident_memory(pid) for pid in known) + self._of_shared() <= self._limit:
            return
        # Perhaps too much: measure exactly, including processes that were started since the last check.
        with contextlib.suppress(OSError):
            self._pids = self._own(linux.snapshot())
        used = sum(_memory(pid) for pid in self._pids) + self._of_shared()
        if used > self._limit:
            self._on_excess(used)

    def _of_shared(self) -> int:
        """Return the bytes of shared processes that count as the worker's. Measured rarely, as that is slow."""
        now = time.monotonic()
        if self.shared and now - self._shared_at > SHARED_INTERVAL:
            self._shared_at = now
            self._shared_memory = int(sum(_memory(pid) * part for pid, part in self.shared.items()))
        return self._shared_memory

    def _own(self, everything: "dict[int, linux.Stat]") -> "list[int]":
        # Processes of commands and logins in this worker do not count: above all not the guard of a pool's runs, whose
        # agents have their own limits.
        others = {
            pid for service in self._processes.services for pid in (service, *linux.descendants(service, everything))
        }
        return [pid for pid in linux.descendants(os.getpid(), everything) if pid not in others]


def _memory(pid: int) -> int:
    proportional = linux.proportional_memory(pid)
    return linux.resident_memory(pid) if proportional is None else proportional
