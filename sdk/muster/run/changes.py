"""Waiting for a condition to become true, without missing a change and without polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Changes:
    """Wakes all tasks that wait for a condition, so that each of them checks it again."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def set(self) -> None:
        """Announce a change."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def next(self, deadline: float | None = None) -> None:
        """Wait for the next change, but not beyond the deadline."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()  # before anything else runs: no change is missed
        self._waiters.add(waiter)
        timer = None if deadline is None else loop.call_at(deadline, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)
            if timer is not None:
                timer.cancel()

    async def until(self, is_true: Callable[[], bool], deadline: float | None = None) -> bool:
        """Wait until ``is_true`` returns true, but not beyond the deadline (None: any time) by the event loop's clock.

        Returns:
            Whether it is true.
        """
        while not is_true():
            if deadline is not None and asyncio.get_running_loop().time() >= deadline:
                return False
            await self.next(deadline)
        return True


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
