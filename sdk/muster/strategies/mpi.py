"""MPI: one ``mpiexec`` in the session, which logs in to the workers over ssh on port 2222 and starts the ranks there.

Open MPI's and MPICH's ``mpiexec`` have equivalent options with different names. Both start their own daemons on the
workers, which start ``mpi_rank.py`` once per rank; that asks the worker's agent to start the rank.
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
    smallest_network,
    ssh_files,
    workers_only,
)
from muster.strategies.mpiexec import MPIEXEC, Mpiexec, find_mpiexec
from muster.text.arguments import Argument, ArgumentText

LOOPBACK = "lo"
MAY_HANG = (
    "On several machines, ranks of this MPICH may hang in MPI_Finalize, as it is older than 4.2. If the run does not "
    "end: use MPICH 4.2 or later, or Open MPI."
)
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
        network_interface: interface that mpiexec and ranks use; None for one that all workers have in common.
        binding: what each rank is bound to: ``none``, ``core``, ``socket`` or any other value of ``--bind-to``.
        mpi_args: further arguments of mpiexec, such as ``("--mca", "btl_tcp_links", "2")``. They override these
            options, but must not set the number of ranks.
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
    keeps_workers: ClassVar[bool] = False  # a daemon of one attempt may report its end during the next
    needs_ssh: ClassVar[bool] = True
    programs: ClassVar[tuple[Path, ...]] = (LAUNCHER, RANK)

    @property
    def ranks_per_worker(self) -> int:
        """Number of ranks on each worker: ``slots``."""
        return self.slots

    def probe(self) -> MpiFacts:
        """Find the ssh client, and ask ``mpiexec`` which MPI it belongs to. Raise PlatformUnsupported or JobError."""
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
        """Return the ranks, the ``mpiexec`` that starts them, and its files, such as the workers' host keys."""
        interface = self.network_interface or common_interface(members)
        is_open_mpi = facts.probed.mpiexec.flavour == "Open MPI"
        options = self._open_mpi(interface, members, facts) if is_open_mpi else self._mpich(interface, facts)
        python = job.python or facts.session_python
        rank = script_command(job, facts)
        # Where workers have the library elsewhere, its path is only in their PYTHONPATH: the launcher's daemon starts
        # this command, in which no agent has replaced symbols by paths.
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
            notes=(MAY_HANG,) if facts.probed.mpiexec.may_hang and interface != LOOPBACK and len(members) > 1 else (),
        )

    def launcher_for(self, job: Job, facts: Facts) -> Launcher:
        """Return a process that becomes ``mpiexec`` once its arguments are known."""
        prestart = (facts.session_python, "-I", "-S", str(facts.library / LAUNCHER.name))
        as_root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")  # else it refuses
        # MPICH would start ranks on its own host without a login, so that they would not find their agent: AUTOFORK=0
        # prevents that. Open MPI does so, too; with the variables below its ranks find their agent.
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
            # mpiexec finds the run's ssh in its PATH, not by plm_rsh_agent: its daemons get these parameters, too, and
            # crash if they do not find that program.
            "plm_rsh_no_tree_spawn": "1",  # only the session has the key
            "oob_tcp_if_include": self._network(interface, members, facts) or interface,
            "btl_tcp_if_include": interface,
        }
        is_shared = len({member.host for member in members}) < len(members)
        if interface == LOOPBACK or is_shared:  # Open MPI's shared memory crashes if several hosts are one machine
            parameters["btl"] = "tcp,self"
        if any(member.cores < self.slots for member in members):  # waiting ranks would keep others from running
            parameters["mpi_yield_when_idle"] = "1"
        # Daemons that stay attached to their logins end with them.
        return ["--leave-session-attached", *self._defaults(options), *self._defaults(parameters, "--mca")]

    def _own_address(self, interface: str, facts: Facts) -> str:
        """Return the address of an ``mpiexec`` whose machine need not have the workers' interface; else empty.

        It has it where it runs on a worker, on this machine with them, or where the user has named an interface.
        """
        return "" if self.network_interface or interface == LOOPBACK else facts.launcher_host

    def _network(self, interface: str, members: Sequence[Member], facts: Facts) -> str:
        """Return the network of the workers and of such an ``mpiexec``; else empty."""
        address = self._own_address(interface, facts)
        return smallest_network([address, *(member.host for member in members)]) if address else ""

    def _mpich(self, interface: str, facts: Facts) -> list[str]:
        address = self._own_address(interface, facts)
        options = {
            "-f": str(facts.launcher_folder / "hostfile"),
            "-launcher": "ssh",
            "-launcher-exec": str(facts.launcher_folder / "bin" / "ssh"),
            **({"-localhost": address} if address else {"-iface": interface}),
            "-wdir": "/",  # the default is mpiexec's, which workers lack; the agents set that of the ranks
            "-bind-to": self.binding,
        }
        return self._defaults(options)

    def _defaults(self, options: Mapping[str, str], *before: str) -> list[str]:
        """Return the options that the user has not set, as arguments, each after the words ``before``."""
        given = {_spelled_out(word) for word in self.mpi_args}
        left = [item for item in options.items() if _spelled_out(item[0]) not in given]
        return [word for name, value in left for word in (*before, name, value)]


def _spelled_out(word: str) -> str:
    """Return an option with two dashes, as launchers also accept one, and without ``=VALUE``; other words unchanged."""
    return "--" + word.lstrip("-").partition("=")[0] if word.startswith("-") else word
