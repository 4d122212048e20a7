"""TensorFlow's own allreduce: ``TF_CONFIG`` for ``tf.distribute.MultiWorkerMirroredStrategy``, on equal workers.

A worker's server starts when its script makes the strategy, so the cluster counts as up once every script runs. Worker
0 is the chief.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command
from muster.strategies.common import workers_only
from muster.strategies.tensorflow import address, task_environment


@dataclass(frozen=True)
class MultiWorker(Strategy):
    """Every worker runs the script, and TensorFlow connects them."""

    name: ClassVar[str] = "multi_worker"
    requires: ClassVar[tuple[str, ...]] = ("tensorflow",)
    ports_per_worker: ClassVar[int] = 1

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the roles: workers only."""
        return workers_only(job, "MultiWorkerMirroredStrategy")

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan that runs the script on every worker, each with its own ``TF_CONFIG``."""
        spec = {"worker": tuple(map(address, members))}
        common = {**facts.environment, "MUSTER_SERVES": "1"}  # a worker's server must last until the last worker's end
        return Plan(
            processes={
                member.name: Process(script_command(job, facts), {**common, **task_environment(member, spec)}, job.cwd)
                for member in members
            },
            completed_by=tuple(member.name for member in members),
            cluster_spec=spec,
        )
