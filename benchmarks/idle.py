"""A strategy in which every worker runs ``sleep``, so that a benchmark measures Muster's own time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy


@dataclass(frozen=True)
class Idle(Strategy):
    """A strategy whose workers only wait for the end of the run."""

    name: ClassVar[str] = "idle"
    requires: tuple[str, ...] = ()
    needs_ssh: bool = False
    ports_per_worker: ClassVar[int] = 0

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the number of workers: there are no other roles."""
        return {"worker": job.n_workers}

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan that starts ``sleep`` on every worker, as a rank; none of these processes ends the run."""
        return Plan(
            processes={member.name: Process(("/bin/sleep", "infinity")) for member in members},
            ranks={rank: member.name for rank, member in enumerate(members)},
        )
