"""A strategy that needs neither TensorFlow nor Horovod, for tests of everything else: every worker runs the script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command


@dataclass(frozen=True)
class Plain(Strategy):
    """A strategy in which every worker runs the script; with ``listens`` each must listen on its port.

    Parameter servers run it as well, but the run ends without waiting for them.
    """

    name: ClassVar[str] = "plain"
    requires: tuple[str, ...] = ()
    needs_ssh: bool = False
    ports_per_worker: ClassVar[int] = 1
    listens: bool = False

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the numbers of parameter servers, if there are any, and of workers."""
        return {role: count for role, count in {"ps": job.n_ps, "worker": job.n_workers}.items() if count}

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan that runs the script on every member, with the member's port in PORT where it must listen."""

        def env(member: Member) -> dict[str, str]:
            return {**facts.environment, **({"PORT": str(member.ports[0])} if self.listens else {})}

        return Plan(
            processes={member.name: Process(script_command(job, facts), env(member), job.cwd) for member in members},
            servers={member.name: member.ports[0] for member in members} if self.listens else {},
            completed_by=tuple(member.name for member in members if member.role == "worker"),
        )
