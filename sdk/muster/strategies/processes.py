"""Processes: the agents start the ranks themselves, without MPI or ssh. For machines with several GPUs, and laptops.

The environment tells each rank its number and the number of ranks, in Muster's variables and in those of PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command
from muster.strategies.common import check_slots, place_ranks, slots_option, workers_only


@dataclass(frozen=True)
class Processes(Strategy):
    """Plain processes, which are told their rank, the number of ranks, and an address of rank 0's worker.

    Args:
        slots: processes (ranks) per worker. Each sees one of the worker's GPUs; if there are fewer, ranks share them.
    """

    slots: int = slots_option()
    name: ClassVar[str] = "processes"
    can_do_with_fewer: ClassVar[bool] = True
    ports_per_worker: ClassVar[int] = 1

    @property
    def ranks_per_worker(self) -> int:
        """Number of ranks on each worker: ``slots``."""
        return self.slots

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the roles: workers only."""
        check_slots(self.slots)
        return workers_only(job, "The strategy of plain processes")

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan that runs the script on every worker, once for each slot."""
        command = script_command(job, facts)
        return Plan(
            processes={member.name: Process(command, facts.environment, job.cwd) for member in members},
            ranks=place_ranks(members, self.slots),
            rank_env={
                index * self.slots + slot: self._place(index, slot, members)
                for index in range(len(members))
                for slot in range(self.slots)
            },
            completed_by=tuple(member.name for member in members),
        )

    def _place(self, index: int, slot: int, members: Sequence[Member]) -> dict[str, str]:
        rank, size, gpus = str(index * self.slots + slot), str(len(members) * self.slots), members[index].gpus
        env = {
            "MUSTER_RANK": rank,
            "MUSTER_LOCAL_RANK": str(slot),
            "MUSTER_WORLD_SIZE": size,
            "RANK": rank,
            "LOCAL_RANK": str(slot),
            "WORLD_SIZE": size,
            "LOCAL_WORLD_SIZE": str(self.slots),
            "MASTER_ADDR": members[0].host,
            "MASTER_PORT": str(members[0].ports[0]),
        }
        return {**env, "CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]} if gpus else env
