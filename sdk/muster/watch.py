"""Learns from the platform about workers that cannot speak for themselves, or not any more."""

from __future__ import annotations

import asyncio
import logging
import time

from muster.background import BlockingCalls
from muster.platforms.base import Platform
from muster.session import Session
from muster.state import RunState

logger = logging.getLogger("muster")

POLL_SECONDS = 0.5  # between two looks
HANG_UP_SECONDS = 0.02  # the same, once an agent has hung up
EXPLAIN_SECONDS = 0.2  # how long the platform may take to learn why an agent hung up
ANSWER_SECONDS = 10.0  # how long it may take for one look


class PlatformWatch:
    """Asks the platform about all workers of a run at once, again and again, and tells the run's state.

    Args:
        calls: makes the calls, so that none holds up the event loop.
    """

    def __init__(self, platform: Platform, state: RunState, session: Session, calls: BlockingCalls) -> None:
        self._platform = platform
        self._state = state
        self._session = session
        self._calls = calls
        self._hung_up: dict[str, float] = {}  # workers whose connection has ended, and when

    def on_lost(self, worker: str) -> None:
        """A worker's connection has ended, which it never does before it is told to."""
        self._hung_up[worker] = time.monotonic()
        self._state.changed.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(HANG_UP_SECONDS if self._hung_up else POLL_SECONDS)
            await self._look()
            self._explain_lost()

    def _explain_lost(self) -> None:
        """Give up on an explanation for a lost worker once the platform has had its time."""
        explained = {failure.worker for failure in self._state.failures if failure.kind == "lost"}
        for worker, since in list(self._hung_up.items()):
            is_late = time.monotonic() - since > EXPLAIN_SECONDS
            if is_late and worker not in explained:
                self._state.lost(worker, "its agent closed the connection")
            if is_late or worker in explained:
                del self._hung_up[worker]

    async def _look(self) -> None:
        workers = list(self._state.workers.values())
        seconds = EXPLAIN_SECONDS if self._hung_up else ANSWER_SECONDS
        try:
            polled = await self._calls.call(self._platform.poll, workers, seconds=seconds)
        except Exception as error:  # foreign code; it says nothing about the workers, who speak for themselves
            logger.warning("the platform did not answer: %r", error)
        else:
            self._state.polled(polled, self._session.connected)
