"""The choice of the failure that ended a run, once others have had a moment to explain it."""

from __future__ import annotations

from collections.abc import Callable

from muster.failure import causes
from muster.failure.causes import Bearing, Failure, FailureKind
from muster.pools.pool import AgentPool
from muster.run.state import RunState
from muster.run.watch import PlatformWatch
from muster.runtime import clock

SETTLE_SECONDS = 1.0  # how long a first failure waits for one that explains it, and longer while the platform is asked
HEARSAY_SECONDS = 3.0  # the same where all that is known is that frameworks have been told of another process's failure


class Settling:
    """Waits until the cause of what has failed is known.

    Args:
        state: what is known of the workers.
        pool: the workers, some of which are still connected.
        watch: asks the platform why workers have hung up.
    """

    def __init__(self, state: RunState, pool: AgentPool, watch: PlatformWatch) -> None:
        self._state = state
        self._pool = pool
        self._watch = watch

    async def cause(self, is_stopped: Callable[[], bool], is_broken: Callable[[], bool]) -> Failure:
        """Return the failure that explains the others; something must have failed.

        It comes after a moment in which a better explanation may come: a longer one where this looks like the echo of
        another failure, or its process is about to exit; and not before the platform has had its time to say why
        workers have hung up.

        Args:
            is_stopped: whether the run is stopped: nobody waits for the platform then.
            is_broken: whether Muster itself has failed: then it comes at once.
        """
        first_seen = clock.now()
        while True:
            cause = causes.root_cause(self._state.failures)
            assert cause is not None, "only called once something has failed"
            is_open = cause.is_echo or self._will_exit(cause)
            seconds = SETTLE_SECONDS if is_open else SETTLE_SECONDS / 4
            is_to_come = self.is_hearsay(cause) or self._is_left(cause)
            settled_at = first_seen + (HEARSAY_SECONDS if is_to_come else seconds)
            if not is_stopped():
                settled_at = max(settled_at, self._watch.explains_until)
            if clock.now() >= settled_at or is_broken():
                return cause
            await self._state.changed.next(settled_at)

    def is_hearsay(self, cause: Failure | None) -> bool:
        """Return whether a framework only says that another process has failed, and there is one that may have yet to.

        Such as a rank that raised, had Horovod shut down on its way out, and has not come to say so.
        """
        is_word = cause is not None and cause.kind is FailureKind.EXCEPTION and cause.bearing is Bearing.COLLECTIVE
        failed = {(failure.worker, failure.rank) for failure in self._state.failures}
        return is_word and any(source not in failed for source in self._state.running)

    def _will_exit(self, failure: Failure) -> bool:
        """Return whether it is an exception whose process has yet to exit, and whose agent will tell."""
        is_running = (failure.worker, failure.rank) in self._state.running
        return failure.kind is FailureKind.EXCEPTION and is_running and failure.worker in self._pool.connected

    def _is_left(self, cause: Failure) -> bool:
        """Return whether there are only echoes yet, and an agent has ended its processes of itself: it is about to go.

        As one does whose guard was killed: what it has started gets a moment first.
        """
        leaving = {failure.worker for failure in self._state.ended_unasked()}
        return cause.is_echo and not leaving.isdisjoint(self._pool.connected)
