"""Calls of a platform, which block and may come to no end, from an event loop."""

from __future__ import annotations

import asyncio
import contextlib

from muster.platforms.base import Platform
from muster.runtime.background import BlockingCalls, answer_of

CLOSE_SECONDS = 30.0  # how long the platform may take to release everything


class PlatformCalls(BlockingCalls):
    """The calls of a run's platform, one after the other on a thread: it may begin to warm up before there is a pool.

    Args:
        name: what the thread is called after.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"muster-platform-{name}")
        self._warming: asyncio.Future[None] | None = None

    def warm_up(self, platform: Platform) -> None:
        """Have the platform warm up, without waiting for it."""
        self._warming = asyncio.ensure_future(self.call(platform.warm_up))

    async def have_warmed_up(self, seconds: float | None) -> None:
        """Wait until it has. Raises what it raised, or TimeoutError."""
        if self._warming is not None:
            await answer_of(self._warming, seconds)

    async def abandon(self) -> None:
        """End where there will be no pool: once it has warmed up, or what that starts would be there after its end."""
        with contextlib.suppress(Exception):  # another error is the one that counts
            await self.have_warmed_up(CLOSE_SECONDS)
        self.close()
