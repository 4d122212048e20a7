"""The arrival of a run's workers: their launch or replacement, and its time limit; a run may go on without some."""

from __future__ import annotations

import asyncio
import logging

from muster.errors import MusterError, PlatformError
from muster.pools.leases import LeaseHeld
from muster.pools.pool import AgentPool
from muster.run.context import RunContext
from muster.run.state import RunState
from muster.run.watch import PlatformWatch
from muster.runtime import clock

logger = logging.getLogger("muster")


class Arrival:
    """Launches the workers of a run, and computes the deadline of the start.

    Args:
        context: the run, with its limits.
        pool: launches the workers.
        state: the state of the workers.
        watch: polls the platform about them.

    Attributes:
        submitted_at: when the workers were submitted to the platform, on the monotonic clock.
        not_counted: seconds that do not count towards the time limit of the start.
    """

    def __init__(self, context: RunContext, pool: AgentPool, state: RunState, watch: PlatformWatch) -> None:
        self._key = context.submission
        self._limits = context.limits
        self._pool = pool
        self._state = state
        self._watch = watch
        self.submitted_at = 0.0
        self.not_counted = 0.0

    async def launch(self) -> None:
        """Have the platform launch all workers, or only the missing ones if some stayed from the attempt before.

        Raises:
            PlatformError: it cannot, and the run cannot go on without them.
            TimeoutError: it does not answer in time.
        """
        self.submitted_at = clock.now()
        if self._pool.handles:
            await asyncio.gather(*(self._pool.retire(name) for name in self._state.missing))
            await self._replace_missing()
        else:
            await self._submit()

    def deadline(self) -> float | None:
        """Return the time at which the start will have taken too long.

        The limit of each worker that has not said hello counts from when the platform had a place for it; once all have
        said hello, it counts from when the last one was placed. It begins anew with each report that a process is
        importing modules. Workers that are queued have a limit of their own; but if the platform has not answered for
        as long as a start may take, their start has failed, too.
        """
        state, waits, limits = self._state, self._state.waits, self._limits
        are_queued = waits.are_any_queued
        deadlines = [self.submitted_at + limits.queue] if are_queued and limits.queue else []
        if limits.start:
            if are_queued and self._watch.silent_since is not None:
                deadlines.append(self._watch.silent_since + limits.start)
            placed = waits.first_placed if state.are_any_missing else waits.last_placed
            if placed is not None:
                deadlines.append(max(placed + self.not_counted, state.imported_at) + limits.start)
        return min(deadlines, default=None)

    async def _submit(self) -> None:
        specs = list(self._state.specs.values())
        try:
            handles = await self._pool.submit(specs, self._key, self._limits.start)
        except PlatformError as error:
            if not self._state.can_spare(1):
                raise
            logger.info("the workers are launched one by one, as not all could be: %s", error)
            await self._replace_missing()
            return
        for name, handle in zip(self._state.specs, handles, strict=True):
            self._state.submitted(name, handle, self.submitted_at)

    async def _replace_missing(self) -> None:
        """Launch the next generation of every missing worker; the others stay as they are."""
        for name in self._state.missing:
            await self._replace(name)

    async def _replace(self, name: str) -> None:
        """Launch the next generation of a worker, or go on without it if that fails and enough workers are left."""
        try:
            handle = await self._pool.replace(name, f"{self._key}.{name}", self._limits.start)
        except (MusterError, TimeoutError, LeaseHeld) as error:  # also what the platform had found well at the start
            if self._state.can_spare(1):
                why = str(error).rstrip(".") or "the platform does not answer"
                self._state.leave_out([name], f"it could not be launched ({why})")
                return
            if isinstance(error, LeaseHeld):
                raise PlatformError(f"{name} is lost and cannot be replaced: {error}.", worker=name) from None
            raise
        self._state.submitted(name, handle, clock.now())
