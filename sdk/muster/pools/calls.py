"""Calls of a platform's methods from an event loop; these block, and may never return."""

from __future__ import annotations

import asyncio
import contextlib

from muster.platforms.base import Platform
from muster.runtime.background import BlockingCalls, answer_of

CLOSE_SECONDS = 30.0  # how long the platform may take to release everything


class PlatformCalls(BlockingCalls):
    """Calls of a run's platform, one after the other on a thread.

    They are apart from the pool, so that the platform can begin to warm up before there is one.

    Args:
        name: name for the thread.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"muster-platform-{name}")
        self._warming: asyncio.Future[None] | None = None

    def warm_up(self, platform: Platform) -> None:
        """Start to warm the platform up, without waiting for it."""
        self._warming = asyncio.ensure_future(self.call(platform.warm_up))

    async def have_warmed_up(self, seconds: float | None) -> None:
        """Wait until the platform has warmed up. Raises the error of that, or TimeoutError."""
        if self._warming is not None:
            await answer_of(self._warming, seconds)

    async def abandon(self) -> None:
        """End the calls if no pool will be made; first wait for the warm-up, which must not go on after the end."""
        with contextlib.suppress(Exception):  # another error is the one that counts
            await self.have_warmed_up(CLOSE_SECONDS)
        self.close()
