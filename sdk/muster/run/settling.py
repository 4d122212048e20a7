"""The choice of the failure that ended a run, after a short time in which later reports may explain it."""

from __future__ import annotations

from collections.abc import Callable

from muster.failure import causes
from muster.failure.failures import Bearing, Failure, FailureKind
from muster.pools.pool import AgentPool
from muster.run.state import RunState
from muster.run.watch import PlatformWatch
from muster.runtime import clock

SETTLE_SECONDS = 1.0  # how long to wait for a failure that explains the first; longer while the platform is polled
HEARSAY_SECONDS = 3.0  # the same where so far only frameworks report that some other process has failed


class Settling:
    """Waits until the cause of a run's failures is known.

    Args:
        state: the state of the workers.
        pool: the workers, some of which are still connected.
        watch: polls the platform for why workers have hung up.
    """

    def __init__(self, state: RunState, pool: AgentPool, watch: PlatformWatch) -> None:
        self._state = state
        self._pool = pool
        self._watch = watch

    async def cause(self, is_stopped: Callable[[], bool], is_broken: Callable[[], bool]) -> Failure:
        """Return the failure that explains the others; something must have failed.

        It is returned after a short time in which a better explanation may arrive: a longer one where it looks like the
        echo of another failure, or its process is about to exit; and not before the platform has had its time to say
        why workers have hung up.

        Args:
            is_stopped: returns whether the run is being stopped: then the platform is not waited for.
            is_broken: returns whether Muster itself has failed: then the failure is returned at once.
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
        """Return whether a framework only reports the failure of another process, which may yet be reported itself.

        For example a rank that raised an exception, shut Horovod down on its way out, and has yet to report that.
        """
        is_word = cause is not None and cause.kind is FailureKind.EXCEPTION and cause.bearing is Bearing.COLLECTIVE
        failed = {(failure.worker, failure.rank) for failure in self._state.failures}
        return is_word and any(source not in failed for source in self._state.processes.running)

    def _will_exit(self, failure: Failure) -> bool:
        """Return whether a failure is an exception whose process has yet to exit, which its agent will report."""
        is_running = (failure.worker, failure.rank) in self._state.processes.running
        return failure.kind is FailureKind.EXCEPTION and is_running and failure.worker in self._pool.connected

    def _is_left(self, cause: Failure) -> bool:
        """Return whether there are only echoes so far, and an agent is about to leave.

        An agent that ended its processes unasked is, as one whose guard was killed, and one whose worker the platform
        is about to take away: each gives its processes a moment to end first.
        """
        leaving = {failure.worker for failure in self._state.ended_unasked()} | self._state.preempted
        return cause.is_echo and not leaving.isdisjoint(self._pool.connected)
