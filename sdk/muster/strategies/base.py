"""The seam between a job and the shape of the cluster that runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

from muster.job import Job, Member, Plan, Process


class Mpiexec(NamedTuple):
    """The launcher of an MPI: its path, and whose it is, ``Open MPI`` or ``MPICH``."""

    path: str
    flavour: str


@dataclass(frozen=True)
class Facts:
    """What was found out before planning, so that planning needs no I/O.

    Attributes:
        run: id of the run.
        run_dir: the run's folder, which keeps logs and results.
        scratch: the run's scratch folder on the session's side, mode 0700; relative paths of ``Plan.files`` start here.
        library: folder that workers see, to put on the script's ``PYTHONPATH``: a copy of ``muster.training`` and of
            the runner, and the script where it is a function.
        runner: path of the runner that starts scripts in the user's interpreter.
        session_python: the interpreter of the session.
        ssh: path of the ssh client; None where there is none.
        identity: path of the run's private ssh key.
        environment: what every process of the script gets, beside what the worker has by itself.
        known_builds: file that remembers what installations of Horovod were built with (``horovod_driver.py``).
        mpiexec: the session's ``mpiexec``, where the strategy has one.
    """

    run: str
    run_dir: Path
    scratch: Path
    library: Path
    runner: Path
    session_python: str
    ssh: str | None = None
    identity: Path | None = None
    known_builds: Path | None = None
    mpiexec: Mpiexec | None = None
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


class Strategy(Protocol):
    """How workers become a cluster. Pure: the same input gives the same plan, and nothing is read or written."""

    name: ClassVar[str]
    requires: ClassVar[tuple[str, ...]]  # packages that the script's interpreter must have
    needs_ssh: ClassVar[bool]  # whether the workers must run sshd
    ports_per_worker: ClassVar[int]  # free ports that each agent must hold

    def roles(self, job: Job) -> Mapping[str, int]:
        """How many workers of each role, in launch order, such as ``{"ps": 1, "worker": 2}``.

        Raises:
            JobError: the job does not fit the strategy.
        """
        ...

    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Everything that will be started, given what the agents reported."""
        ...

    def warm_driver(self, job: Job, facts: Facts) -> Process | None:
        """What to start in the session at once, to be ready by the time there is a plan; None for no driver.

        It reads one line of JSON with the ``argv`` of ``Plan.driver`` from its input, and then acts as that driver.
        """
        ...
