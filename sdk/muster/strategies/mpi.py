"""MPI: one ``mpiexec`` in the session, which logs in to the workers over ssh on port 2222 and starts the ranks there.

Open MPI's and MPICH's mean the same and say it differently. Both start daemons of their own on the workers, which start
``mpi_rank.py`` once per rank; that has the worker's agent start the rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, NamedTuple

from muster.agent.places import symbol
from muster.errors import JobError
from muster.job import SESSION, Job, Launcher, Member, Plan, Process
from muster.options.fields import option
from muster.strategies.base import Facts, Strategy
from muster.strategies.commands import script_command
from muster.strategies.common import (
    check_slots,
    check_text,
    check_words,
    common_interface,
    find_ssh,
    host_names,
    launcher_environment,
    network_interface_option,
    place_ranks,
    slots_option,
    ssh_files,
    workers_only,
)
from muster.strategies.mpiexec import MPIEXEC, Mpiexec, find_mpiexec
from muster.text.arguments import Argument, ArgumentText

LOOPBACK = "lo"
NUMBER_OF_RANKS = frozenset({"--n", "--np", "--c"})


LAUNCHER = Path(__file__).with_name("exec_launcher.py")
RANK = Path(__file__).parents[1] / "agent" / "mpi_rank.py"


class MpiFacts(NamedTuple):
    """The session's ssh client and its ``mpiexec``."""

    ssh: str
    mpiexec: Mpiexec


