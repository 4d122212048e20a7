"""The milestones of a planned run: whether it is up, has returned, is decided, and when it counts as stalled."""

from __future__ import annotations

from muster.job import Plan
from muster.run.launcher import RunLauncher
from muster.run.processes import Source
from muster.run.state import RunState


class Milestones:
    """The progress of a run, by its plan and the state of its processes. It changes nothing.

    Args:
        plan: everything that the run starts.
        state: the state of its workers.
        launcher: the launcher that starts its ranks, if any does.
        stall: for how many seconds a process that trains may be silent; None for any number.

    Attributes:
        plan: everything that the run starts.
    """

    def __init__(self, plan: Plan, state: RunState, launcher: RunLauncher, stall: float | None) -> None:
        self.plan = plan
        self._state = state
        self._launcher = launcher
        self._stall = stall

    def is_up(self) -> bool:
        """Return whether every server listens or every rank runs."""
        plan, state = self.plan, self._state
        if state.processes.count_started() < max(len(plan.ranks), 0 if plan.starter else len(plan.processes)):
            return False  # quick, as it is asked at every change
        has_all_ranks = {rank for _, rank in state.processes.started} >= set(plan.ranks)
        if plan.starter:
            return has_all_ranks
        has_started = has_all_ranks and {worker for worker, _ in state.processes.started} >= set(plan.processes)
        # A server that has ended without a failure need not listen any more.
        return has_started and all(name in state.listening or state.processes.is_over(name) for name in plan.servers)

    def has_returned(self) -> bool:
        """Return whether the processes that complete the run have ended, or have returned and only serve others."""
        plan, state = self.plan, self._state
        if plan.starter:
            return self.is_decided()
        return bool(plan.completed_by) and all(state.processes.have_returned(name) for name in plan.completed_by)

    def is_decided(self) -> bool:
        """Return whether the processes that complete the run have ended."""
        plan, state = self.plan, self._state
        if plan.starter:
            return self._launcher.has_succeeded and len(state.processes.exits) >= len(plan.ranks)
        return bool(plan.completed_by) and all(state.processes.is_over(name) for name in plan.completed_by)

    def by_silence(self) -> list[tuple[float, Source]]:
        """Return the processes that train, each with the time of its last sign of life, the longest silent first."""
        plan = self.plan
        completing = plan.completed_by or tuple(plan.processes)
        heard = [
            (process.heard_at, source)
            for source, process in self._state.processes.running.items()
            if source[0] in completing and not process.has_returned
        ]
        return sorted(heard, key=lambda item: item[0])

    def stalls_at(self) -> float | None:
        """Return when the run counts as stalled unless the longest silent process shows a sign of life; None: never."""
        silent = self.by_silence() if self._stall else None
        return silent[0][0] + self._stall if silent and self._stall else None
