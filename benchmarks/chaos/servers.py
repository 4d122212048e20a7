"""Parameter servers without TensorFlow, so that they start at once: a server, and workers that talk only to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command


@dataclass(frozen=True)
class Servers(Strategy):
    """Every worker and server runs the script, which finds its number in ``CHAOS_NUMBER``; the workers complete it."""

    name: ClassVar[str] = "servers"

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the numbers of servers and workers; servers are first, so that the first of them is number 0."""
        return {"ps": job.n_ps, "worker": job.n_workers}

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan that runs the script on every member."""
        return Plan(
            processes={
                member.name: Process(
                    script_command(job, facts),
                    {**facts.environment, "CHAOS_NUMBER": str(number), "CHAOS_SIZE": str(len(members))},
                    job.cwd,
                )
                for number, member in enumerate(members)
            },
            completed_by=tuple(member.name for member in members if member.role == "worker"),
        )
