"""The order in which processes of a run end on the session's own machine, as its kernel tells it.

Agents notice ends now sooner, now later: by that alone nobody can tell a rank that ended from one that lost it, and
ended a millisecond after. A queue of the kernel's has the ends in the order in which they came, whenever it is read.
"""

from __future__ import annotations

import contextlib
import os
import select

from muster.agent import linux

MOST = 256  # processes that are watched at a time: each takes a descriptor


class Ends:
    """Watches processes of a run that are on this machine; of others it knows nothing.

    Args:
        run_id: of the run, which its processes have in their environment: an id alone may be another machine's.
    """

    def __init__(self, run_id: str) -> None:
        self._mark = os.fsencode(f"MUSTER_RUN_ID={run_id}")
        self._queue: select.epoll | None = None
        self._watched: dict[int, int] = {}  # ids of the processes, by descriptor
        self._places: dict[int, int] = {}  # by the id of the process
        self._count = 0

    def watch(self, pid: int) -> None:
        """Watch a process from now on, unless it is none of this machine, or has ended already: who knows when."""
        self._places.pop(pid, None)
        if len(self._watched) >= MOST or self._mark not in linux.environment_of(pid):
            return
        # There is no order for want of descriptors, on old kernels and Pythons built for them, and where a container
        # forbids it.
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
        """Its place in the order of ends; None where that is not known."""
        if self._queue is not None and self._watched:
            for descriptor, _ in self._queue.poll(0, len(self._watched)):  # the kernel's order
                self._places[self._watched[descriptor]] = self._count
                self._count += 1
                self._forget(descriptor)
        return self._places.get(pid)

    def close(self) -> None:
        """Watch nothing any more."""
        for descriptor in [*self._watched]:
            self._forget(descriptor)
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    def _forget(self, descriptor: int) -> None:
        del self._watched[descriptor]
        if self._queue is not None:
            self._queue.unregister(descriptor)  # which closing does not do where a fork has it, too
        os.close(descriptor)