@dataclass(frozen=True)
class MPI(Strategy):
    """Any program under ``mpiexec``, of Open MPI or of MPICH.

    Args:
        slots: processes (ranks) per worker.
        mpiexec: name or path of the launcher, such as ``mpirun.mpich``. The workers need the same MPI.
        network_interface: interface that mpiexec and ranks talk over; None for one that all workers have in common.
        binding: what each rank is bound to: ``none``, ``core``, ``socket`` or whatever else ``--bind-to`` takes.
        mpi_args: further arguments of mpiexec, such as ``("--mca", "btl_tcp_links", "2")``. They win over these,
            but do not say how many ranks there are.
    """

    slots: int = slots_option()
    mpiexec: str = option(MPIEXEC, "Launcher of the MPI to use", metavar="PATH")
    network_interface: str | None = network_interface_option()
    binding: str = option("none", "What each rank is bound to, such as core", metavar="WHAT")
    mpi_args: tuple[str, ...] = option(
        (), "Further arguments of mpiexec, in quotes, such as '--mca btl_tcp_links 2'", metavar="WORDS"
    )
    name: ClassVar[str] = "mpi"
    can_do_with_fewer: ClassVar[bool] = True
    keeps_workers: ClassVar[bool] = False  # a daemon of the attempt before may tell of its end in the next
    needs_ssh: ClassVar[bool] = True
    programs: ClassVar[tuple[Path, ...]] = (LAUNCHER, RANK)

    @property
    def ranks_per_worker(self) -> int:
        """Number of slots."""
        return self.slots

    def probe(self) -> MpiFacts:
        """Find the ssh client, and ask ``mpiexec`` which MPI it belongs to. Raises PlatformUnsupported, JobError."""
        mpiexec = find_mpiexec(self.mpiexec)
        return MpiFacts(find_ssh(self.name), mpiexec)

    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the roles: workers only."""
        check_slots(self.slots)
        check_text("mpiexec", self.mpiexec)
        check_text("network_interface", self.network_interface)
        check_text("binding", self.binding)
        check_words("mpi_args", self.mpi_args)
        if any(_spelled_out(word) in NUMBER_OF_RANKS for word in self.mpi_args):
            raise JobError(
                ArgumentText(
                    Argument("mpi_args"),
                    f" is {self.mpi_args!r}, which says how many ranks there are: that follows from workers and slots.",
                ),
                advice=ArgumentText(Argument("n_workers", ""), " and ", Argument("slots", "")),
            )
        return workers_only(job, "MPI")

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """The ranks, the ``mpiexec`` that starts them, and the files that let it trust nobody else."""
        interface = self.network_interface or common_interface(members)
        is_open_mpi = facts.probed.mpiexec.flavour == "Open MPI"
        options = self._open_mpi(interface, members, facts) if is_open_mpi else self._mpich(interface, facts)
        python = job.python or facts.session_python
        rank = script_command(job, facts)
        # Only the workers know where their library is, and only as what they import from: their launcher's daemon
        # starts this, which no agent has put paths into.
        program = ("-S", "-m", RANK.stem) if facts.places else ("-I", "-S", str(facts.library / RANK.name))
        starter = (python, *program, *rank)
        size = str(len(members) * self.slots)
        environment = {**facts.environment, "MUSTER_WORLD_SIZE": size}  # not every launcher tells the ranks
        if interface == LOOPBACK and "UCX_NET_DEVICES" not in job.env:
            environment["UCX_NET_DEVICES"] = LOOPBACK  # else MPICH's ranks listen on every interface
        return Plan(
            processes={member.name: Process(rank, environment, job.cwd) for member in members},
            launcher=replace(self.launcher_for(job, facts), args=("-n", size, *options, *self.mpi_args, *starter)),
            files={
                **ssh_files(members, facts, facts.probed.ssh),
                "hostfile": "".join(
                    f"{name} slots={self.slots}\n" if is_open_mpi else f"{name}:{self.slots}\n"
                    for name in host_names(members)
                ),
            },
            ranks=place_ranks(members, self.slots),
        )

    def launcher_for(self, job: Job, facts: Facts) -> Launcher:
        """A process that becomes ``mpiexec`` once there are arguments."""
        prestart = (facts.session_python, "-I", "-S", str(facts.library / LAUNCHER.name))
        as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")  # else it refuses
        # MPICH would start the ranks on its own host without a login, and so without their agent. Open MPI does: there
        # this is how they find it.
        own = {"TMPDIR": str(facts.launcher_folder), "HYDRA_LAUNCHER_AUTOFORK": "0"}
        if facts.launcher_at != SESSION and facts.probed.mpiexec.flavour == "Open MPI":
            own |= {"PYTHONPATH": symbol("library"), "MUSTER_SCRATCH": symbol("scratch")}
        env = {**launcher_environment(facts), **as_root, **own}
        return Launcher(facts.probed.mpiexec.path, prestart, env, str(facts.launcher_folder), where=facts.launcher_at)

    def _open_mpi(self, interface: str, members: Sequence[Member], facts: Facts) -> list[str]:
        options = {
            "--hostfile": str(facts.launcher_folder / "hostfile"),
            "--map-by": "slot",
            "--bind-to": self.binding,
            "--wdir": "/",
        }
        parameters = {
            # It finds the run's ssh in its PATH. Its daemons get these, too, and crash where they do not find an agent.
            "plm_rsh_no_tree_spawn": "1",  # only the session has the key
            "oob_tcp_if_include": interface,
            "btl_tcp_if_include": interface,
        }
        is_shared = len({member.host for member in members}) < len(members)
        if interface == LOOPBACK or is_shared:  # its shared memory crashes between hosts that are really one machine
            parameters["btl"] = "tcp,self"
        if any(member.cores < self.slots for member in members):  # ranks that wait would keep others from running
            parameters["mpi_yield_when_idle"] = "1"
        # Its daemons end with their logins where they stay attached to them.
        return ["--leave-session-attached", *self._defaults(options), *self._defaults(parameters, "--mca")]

    def _mpich(self, interface: str, facts: Facts) -> list[str]:
        options = {
            "-f": str(facts.launcher_folder / "hostfile"),
            "-launcher": "ssh",
            "-launcher-exec": str(facts.launcher_folder / "bin" / "ssh"),
            "-iface": interface,
            "-wdir": "/",  # else that of mpiexec, which workers do not have; ranks start where the agents say
            "-bind-to": self.binding,
        }
        return self._defaults(options)

    def _defaults(self, options: Mapping[str, str], *before: str) -> list[str]:
        """Return these options as arguments, each behind the words ``before``, but for those that the user has set."""
        given = {_spelled_out(word) for word in self.mpi_args}
        left = [item for item in options.items() if _spelled_out(item[0]) not in given]
        return [word for name, value in left for word in (*before, name, value)]


def _spelled_out(word: str) -> str:
    """An option with two dashes, where launchers also take one, and without a value behind ``=``; other words as is."""
    return "--" + word.lstrip("-").partition("=")[0] if word.startswith("-") else word
