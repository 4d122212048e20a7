"""Hold: workers that do nothing by themselves, and are kept for the runs of a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy

WAIT = ("sleep", "2147483647")  # seconds: `sleep infinity` does not exist on every system


class Hold(Strategy):
    """Workers that are launched and held. Only pools use this strategy; users cannot choose it by name."""

    name: ClassVar[str] = "pool"

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the roles: workers only."""
        return {"worker": job.n_workers}

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan in which every worker waits."""
        names = tuple(member.name for member in members)
        return Plan(processes=dict.fromkeys(names, Process(WAIT)), completed_by=names)
