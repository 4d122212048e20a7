"""The errors with which a run ends, made from its state and its logs, which are read on a thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from muster.errors import MusterError, StartTimeout
from muster.failure import causes, diagnosis
from muster.failure.failures import Failure
from muster.failure.waiting import MUTE, find_blocker
from muster.job import Plan
from muster.run.context import RunContext
from muster.run.processes import Source
from muster.run.state import RunState
from muster.runtime import clock
from muster.runtime.background import in_thread
from muster.text.cleaning import clean


class Reasons:
    """Makes the errors that say what went wrong in a run.

    Args:
        context: the run, with its limits and its logs.
        state: the state of its workers.
    """

    def __init__(self, context: RunContext, state: RunState) -> None:
        self._limits = context.limits
        self._logs = context.run_dir / "logs"
        checked = context.checked
        self._is_here = checked.session_address[0].startswith("127.") and not checked.is_relayed
        self._is_python = checked.job.script is None or checked.job.script.kind != "executable"
        self._has_copy = checked.project is not None
        self._state = state

    async def explain(self, cause: Failure, plan: Plan | None) -> MusterError:
        """Return the error for the failure that explains the others."""
        has_come = cause.worker in self._state.members
        if plan is None and cause.worker and not has_come and not cause.is_told:
            return await in_thread(diagnosis.did_not_come_up, cause, self._logs)
        total = len(plan.ranks or plan.completed_by or plan.processes) if plan else 1
        failures = list(self._state.failures)
        alike, ties = causes.alike(cause, failures), causes.ties(cause, failures)
        of_script = partial(diagnosis.explain, is_python=self._is_python, has_copy=self._has_copy)
        explained = partial(of_script, alike=alike, total=total, ties=ties)
        error = await in_thread(explained, cause, self._logs)
        return self._with_lost_threads(error)

    async def workers_missing(self, submitted_at: float, trouble: str) -> MusterError:
        """Return the error for workers that have not said hello in time.

        Args:
            submitted_at: since when the platform has had them, on the monotonic clock.
            trouble: why the platform could not be asked about them; empty where it could.
        """
        state, limits = self._state, self._limits
        if not state.missing:
            return StartTimeout(f"The platform has not said within {limits.start:g} s that it has launched all.")
        queued = state.queued
        if queued and limits.queue and clock.now() >= submitted_at + limits.queue:
            return diagnosis.still_queued(queued, len(state.specs), limits.queue, state.waits_of(queued))
        without_place = set(queued)
        late = [name for name in state.missing if name not in without_place]
        known = {name: worker.status for name, worker in state.workers.items()}
        missing = {name: known.get(name) for name in [*late, *queued]}
        explained = partial(diagnosis.workers_missing, waits=state.waits_of([*missing]), is_here=self._is_here)
        return await in_thread(explained, missing, len(state.specs), limits.start or 0.0, self._logs, trouble)

    async def not_up(self, plan: Plan) -> MusterError:
        """Return the error for ranks that were not started, or servers that do not listen, in time."""
        missing: list[Source] = []
        if plan.ranks:
            started = self._state.processes.started
            missing = [(worker, rank) for rank, worker in plan.ranks.items() if (worker, rank) not in started]
        if not missing:
            deaf = [name for name in plan.servers if name not in self._state.listening]
            missing = [(name, None) for name in deaf or plan.processes]
        launcher = plan.starter.name if plan.starter else ""
        return await in_thread(diagnosis.not_up, missing, launcher, self._limits.start, self._logs)

    async def timed_out(self, stacks: Mapping[str, str]) -> MusterError:
        """Return the error for a run that has taken too long."""
        error = await in_thread(diagnosis.timed_out, self._limits.run, stacks, self._logs)
        return self._with_lost_threads(error)

    async def stalled(
        self, silent: Sequence[Source], stacks: Mapping[str, str], seconds: float | None = None
    ) -> MusterError:
        """Return the error for a run with silent processes.

        Args:
            silent: processes without a sign of life, the longest silent first.
            stacks: Python stacks of all processes.
            seconds: how long they have been silent; None for the run's own limit.
        """
        servers = [source for source in self._state.processes.running if source[0] in self._state.servers]
        holding_up = find_blocker(silent, self._state.stacks, servers)
        known = self._state.silences.why(holding_up.source[0]) if holding_up.why == MUTE else None
        holding_up = holding_up._replace(why=f"Its agent does not answer. {known}") if known else holding_up
        error = await in_thread(
            diagnosis.stalled, holding_up, self._limits.stall if seconds is None else seconds, stacks, self._logs
        )
        return self._with_lost_threads(error)

    def _with_lost_threads(self, error: MusterError) -> MusterError:
        """Return the error, with a sentence on threads that exceptions had ended before: they may be the cause."""
        told = self._state.lost_threads
        if told:
            more = f", and {len(told) - 1} more" if len(told) > 1 else ""
            stop = "" if error.message.endswith(".") else "."
            error.message = f"{error.message}{stop} Before, {clean(told[0])}{more}."
        return error
