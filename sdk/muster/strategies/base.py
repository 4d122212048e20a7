"""The interface of strategies: how the workers of a job become a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, ClassVar

from muster.agent.places import symbol
from muster.job import SESSION, Job, Launcher, Member, Plan
from muster.text.frozen import frozen

LAUNCHER_FOLDER = "launcher"  # name of the launcher's folder in the scratch folder of the worker that runs it


@frozen
class Facts:
    """Everything that planning needs in addition to the job and its workers, gathered beforehand.

    Attributes:
        run_id: id of the run.
        run_dir: the run's folder, which keeps logs and results.
        scratch: the run's scratch folder on the session's side, mode 0700; relative paths of ``Plan.files`` start here.
        library: folder on the script's ``PYTHONPATH`` that workers can read: a copy of ``muster.training``, of the
            runner and of the strategy's ``programs``, and the script if it is a function.
        runner: path of the runner that starts scripts in the user's interpreter.
        session_python: the interpreter of the session.
        environment: environment of every process of the script, added to its worker's.
        probed: the result of the strategy's ``probe``.
        places: paths in the session of the folders that ``library``, the environment and the job name by symbols,
            because their paths on the workers differ (:mod:`muster.agent.places`); empty if they contain plain paths.
        no_ssh: why nobody can log in to the workers, in words; empty if that is possible as far as is known.
        launcher_at: where a launcher is to run: ``SESSION``, or the name of the worker whose agent runs it.
        session_host: the address at which workers reach the session; empty as long as it is not known.
    """

    run_id: str
    run_dir: Path
    scratch: Path
    library: Path
    runner: Path
    session_python: str
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    probed: Any = None
    places: Mapping[str, str] = field(default_factory=dict)
    no_ssh: str = ""
    launcher_at: str = SESSION
    session_host: str = ""

    @property
    def launcher_host(self) -> str:
        """The address at which workers reach a launcher in the session; empty for others, and for IPv6."""
        return self.session_host if self.launcher_at == SESSION and ":" not in self.session_host else ""

    @property
    def launcher_folder(self) -> Path:
        """Folder that the launcher runs in, with the plan's files: the run's scratch folder, or one in its worker's."""
        return self.scratch if self.launcher_at == SESSION else Path(symbol("scratch"), LAUNCHER_FOLDER)

    @property
    def library_here(self) -> Path:
        """Path of the library in the session."""
        return Path(self.places.get("library", self.library))


class Strategy(ABC):
    """A way in which workers become a cluster.

    All methods except ``probe`` are pure: the same input gives the same plan, and nothing is read or written. If the
    class is a dataclass, its fields are the strategy's options.
    """

    name: ClassVar[str]
    can_do_with_fewer: ClassVar[bool] = False  # whether an attempt may have fewer workers than the run asks for
    keeps_workers: ClassVar[bool] = True  # whether a later attempt may start its processes on the same workers

    @property
    def requires(self) -> tuple[str, ...]:
        """Packages that the script's interpreter must have."""
        return ()

    @property
    def needs_ssh(self) -> bool:
        """True if the workers must run sshd."""
        return False

    @property
    def uses_ssh(self) -> bool:
        """True if the workers are to run sshd if they can; unless ``needs_ssh``, the strategy works without it, too."""
        return self.needs_ssh

    @property
    def ports_per_worker(self) -> int:
        """Number of free ports that each agent must hold."""
        return 0

    @property
    def ranks_per_worker(self) -> int | None:
        """Number of ranks on each worker; None where workers have no ranks."""
        return None

    @property
    def network_interface(self) -> str | None:
        """Network interface that all workers must have; None if they need none, or any that they share."""
        return None

    @property
    def programs(self) -> tuple[Path, ...]:
        """Program files to copy to ``Facts.library``, where the launcher or the workers run them."""
        return ()

    def probe(self) -> Any:
        """Return what only this strategy needs to know about the session; ``plan`` gets it as ``Facts.probed``.

        Called once before anything starts.

        Raises:
            PlatformUnsupported, JobError: the session lacks something that the strategy needs.
        """
        return None

    @abstractmethod
    def roles(self, job: Job) -> Mapping[str, int]:
        """Return the number of workers of each role, in launch order, such as ``{"ps": 1, "worker": 2}``.

        Raises:
            JobError: the job does not fit the strategy.
        """

    def launcher_for(self, job: Job, facts: Facts) -> Launcher | None:
        """Return the program that starts the ranks, without its arguments yet; None if the agents start everything."""
        return None

    @abstractmethod
    def plan(self, job: Job, members: Sequence[Member], facts: Facts) -> Plan:
        """Return everything that will be started, given what the agents reported."""
