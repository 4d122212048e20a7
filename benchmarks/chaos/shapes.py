"""The clusters that faults are injected into: their strategies, numbers of ranks, and names of workers."""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from muster.strategies.base import Strategy
from muster.strategies.horovod import Horovod
from muster.strategies.mpi import MPI as MpiStrategy
from muster.strategies.parameter_server import ParameterServer
from muster.strategies.processes import Processes

from benchmarks.chaos.servers import Servers

MPI = ("openmpi", "mpich")
SERVERS = ("servers", "parameter_server")  # the first without TensorFlow
HEAVY = ("horovod", "parameter_server")  # import TensorFlow in every process
AMONG = {"horovod": 20, "parameter_server": 33}  # one fault in so many has this strategy, if there are lighter ones
AROUND = ("slow link", "cut link", "clock", "clocks apart", "full logs")
UNFIT = {
    "processes": ("launcher", "sshd"),
    "servers": ("launcher", "sshd", "slow link", "cut link"),
    "parameter_server": ("launcher", "sshd", "hang", "memory", "disk", *AROUND),
    "horovod": AROUND,
}


@dataclass(frozen=True)
class Shape:
    """The cluster of a case.

    Attributes:
        strategy: name of the strategy, or of the MPI.
        workers: number of workers, including servers and the chief.
        slots: ranks on each worker.
    """

    strategy: str
    workers: int
    slots: int

    @property
    def ranks(self) -> int:
        """Number of processes that faults may hit. They are numbered even if the strategy has no ranks."""
        return self.workers * self.slots

    @property
    def has_launcher(self) -> bool:
        """True if a launcher starts the ranks, over ssh."""
        return self.strategy in (*MPI, "horovod")

    @property
    def topologies(self) -> Sequence[str]:
        """The ways in which its ranks may talk to each other."""
        only = {"horovod": "allreduce", "servers": "servers", "parameter_server": "coordinator"}
        return (only[self.strategy],) if self.strategy in only else ("ring", "all")

    @property
    def names(self) -> Sequence[str]:
        """Names of the workers."""
        if self.strategy == "parameter_server":
            return ("chief-0", "ps-0", *(f"worker-{index}" for index in range(self.workers - 2)))
        servers = ("ps-0",) if self.strategy == "servers" else ()
        return (*servers, *(f"worker-{index}" for index in range(self.workers - len(servers))))

    @property
    def ready(self) -> int:
        """Number of processes that say when they have met the others."""
        return 1 if self.strategy == "parameter_server" else self.ranks

    def allows(self, family: str) -> bool:
        """Return whether faults of a family make sense in it."""
        return family not in UNFIT.get(self.strategy, ())

    def worker(self, rank: int) -> str:
        """Return the name of the worker with that rank."""
        return self.names[rank // self.slots]

    @property
    def hosts(self) -> Sequence[str]:
        """Two hosts that have a slot for each worker between them; the first half of the workers is on the first."""
        return f"h1:{self.workers - self.workers // 2}", f"h2:{self.workers // 2}"

    def host_of(self, worker: str) -> str:
        """Return the one of these hosts that a worker is on."""
        return "h1" if self.names.index(worker) < self.workers - self.workers // 2 else "h2"

    def source(self, rank: int) -> tuple[str, int | None]:
        """Return the worker and rank that an error names for the process of that number."""
        return self.worker(rank), None if self.strategy in SERVERS else rank

    def number(self, worker: str, rank: int | None) -> int:
        """Return the number of a process, by its worker and rank."""
        return self.names.index(worker) if rank is None else rank

    def runs_script(self, rank: int) -> int:
        """Return this rank if its process runs the script, and so can fail by itself, or else a rank that does."""
        return 0 if self.strategy == "parameter_server" else rank

    def options(self, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Return arguments of ``run_cluster`` for this cluster; with TensorFlow they widen the limits in ``wanted``."""
        if self.strategy in SERVERS:
            chiefs = int(self.strategy == "parameter_server")
            return {"n_ps": 1, "n_workers": self.workers - 1 - chiefs, "strategy": self.made()}
        narrow = {"stall_seconds": 40.0, "memory": 1.5} if self.strategy in HEAVY else {}
        wide = {name: value for name, value in narrow.items() if name in wanted}
        return {"n_workers": self.workers, "strategy": self.made(), **wide}

    def made(self) -> Strategy:
        """Return the strategy object."""
        if self.strategy in MPI:
            return MpiStrategy(slots=self.slots, mpiexec=f"mpiexec.{self.strategy}")
        if self.strategy == "processes":
            return Processes(slots=self.slots)
        if self.strategy == "horovod":
            return Horovod(slots=self.slots)
        return Servers() if self.strategy == "servers" else ParameterServer()

    def __str__(self) -> str:
        return f"{self.strategy}, {self.workers}x{self.slots}"


ALL = ("processes", "servers", *MPI, *HEAVY)


@functools.cache
def available() -> list[str]:
    """Return the names of the strategies whose programs and packages this machine has."""
    found = ["processes", "servers", *(name for name in MPI if shutil.which(f"mpiexec.{name}"))]
    packages = {"horovod": "horovod", "parameter_server": "tensorflow"}
    return [*found, *(name for name, package in packages.items() if find_spec(package))]


def light(strategies: Sequence[str]) -> Sequence[str]:
    """Return those of the strategies that do without TensorFlow, or all of them if none does."""
    return [name for name in strategies if name not in HEAVY] or strategies


def choose_shape(dice: random.Random, number: int, strategies: Sequence[str], seed: int) -> tuple[Shape, int]:
    """Return the cluster of a case, and the case's number among those of the same weight, which chooses its fault."""
    strategy, turn = dice.choice(light(strategies)), number
    is_light = strategy not in HEAVY
    for name in HEAVY:
        among = AMONG[name]
        if is_light and name in strategies and number % among == among // 2:
            strategy, turn = name, number // among + seed
    if strategy in HEAVY:
        return Shape(strategy, 3 if strategy == "parameter_server" else 2, 1), turn
    if strategy == "servers":
        return Shape(strategy, dice.choice([2, 3, 4]), 1), turn
    workers, slots = dice.choice([(2, 1), (3, 1), (4, 1), (2, 2)])
    return Shape(strategy, workers, slots), turn
