"""Horovod: one ``horovodrun`` in the session, which starts the ranks over ssh on port 2222."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.errors import JobError
from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts
from muster.strategies.commands import script_command


@dataclass(frozen=True)
class Horovod:
    """Ring allreduce over Horovod's gloo.

    Args:
        slots: processes (ranks) per worker.
        network_interface: interface that the ranks talk over; None for one that all workers have in common.
        horovodrun_args: further arguments of ``horovodrun``, such as ``("--fusion-threshold-mb", "32")``.
    """

    slots: int = 1
    network_interface: str | None = None
    horovodrun_args: tuple[str, ...] = ()
    name: ClassVar[str] = "horovod"
    requires: ClassVar[tuple[str, ...]] = ("horovod",)
    needs_ssh: ClassVar[bool] = True
    ports_per_worker: ClassVar[int] = 0

    def roles(self, job: Job) -> Mapping[str, int]:
        """Workers only."""
        if job.script is None:
            raise JobError("Horovod needs a script to run.", advice="worker_script= a file, a module or a function")
        if job.script.is_task:
            raise JobError(
                f"{job.script.target} has a run(cluster, server, task_index), which is for parameter servers.",
                advice='strategy="parameter_server", or a script that trains when it is run',
            )
        if job.n_ps:
            raise JobError("Horovod has no parameter servers.", advice='n_ps=0, or strategy="parameter_server"')
        if isinstance(self.slots, bool) or not isinstance(self.slots, int) or self.slots < 1:
            raise JobError(f"slots={self.slots!r}: a worker needs a whole number of processes, at least one.")
        return {"worker": job.n_workers}

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """The ranks, the ``horovodrun`` that starts them, and the files that let it trust nobody else."""
        hosts = ",".join(f"{member.host}:{self.slots}" for member in members)
        size = len(members) * self.slots
        horovodrun = (
            "horovodrun", "--gloo", "--disable-cache",
            "-np", str(size), "-H", hosts, "-p", str(members[0].ssh_port), "-i", str(facts.identity),
            "--network-interfaces", self.network_interface or _common_interface(members), *self.horovodrun_args,
        )  # fmt: skip
        return Plan(
            processes={member.name: Process((), facts.environment, job.cwd) for member in members},
            driver=Process(
                (*horovodrun, *script_command(job, facts)), self._driver_environment(facts), str(facts.scratch)
            ),
            files={
                "known_hosts": "".join(f"[{m.host}]:{m.ssh_port} {m.host_key}\n" for m in members),
                "hostfile": "".join(f"{m.host} slots={self.slots}\n" for m in members),
                "bin/ssh": _ssh_wrapper(facts),
            },
            ranks={index * self.slots + slot: m.name for index, m in enumerate(members) for slot in range(self.slots)},
        )

    def warm_driver(self, job: Job, facts: Facts) -> Process:
        """A ``horovodrun`` that does its imports while the workers start, and reads its arguments from its input."""
        driver = facts.library / "horovod_driver.py"
        known_builds = [str(facts.known_builds)] if facts.known_builds else []
        argv = (job.python or facts.session_python, "-u", str(driver), *known_builds)
        return Process(argv, self._driver_environment(facts), str(facts.scratch))

    @staticmethod
    def _driver_environment(facts: Facts) -> dict[str, str]:
        # horovodrun puts all of its environment on the command lines of ssh, where ps shows it: nothing of the
        # user's may be in it. The ranks get theirs from the agents.
        return {
            "PATH": f"{facts.scratch / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(facts.scratch),
            "LANG": "C.UTF-8",
            "MUSTER_RUN_ID": facts.run,
        }


def _common_interface(members: Sequence[Member]) -> str:
    shared = [name for name in members[0].interfaces if all(name in member.interfaces for member in members)]
    if not shared:
        raise JobError(
            "The workers have no network interface in common: "
            + "; ".join(f"{member.name} has {', '.join(member.interfaces) or 'none'}" for member in members),
            advice='strategy=Horovod(network_interface="...")',
        )
    return shared[0]


def _ssh_wrapper(facts: Facts) -> str:
    """An ``ssh`` ahead of the real one on horovodrun's PATH.

    Of an option given twice ssh takes the first, so these win over horovodrun's ``StrictHostKeyChecking=no``; and the
    user's own configuration and agent stay out of it.
    """
    options = (
        "-F none",
        "-o IdentitiesOnly=yes",
        "-o IdentityAgent=none",
        "-o StrictHostKeyChecking=yes",
        f"-o UserKnownHostsFile={facts.scratch / 'known_hosts'}",
        "-o ConnectTimeout=10",
    )
    return f'#!/bin/sh\nexec {facts.ssh or "/usr/bin/ssh"} {" ".join(options)} "$@"\n'
