"""Horovod: one ``horovodrun``, which starts the ranks over ssh on port 2222, or ranks that the agents start.

In the second case the agents give the ranks the environment that horovodrun would give them, and the first worker's
agent runs Horovod's own rendezvous server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, NamedTuple

from muster.errors import JobError
from muster.job import SESSION, Job, Launcher, Member, Plan, Process
from muster.options.fields import option
from muster.records.folders import muster_home
from muster.security.ssh import ssh_client
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command
from muster.strategies.common import (
    check_slots,
    check_text,
    check_words,
    common_interface,
    find_ssh,
    host_names,
    identity,
    launcher_environment,
    network_interface_option,
    place_ranks,
    reason_against_ssh,
    slots_option,
    ssh_files,
    workers_only,
)
from muster.text.arguments import Argument, ArgumentText

LAUNCHER = Path(__file__).with_name("horovod_launcher.py")
RENDEZVOUS = Path(__file__).with_name("horovod_rendezvous.py")
HOROVODRUN, AGENTS = "horovodrun", "agents"  # values of the option `launcher`
FIRST = "worker-0"  # its agent runs the rendezvous server: all ranks must be able to reach it anyway, to train


class HorovodFacts(NamedTuple):
    """Facts about the session that Horovod needs.

    Attributes:
        ssh: path of its ssh client; None if it has none.
        known_builds: file that lists installations of Horovod known to be built with gloo.
        has_horovod: whether the session's Python has Horovod, to run horovodrun if the workers' interpreters are
            elsewhere.
    """

    ssh: str | None
    known_builds: Path
    has_horovod: bool = True


@dataclass(frozen=True)
class Horovod(Strategy):
    """Ring allreduce over Horovod's gloo.

    Args:
        slots: processes (ranks) per worker.
        launcher: what starts the ranks: ``"horovodrun"`` over ssh on port 2222, or ``"agents"``, which is quicker and
            needs no ssh. None for horovodrun, or the agents if workers have no sshd or it cannot be reached.
        network_interface: interface that the ranks use; None for one that all workers have in common.
        horovodrun_args: further arguments of ``horovodrun``, such as ``("--fusion-threshold-mb", "32")``.
    """

    slots: int = slots_option()
    launcher: str | None = option(
        None, "What starts the ranks: horovodrun or agents", default="agents where there is no sshd", metavar="NAME"
    )
    network_interface: str | None = network_interface_option()
    horovodrun_args: tuple[str, ...] = option((), "Further arguments of horovodrun, in quotes", metavar="WORDS")
    name: ClassVar[str] = "horovod"
    can_do_with_fewer: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("horovod",)

    @property
    def programs(self) -> tuple[Path, ...]:
        """The program files of the launchers that may be used."""
        return {HOROVODRUN: (LAUNCHER,), AGENTS: (RENDEZVOUS,)}.get(self.launcher or "", (LAUNCHER, RENDEZVOUS))

    @property
    def needs_ssh(self) -> bool:
        """True if only horovodrun may start the ranks."""
        return self.launcher == HOROVODRUN

    @property
    def uses_ssh(self) -> bool:
        """True if horovodrun may start the ranks."""
        return self.launcher != AGENTS

    @property
    def ports_per_worker(self) -> int:
        """Number of ports that each agent holds, one for the rendezvous server."""
        return 0 if self.launcher == HOROVODRUN else 1

    @property
    def ranks_per_worker(self) -> int:
        """Number of ranks on each worker: ``slots``."""
        return self.slots

    def probe(self) -> HorovodFacts:
        """Find the ssh client, and whether there is Horovod. Raise PlatformUnsupported if ssh is needed and missing."""
        ssh = find_ssh(self.name) if self.needs_ssh else ssh_client()
        return HorovodFacts(ssh, muster_home() / "horovod-has-gloo", find_spec("horovod") is not None)

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the roles: workers only."""
        check_slots(self.slots)
        check_text("network_interface", self.network_interface)
        check_words("horovodrun_args", self.horovodrun_args)
        if self.launcher not in (None, HOROVODRUN, AGENTS):
            raise JobError(
                ArgumentText(
                    Argument("launcher", self.launcher), f": the ranks are started by {HOROVODRUN!r} or by {AGENTS!r}."
                ),
                advice="leave it out: horovodrun is used wherever workers have an sshd",
            )
        if self.launcher == AGENTS and self.horovodrun_args:
            raise JobError(
                ArgumentText(
                    Argument("horovodrun_args"),
                    " are for horovodrun, which does not start the ranks with ",
                    Argument("launcher", AGENTS),
                    ".",
                ),
                advice="variables in the script's environment, such as HOROVOD_FUSION_THRESHOLD, do the same",
            )
        return workers_only(job, "Horovod")

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return the ranks, and the ``horovodrun`` that starts them or the rendezvous server that they need."""
        if self.launcher == AGENTS:
            return self._by_agents(job, members, facts)
        why_not = _reason_against_horovodrun(members, facts)
        if not why_not:
            return self._by_horovodrun(job, members, facts)
        if self.launcher == HOROVODRUN or self.horovodrun_args:
            raise JobError(
                f"horovodrun cannot start the ranks: {why_not}.", advice=ArgumentText(Argument("launcher", AGENTS))
            )
        note = f"The workers' agents start the ranks, as horovodrun cannot: {why_not}."
        return replace(self._by_agents(job, members, facts), notes=(note,))

    def launcher_for(self, job: Job, facts: Facts) -> Launcher:
        """Return a ``horovodrun`` that does its imports while the workers start, or else the rendezvous server."""
        if self.launcher == AGENTS or _reason_against_horovodrun((), facts):
            return self._rendezvous(job, facts)
        remembers = [str(facts.probed.known_builds)] if facts.launcher_at == SESSION else []
        reached_at = [f"--address={facts.launcher_host}"] if facts.launcher_host else []
        prestart = (_python(job, facts), "-u", str(facts.library / LAUNCHER.name), *reached_at, *remembers)
        folder, where = str(facts.launcher_folder), facts.launcher_at
        return Launcher("horovodrun", prestart, launcher_environment(facts), folder, where=where)

    def _by_horovodrun(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        names = host_names(members)
        options = (
            "--gloo", "--disable-cache",
            "-np", str(len(members) * self.slots), "-H", ",".join(f"{name}:{self.slots}" for name in names),
            *_common_port(members), "-i", str(identity(facts)),
            "--network-interfaces", self._interface(members), *self.horovodrun_args,
        )  # fmt: skip
        rank = script_command(job, facts)
        return Plan(
            processes={member.name: Process(rank, facts.environment, job.cwd) for member in members},
            launcher=replace(self.launcher_for(job, facts), args=(*options, *rank)),
            files={
                **ssh_files(members, facts, facts.probed.ssh),
                "hostfile": "".join(f"{name} slots={self.slots}\n" for name in names),
            },
            ranks=place_ranks(members, self.slots),
        )

    def _by_agents(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        hosts = host_names(members)
        port = members[0].ports[0]
        common = {
            "MUSTER_WORLD_SIZE": str(len(members) * self.slots),
            "HOROVOD_SIZE": str(len(members) * self.slots),
            "HOROVOD_LOCAL_SIZE": str(self.slots),
            "HOROVOD_CROSS_SIZE": str(len(members)),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": members[0].host,
            "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_IFACE": self._interface(members),
            "NCCL_SOCKET_IFNAME": self._interface(members),
        }
        environment = {"PYTHONUNBUFFERED": "1", **facts.environment, **common}
        process = Process(script_command(job, facts), environment, job.cwd)
        args = (members[0].host, str(port), *(f"{host}:{self.slots}" for host in hosts))
        return Plan(
            processes={member.name: process for member in members},
            launcher=replace(self._rendezvous(job, facts), args=args, where=members[0].name),
            ranks=place_ranks(members, self.slots),
            rank_env={
                index * self.slots + slot: {
                    "MUSTER_RANK": str(index * self.slots + slot),
                    "HOROVOD_HOSTNAME": host,
                    "HOROVOD_RANK": str(index * self.slots + slot),
                    "HOROVOD_LOCAL_RANK": str(slot),
                    "HOROVOD_CROSS_RANK": str(index),
                }
                for index, host in enumerate(hosts)
                for slot in range(self.slots)
            },
            servers={members[0].name: port},
            completed_by=tuple(member.name for member in members),
        )

    def _rendezvous(self, job: Job, facts: Facts) -> Launcher:
        """Return Horovod's rendezvous server, which the first worker's agent runs."""
        facts = replace(facts, launcher_at=FIRST)
        prestart = (_python(job, facts), "-u", str(facts.library / RENDEZVOUS.name))
        folder = str(facts.launcher_folder)
        return Launcher("rendezvous", prestart, launcher_environment(facts), folder, where=FIRST, starts_ranks=False)

    def _interface(self, members: Sequence[Member]) -> str:
        return self.network_interface or common_interface(members)


def _reason_against_horovodrun(members: Sequence[Member], facts: Facts) -> str:
    """Return, in words, why horovodrun cannot start the ranks; empty if it can, as far as is known."""
    if facts.launcher_at == SESSION and facts.places and not facts.probed.has_horovod:
        return f"{facts.session_python}, which would run it, has no Horovod"
    return reason_against_ssh(members, facts, facts.probed.ssh)


def _python(job: Job, facts: Facts) -> str:
    """Return the launcher's interpreter: the job's, or the session's if only the workers have the job's."""
    if facts.launcher_at == SESSION and facts.places:
        return facts.session_python
    return job.python or facts.session_python


def _common_port(members: Sequence[Member]) -> tuple[str, ...]:
    """Return the option for the workers' ssh port; none if the ports differ: ``ssh_config`` has the port of each."""
    ports = {member.ssh_port for member in members}
    return ("-p", str(ports.pop())) if len(ports) == 1 else ()
