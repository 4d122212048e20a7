"""The order in which processes of a run end on the session's own machine, according to its kernel.

Agents notice ends with varying delay: from their reports alone a rank that ended cannot be told from one that lost its
peer and ended a millisecond later. An epoll queue has the ends in their true order, whenever it is read.
"""

from __future__ import annotations

import contextlib
import os
import select

from muster.agent import linux

MOST = 256  # processes that are watched at a time, as each takes a descriptor


class Ends:
    """Watches processes of a run that are on this machine; it knows nothing about others.

    Args:
        run_id: id of the run, which its processes have in their environment: a process id may be another machine's.
    """

    def __init__(self, run_id: str) -> None:
        self._mark = os.fsencode(f"MUSTER_RUN_ID={run_id}")
        self._queue: select.epoll | None = None
        self._watched: dict[int, int] = {}  # ids of the processes, by descriptor
        self._places: dict[int, int] = {}  # by the id of the process
        self._count = 0

    def watch(self, pid: int) -> None:
        """Watch a process, unless it is not on this machine, or has ended already at an unknown time."""
        self._places.pop(pid, None)
        if len(self._watched) >= MOST or self._mark not in linux.environment_of(pid):
            return
        # The order stays unknown on an old kernel, on a Python built for one, in a container that forbids pidfd_open,
        # and where there are too few descriptors.
        with contextlib.suppress(OSError, AttributeError):
            self._queue = self._queue or select.epoll()
            descriptor = os.pidfd_open(pid)
            try:
                self._queue.register(descriptor, select.EPOLLIN | select.EPOLLET)
            except OSError:
                os.close(descriptor)
                raise
            self._watched[descriptor] = pid
            now = select.poll()
            now.register(descriptor, select.POLLIN)
            if now.poll(0):
                self._forget(descriptor)

    def place_of(self, pid: int) -> int | None:
        """Return the place of a process in the order of ends; None where it is not known."""
        if self._queue is not None and self._watched:
            for descriptor, _ in self._queue.poll(0, len(self._watched)):  # the kernel's order
                self._places[self._watched[descriptor]] = self._count
                self._count += 1
                self._forget(descriptor)
        return self._places.get(pid)

    def close(self) -> None:
        """Stop watching all processes."""
        for descriptor in [*self._watched]:
            self._forget(descriptor)
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        if self._queue is not None:
            self._queue.unregister(descriptor)  # closing would not unregister it while a fork has it open, too
        os.close(descriptor)
