"""The watch over a run's platform, which is polled about workers whose agents cannot report, or not any more."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import NamedTuple

from muster.job import Worker
from muster.platforms.base import PollBackoff
from muster.pools.pool import AgentPool
from muster.run.changes import Changes
from muster.run.state import RunState
from muster.runtime import clock

logger = logging.getLogger("muster")

POLLS_TO_EXPLAIN = 10  # polls in the time that the platform may take to learn why an agent has hung up
ANSWER_SECONDS = 10.0  # how long one poll may take
HURRIED_SECONDS = 2.0  # the same after an agent has hung up, unless the platform needs longer: machines may be busy
CLOSED = "its agent closed the connection"
NOT_BACK = "its connection ended, and has not come back"


class Loss(NamedTuple):
    """The end of a worker's connection: its time on the monotonic clock, and the text to use if no reason is found."""

    since: float
    text: str


class PlatformWatch:
    """Polls the platform repeatedly about all workers of a run, and passes the answers to the run's state.

    Args:
        pool: the run's workers.
        state: the state of the workers.

    Attributes:
        silent_since: when the platform ceased to answer polls, on the monotonic clock; None while it answers.
        trouble: why the platform could not be asked at the last poll; empty where it could.
    """

    def __init__(self, pool: AgentPool, state: RunState) -> None:
        self._pool = pool
        self._platform = pool.platform
        self._state = state
        self.trouble = ""
        self.silent_since: float | None = None
        self._is_at_work = False  # the last poll has not been answered in time
        self._hung_up: dict[str, Loss] = {}  # workers whose connection has ended for good
        self._cut: dict[str, float] = {}  # workers whose connection has ended and may come back, and since when
        self._losses = Changes()

    @property
    def explains_until(self) -> float:
        """Time until which the reasons of ended connections may still be found; in the past where they are known."""
        limit = self._platform.explain_seconds + ANSWER_SECONDS  # a poll may have been under way
        ended = [*(loss.since for loss in self._hung_up.values()), *self._cut.values()]
        return max(ended, default=float("-inf")) + limit

    @property
    def _hurried_seconds(self) -> float:
        return max(self._platform.explain_seconds, HURRIED_SECONDS)

    def on_lost(self, worker: str) -> None:
        """Handle the end of a worker's connection for good: an agent does not hang up before it is told to."""
        was_cut = self._cut.pop(worker, None) is not None
        self._hung_up[worker] = Loss(clock.now(), NOT_BACK if was_cut else CLOSED)
        self._state.disconnected_at.setdefault(worker, clock.now())
        self._losses.set()
        self._state.changed.set()

    def on_cut(self, worker: str) -> None:
        """Handle the end of a worker's connection that may come back; the platform may know that it will not."""
        self._cut[worker] = self._state.disconnected_at[worker] = clock.now()
        self._losses.set()

    def on_back(self, worker: str) -> None:
        """Handle the return of a worker's connection: nothing is lost."""
        self._cut.pop(worker, None)
        self._state.disconnected_at.pop(worker, None)

    async def run(self) -> None:
        """Poll until cancelled."""
        backoff = PollBackoff(self._platform)
        found: list[Worker] | None = None
        while True:
            await self._rest(backoff.seconds(found))
            found = await self._poll()
            self._explain_lost()

    def _is_urgent(self) -> bool:
        """Return whether a connection ended so recently that the platform may still have to learn why."""
        since = clock.now() - self._platform.explain_seconds
        return bool(self._hung_up) or any(cut_at > since for cut_at in self._cut.values())

    async def _rest(self, seconds: float) -> None:
        """Wait until the next poll is due, which is soon once an agent has hung up."""
        if self._is_urgent():
            await asyncio.sleep(self._platform.explain_seconds / POLLS_TO_EXPLAIN)
        else:
            await self._losses.next(clock.now() + seconds)

    def _explain_lost(self) -> None:
        """Report workers as lost once the platform has had its time to explain why.

        A platform that has not answered the last poll yet is given a moment longer.
        """
        if not (self._hung_up or self._cut):
            return
        limit = self._hurried_seconds if self._is_at_work else self._platform.explain_seconds
        known = self._state.ends_known()  # once, since a loss that is reported below explains none of the others
        for worker, loss in list(self._hung_up.items()):
            is_known = worker in known
            is_late = clock.now() - loss.since > limit
            if is_late and not is_known:
                self._state.lost(worker, self._with_trouble(loss.text))
            if is_late or is_known:
                del self._hung_up[worker]
                self._state.changed.set()
        for worker, since in list(self._cut.items()):
            # Others that fail meanwhile may fail because of it, and one that was to be taken away hardly comes back:
            # then its lease is not waited for.
            is_gone = bool(self._state.failures) or worker in self._state.preempted
            is_known = worker in known
            if is_gone and (is_known or clock.now() - since > self._platform.explain_seconds):
                del self._cut[worker]
                if not is_known:
                    self._state.lost(worker, self._with_trouble(NOT_BACK))
                self._state.changed.set()

    def _with_trouble(self, text: str) -> str:
        """Return a reason, and why the platform knows of no better one, where it cannot be asked."""
        trouble = self.trouble.partition("\n")[0]  # without the advice, which the warning has
        return f"{text}, and the platform cannot be asked: {trouble}" if trouble else text

    async def _poll(self) -> list[Worker] | None:
        """Poll the platform; return the workers, or None where it does not answer."""
        left_out = self._state.left_out
        names = {worker.id: name for name, worker in self._state.workers.items() if name not in left_out}
        if not names:  # a poll would have to wait until all are submitted, which may take long
            return []
        seconds = self._hurried_seconds if self._is_urgent() else ANSWER_SECONDS
        try:
            answer = await self._pool.poll(names, seconds)
            polled = [
                worker if worker.name == name else replace(worker, name=name)
                for worker in answer
                if (name := names.get(worker.id)) is not None
            ]
        except Exception as error:  # foreign code; it says nothing about the workers, whose agents report themselves
            if str(error) != self.trouble:
                logger.warning("the platform did not answer: %s", error)
            self.trouble = str(error)
            self._is_at_work = isinstance(error, TimeoutError)
            if self.silent_since is None:
                self.silent_since = clock.now()
                self._state.changed.set()
            return None
        self.trouble, self.silent_since, self._is_at_work = "", None, False
        self._state.polled(polled, self._pool.connected)
        return polled
