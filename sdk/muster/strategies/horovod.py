"""Horovod: one ``horovodrun`` in the session, which starts the ranks over ssh on port 2222."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from muster.job import Job, Launcher, Member, Plan, Process
from muster.options.fields import option
from muster.records.runs import muster_home
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command
from muster.strategies.launching import (
    check_slots,
    check_text,
    check_words,
    common_interface,
    find_ssh,
    identity,
    launcher_environment,
    network_interface_option,
    place_ranks,
    slots_option,
    ssh_files,
    workers_only,
)

LAUNCHER = Path(__file__).with_name("horovod_launcher.py")


class HorovodFacts(NamedTuple):
    """The session's ssh client, and the file that remembers what installations of Horovod were built with."""

    ssh: str
    known_builds: Path


@dataclass(frozen=True)
class Horovod(Strategy):
    """Ring allreduce over Horovod's gloo.

    Args:
        slots: processes (ranks) per worker.
        network_interface: interface that the ranks talk over; None for one that all workers have in common.
        horovodrun_args: further arguments of ``horovodrun``, such as ``("--fusion-threshold-mb", "32")``.
    """

    slots: int = slots_option()
    network_interface: str | None = network_interface_option()
    horovodrun_args: tuple[str, ...] = option((), "Further arguments of horovodrun, in quotes", metavar="WORDS")
    name: ClassVar[str] = "horovod"
    requires: ClassVar[tuple[str, ...]] = ("horovod",)
    needs_ssh: ClassVar[bool] = True
    programs: ClassVar[tuple[Path, ...]] = (LAUNCHER,)

    @property
    def ranks_per_worker(self) -> int:
        """Number of slots."""
        return self.slots

    def probe(self) -> HorovodFacts:
        """Find the ssh client. Raises PlatformUnsupported."""
        return HorovodFacts(find_ssh(self.name), muster_home() / "horovod-has-gloo")

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the roles: workers only."""
        check_slots(self.slots)
        check_text("network_interface", self.network_interface)
        check_words("horovodrun_args", self.horovodrun_args)
        return workers_only(job, "Horovod")

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """The ranks, the ``horovodrun`` that starts them, and the files that let it trust nobody else."""
        hosts = ",".join(f"{member.host}:{self.slots}" for member in members)
        interface = self.network_interface or common_interface(members)
        options = (
            "--gloo", "--disable-cache",
            "-np", str(len(members) * self.slots), "-H", hosts,
            *_common_port(members), "-i", str(identity(facts)),
            "--network-interfaces", interface, *self.horovodrun_args,
        )  # fmt: skip
        rank = script_command(job, facts)
        return Plan(
            processes={member.name: Process(rank, facts.environment, job.cwd) for member in members},
            launcher=replace(self.launcher(job, facts), args=(*options, *rank)),
            files={
                **ssh_files(members, facts, facts.probed.ssh),
                "hostfile": "".join(f"{member.host} slots={self.slots}\n" for member in members),
            },
            ranks=place_ranks(members, self.slots),
        )

    def launcher(self, job: Job, facts: Facts) -> Launcher:
        """A ``horovodrun`` that does its imports while the workers start."""
        python = job.python or facts.session_python
        prestart = (python, "-u", str(facts.library / LAUNCHER.name), str(facts.probed.known_builds))
        return Launcher("horovodrun", prestart, launcher_environment(facts), str(facts.scratch))


def _common_port(members: Sequence[Member]) -> tuple[str, ...]:
    """The option for the workers' ssh port. Where it differs there is none, and ``ssh`` knows the port of each."""
    ports = {member.ssh_port for member in members}
    return ("-p", str(ports.pop())) if len(ports) == 1 else ()
