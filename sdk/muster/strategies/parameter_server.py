"""TensorFlow parameter servers: a ClusterSpec over the workers' addresses, and a server for each task.

There are three forms, depending on the script. A task, ``run(cluster, server, task_index)``, runs on every worker
beside its server (TensorFlow 1's way; the run ends with its workers). A program runs on a separate chief, which
coordinates workers that only serve (TensorFlow 2's ``ClusterCoordinator``; the run ends with the chief). Without a
script all workers only serve, until the session stops them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.errors import JobError
from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command, server_command
from muster.strategies.tensorflow import address, task_environment
from muster.text.arguments import Argument, ArgumentText


@dataclass(frozen=True)
class ParameterServer(Strategy):
    """Parameter servers (``ps``) hold the variables, workers train."""

    name: ClassVar[str] = "parameter_server"
    requires: ClassVar[tuple[str, ...]] = ("tensorflow",)
    ports_per_worker: ClassVar[int] = 1

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return ``ps`` before ``worker``, so that servers start first; with a ``chief`` if the script is a program."""
        has_chief = job.script is not None and not job.script.is_task
        if has_chief and job.n_ps < 1:
            raise JobError(
                ArgumentText(
                    "The strategy of parameter servers, the default, needs at least one server to run "
                    f"{job.script.target if job.script else ''}; ",
                    Argument("n_ps"),
                    " is 0.",
                ),
                advice=ArgumentText(
                    Argument("strategy", "processes"),
                    ", which runs it on every worker as it is; ",
                    Argument("n_ps", 1),
                    " for a ClusterCoordinator",
                ),
            )
        counts = {"chief": int(has_chief), "ps": job.n_ps, "worker": job.n_workers}
        return {role: count for role, count in counts.items() if count}

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return a plan with one process on each worker, each with its own ``TF_CONFIG``."""
        spec = {role: tuple(address(member) for member in members if member.role == role) for role in self.roles(job)}
        script_role = "chief" if "chief" in spec else "worker"
        return Plan(
            processes={member.name: self._process(job, member, spec, script_role, facts) for member in members},
            servers={member.name: member.ports[0] for member in members if member.role != "chief"},
            completed_by=tuple(member.name for member in members if member.role == script_role) if job.script else (),
            restarted_alone=tuple(member.name for member in members if self._restarts_alone(member, script_role)),
            cluster_spec=spec,
        )

    @staticmethod
    def _restarts_alone(member: Member, script_role: str) -> bool:
        """Return whether others can go on without a member: not without a server, or the task that makes variables."""
        return member.role == "worker" and (script_role == "chief" or member.index > 0)

    def _process(
        self, job: Job, member: Member, spec: Mapping[str, Sequence[str]], script_role: str, facts: Facts
    ) -> Process:
        runs_script = job.script is not None and member.role == script_role
        env = task_environment(member, spec)
        if runs_script and job.script is not None and job.script.is_task:
            env["MUSTER_TASK"] = "1"
        if script_role == "chief":
            env["GRPC_FAIL_FAST"] = "use_caller"  # else the coordinator waits forever for a server that is gone
        command = script_command(job, facts) if runs_script else server_command(job, facts)
        return Process(command, {**facts.environment, **env}, job.cwd)
