"""Horovod: one ``horovodrun`` in the session, which starts the ranks over ssh on port 2222."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from muster.job import Job, Member, Plan, Process
from muster.strategies.base import Facts
from muster.strategies.commands import script_command
from muster.strategies.launching import (
    check_slots,
    check_text,
    check_words,
    common_interface,
    driver_environment,
    place_ranks,
    ssh_files,
    workers_only,
)


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
        check_slots(self.slots)
        check_text("network_interface", self.network_interface)
        check_words("horovodrun_args", self.horovodrun_args)
        return workers_only(job, "Horovod")

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """The ranks, the ``horovodrun`` that starts them, and the files that let it trust nobody else."""
        hosts = ",".join(f"{member.host}:{self.slots}" for member in members)
        interface = self.network_interface or common_interface(members)
        horovodrun = (
            "horovodrun", "--gloo", "--disable-cache",
            "-np", str(len(members) * self.slots), "-H", hosts,
            *_common_port(members), "-i", str(facts.identity),
            "--network-interfaces", interface, *self.horovodrun_args,
        )  # fmt: skip
        rank = script_command(job, facts)
        return Plan(
            processes={member.name: Process(rank, facts.environment, job.cwd) for member in members},
            driver=Process((*horovodrun, *rank), driver_environment(facts), str(facts.scratch)),
            files={
                **ssh_files(members, facts),
                "hostfile": "".join(f"{member.host} slots={self.slots}\n" for member in members),
            },
            ranks=place_ranks(members, self.slots),
        )

    def warm_driver(self, job: Job, facts: Facts) -> Process:
        """A ``horovodrun`` that does its imports while the workers start, and reads its arguments from its input."""
        driver = facts.library / "horovod_driver.py"
        known_builds = [str(facts.known_builds)] if facts.known_builds else []
        argv = (job.python or facts.session_python, "-u", str(driver), *known_builds)
        return Process(argv, driver_environment(facts), str(facts.scratch))


def _common_port(members: Sequence[Member]) -> tuple[str, ...]:
    """The option for the workers' ssh port. Where it differs there is none, and ``ssh`` knows the port of each."""
    ports = {member.ssh_port for member in members}
    return ("-p", str(ports.pop())) if len(ports) == 1 else ()
