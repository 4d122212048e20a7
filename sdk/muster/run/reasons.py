"""The errors that a run ends with, made of what is known of it. Logs are read for them, beside the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from muster.errors import MusterError, StartTimeout
from muster.failure import causes, diagnosis
from muster.failure.causes import Failure
from muster.failure.waiting import who_holds_up
from muster.job import Plan
from muster.run.request import RunContext
from muster.run.state import RunState, Source
from muster.runtime import clock
from muster.runtime.background import in_thread


class Reasons:
    """Says what went wrong in a run.

    Args:
        context: the run, with its limits and its logs.
        state: what is known of its workers.
    """

    def __init__(self, context: RunContext, state: RunState) -> None:
        self._limits = context.limits
        self._logs = context.run_dir / "logs"
        self._state = state

    async def explain(self, cause: Failure, plan: Plan | None) -> MusterError:
        """The error for the failure that explains the others."""
        if plan is None and cause.worker:
            return await in_thread(diagnosis.did_not_come_up, cause, self._logs)
        total = len(plan.ranks or plan.decides or plan.processes) if plan else 1
        failures = list(self._state.failures)
        alike, ties = causes.alike(cause, failures), causes.ties(cause, failures)
        return await in_thread(partial(diagnosis.explain, cause, self._logs, alike=alike, total=total, ties=ties))

    async def workers_missing(self, submitted_at: float, trouble: str) -> MusterError:
        """The error for workers that have not said hello in time.

        Args:
            submitted_at: since when the platform has had them, on the monotonic clock.
            trouble: why the platform could not be asked about them; empty where it could.
        """
        state, limits = self._state, self._limits
        if not state.missing:
            return StartTimeout(f"The platform has not said within {limits.start:g} s that it has launched all.")
        queued = state.queued
        if queued and limits.queue and clock.now() >= submitted_at + limits.queue:
            return diagnosis.still_queued(queued, len(state.specs), limits.queue)
        late = [name for name in state.missing if name not in queued]
        known = {name: worker.status for name, worker in state.workers.items()}
        missing = {name: known.get(name) for name in [*late, *queued]}
        return await in_thread(diagnosis.workers_missing, missing, len(state.specs), limits.start, self._logs, trouble)

    async def not_up(self, plan: Plan) -> MusterError:
        """The error for ranks that were not started, or servers that do not listen, in time."""
        missing: list[Source]
        if plan.ranks:
            started = self._state.started
            missing = [(worker, rank) for rank, worker in plan.ranks.items() if (worker, rank) not in started]
        else:
            deaf = [name for name in plan.servers if name not in self._state.listening]
            missing = [(name, None) for name in deaf or plan.processes]
        launcher = plan.launcher.name if plan.launcher else ""
        return await in_thread(diagnosis.not_up, missing, launcher, self._limits.start, self._logs)

    async def timed_out(self, stacks: Mapping[str, str]) -> MusterError:
        """The error for a run that has taken too long."""
        return await in_thread(diagnosis.timed_out, self._limits.run, stacks, self._logs)

    async def stalled(self, silent: Sequence[Source], stacks: Mapping[str, str]) -> MusterError:
        """The error for a run in which these processes, longest first, have shown no sign of life for too long."""
        holding_up = who_holds_up(silent, self._state.stacks)
        return await in_thread(diagnosis.stalled, holding_up, self._limits.stall, stacks, self._logs)
