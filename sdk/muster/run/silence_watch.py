"""The search for workers whose agents do not answer although their connections stand: paused, suspended, or hanging.

An agent that is not heard for a while is asked for a sign of life, so that nothing is sent to agents that report by
themselves, and none has to send anything for this alone. Silence is counted in looks rather than in seconds: a session
that was suspended itself has not looked meanwhile, and blames nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Iterable

from muster.pools.pool import AgentPool
from muster.run.state import RunState
from muster.runtime import clock

LOOK_SECONDS = 1.0  # between two looks, each at a share of the workers
EACH_LOOKS = 5  # looks from one at a worker to the next at it, or more where agents report less often
ASKED = 2  # times that a worker was looked at and was not heard since the time before, after which it is asked
# The same, after which it counts as silent. One is always looked at of which the platform says why it may be.
SILENT = 4
CUT = "Its connection has broken."


class SilenceWatch:
    """Finds the silent workers of a run, and tells its state of them.

    Args:
        pool: the run's workers.
        state: the state of the workers.
    """

    def __init__(self, pool: AgentPool, state: RunState) -> None:
        self._endpoint = pool.endpoint
        self._state = state
        self._workers = list(state.specs)
        self._missed: Counter[str] = Counter()
        self._suspected_looked_at = -math.inf
        self._looked_at: dict[int, float] = {}  # when each share of the workers was last looked at
        self._last_heard: dict[str, float] = {}  # of the silent workers

    async def run(self) -> None:
        """Look for silent workers until cancelled."""
        shares = max(EACH_LOOKS, math.ceil(self._endpoint.report_seconds / LOOK_SECONDS))
        share = 0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look_at_silent()
            now = clock.now()
            longest = (SILENT + 1) * shares * LOOK_SECONDS
            self._look_at(list(self._state.silences.suspected), self._suspected_looked_at, now, longest)
            self._suspected_looked_at = now
            self._look_at(self._workers[share::shares], self._looked_at.get(share, -math.inf), now, longest)
            self._looked_at[share] = now
            share = (share + 1) % shares

    def _look_at(self, workers: Iterable[str], before: float, now: float, longest: float) -> None:
        """Look at workers that were looked at before; no silence is told to have been longer than ``longest``."""
        for worker in workers:
            heard_at = self._endpoint.heard_at(worker)
            if heard_at is None or heard_at >= before or self._state.processes.is_over(worker):
                self._missed.pop(worker, None)
                continue
            self._missed[worker] += 1
            if self._missed[worker] == ASKED:
                self._endpoint.ask_for_life(worker)
            elif self._missed[worker] == SILENT:
                self._last_heard[worker] = heard_at
                why = CUT if worker in self._state.disconnected_at else None
                why = self._state.silences.suspected.get(worker, why)
                self._state.silences.begin(worker, min(now - heard_at, longest), why)

    def _look_at_silent(self) -> None:
        for worker, before in list(self._last_heard.items()):
            heard_at = self._endpoint.heard_at(worker)
            if heard_at is None or heard_at > before or self._state.processes.is_over(worker):
                del self._last_heard[worker]
                self._missed.pop(worker, None)
                self._state.silences.end(worker)
