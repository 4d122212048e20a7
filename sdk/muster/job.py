"""The plain data that everything else passes around: what to run, on which workers, as which processes.

Frozen dataclasses. Nothing here does anything but check itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

from muster.errors import JobError, ResourceError
from muster.text.arguments import Argument, ArgumentText
from muster.text.shown import Table

LIKELY_MEGABYTES = 256  # so much memory, where there is less, is meant in MB
LEAST_MEMORY = 0.02  # GB
SESSION = "session"  # where a launcher runs that no worker runs
SERVER = "ps"  # the role of parameter servers


class Status(str, Enum):
    """State of a worker. It only ever moves forward."""

    SCHEDULING = "scheduling"  #: it waits until its platform has a place for it
    STARTING = "starting"  #: it has a place, and its container or its agent is being started
    RUNNING = "running"  #: it runs
    STOPPING = "stopping"  #: it has been told to stop, and has not ended yet
    SUCCEEDED = "succeeded"  #: it has ended by itself, with status 0
    FAILED = "failed"  #: it has ended in any other way that nobody asked for
    STOPPED = "stopped"  #: it has ended because it was told to
    TIMEDOUT = "timedout"  #: its platform ended it for the time that it took

    @property
    def is_final(self) -> bool:
        """True if the worker has ended."""
        return self in (Status.SUCCEEDED, Status.FAILED, Status.STOPPED, Status.TIMEDOUT)

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Resources:
    """Resources of one worker: ``cpu`` in cores, ``memory`` in GB (10**9 bytes), ``gpu`` as a number of devices."""

    cpu: float = 1
    memory: float = 2
    gpu: int = 0

    def check(self, prefix: str = "") -> None:
        """Raise ResourceError where nobody could be given these; the arguments' names begin with ``prefix``."""
        for name, amount in ((f"{prefix}cpu", self.cpu), (f"{prefix}memory", self.memory)):
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < float("inf"):
                raise ResourceError(
                    ArgumentText(Argument(name), f" is {amount!r}; it must be a number greater than 0."),
                    advice=_as_amount(name, amount),
                )
        if self.memory < LEAST_MEMORY:
            raise ResourceError(
                ArgumentText(
                    Argument(f"{prefix}memory"), f" is {self.memory:g} GB, less than a Python that does nothing needs."
                ),
                advice=ArgumentText(
                    Argument(f"{prefix}memory", ""), f" at least {LEAST_MEMORY:g}, in GB; TensorFlow takes about 0.5"
                ),
            )
        if isinstance(self.gpu, bool) or not isinstance(self.gpu, int) or self.gpu < 0:
            raise ResourceError(
                ArgumentText(
                    Argument(f"{prefix}nvidia_gpu"), f" is {self.gpu!r}; it must be a whole number of at least 0."
                )
            )

    def but(self, cpu: float | None, memory: float | None, gpu: int | None) -> Resources:
        """Return these resources with other amounts where they are not None."""
        return Resources(
            self.cpu if cpu is None else cpu,
            self.memory if memory is None else memory,
            self.gpu if gpu is None else gpu,
        )

    @property
    def memory_bytes(self) -> int:
        """The memory in bytes."""
        return int(self.memory * 1e9)


def memory_argument(worker: str | None) -> str:
    """Return the name of the argument that says how much memory a worker is given.

    >>> memory_argument("ps-0"), memory_argument("worker-1")
    ('ps_memory', 'memory')
    """
    return "ps_memory" if worker and worker.rpartition("-")[0] == SERVER else "memory"


def at_most(name: str, asked: float, most: float, worker: str | None = None) -> ArgumentText:
    """Return what to ask for in place of more than there is.

    Args:
        name: ``cpu`` or ``memory``.
        asked: what was asked for.
        most: what there is.
        worker: whom it is for; None where that is any.

    >>> at_most("cpu", 64, 2), at_most("memory", 64, 25.37, "ps-0"), at_most("memory", 4096, 25.37)
    ('cpu=2 at most', 'ps_memory=25.3 at most', 'memory=4: it is in GB')
    """
    argument = f"ps_{name}" if memory_argument(worker) == "ps_memory" else name
    meant = asked / (1024 if asked % 1024 == 0 else 1000)
    if name == "memory" and asked >= LIKELY_MEGABYTES and meant <= most:
        return ArgumentText(Argument(argument, meant), ": it is in GB")
    return ArgumentText(Argument(argument, math.floor(most * 10) / 10), " at most")


def _as_amount(name: str, text: object) -> str | None:
    """Return what to give in place of a text such as ``"4GB"``; None where it is none."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(gb?)?\s*", str(text), re.IGNORECASE)
    if not found or not isinstance(text, str) or not float(found[1]):
        return None
    return ArgumentText(Argument(name, float(found[1])), ", in GB" if name.endswith("memory") else "")


@dataclass(frozen=True)
class Script:
    """The user's script, module, function or program.

    Attributes:
        kind: ``file``, ``module``, ``function``, or ``executable`` for a file that is no Python.
        target: a path, a module's name, or the function's name for display.
        is_task: whether it is a ``run(cluster, server, task_index)`` rather than a program of its own.
        pickled: the function, pickled by value; empty for files and modules.
        cells: names and texts of the notebook's cells that it comes from, by the names of their files, pickled.
    """

    kind: str
    target: str
    is_task: bool = False
    pickled: bytes = field(default=b"", repr=False)
    cells: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """A short name. Of a file it has neither folder nor ending, of a module or function only the last part."""
        if self.kind in ("file", "executable"):
            return Path(self.target).stem
        return self.target.rpartition(".")[2].strip("<>")


@dataclass(frozen=True)
class Job:
    """A job of the user's: a script, on how many workers, with what.

    Attributes:
        script: what to run; None starts servers only.
        n_workers: number of workers that train, at least 1.
        n_ps: number of parameter servers.
        resources: what each worker is given.
        ps_resources: what each parameter server is given; None for the same.
        args: command-line arguments of the script.
        env: environment variables of the script, beside those of the session. Their values are never recorded.
        python: path of the interpreter that runs the script.
        cwd: working directory of the script.
        name: what to call the run.
    """

    script: Script | None
    n_workers: int
    n_ps: int = 0
    resources: Resources = Resources()
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    python: str = ""
    cwd: str = ""
    name: str = ""
    ps_resources: Resources | None = None

    def resources_of(self, role: str) -> Resources:
        """Return what each worker of a role is given."""
        return self.ps_resources if role == SERVER and self.ps_resources is not None else self.resources


@dataclass(frozen=True)
class Process:
    """One process to start. ``env`` comes on top of the environment of whoever starts it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


@dataclass(frozen=True)
class SessionAddress:
    """Address of a session, and what an agent needs to reach it.

    Attributes:
        host, port: what it dials.
        certificate: what to pin (PEM).
        token: proves that it is this generation of this worker.
        lease_seconds: how long it acts without the session before it ends everything; 0: not at all.
    """

    host: str
    port: int
    certificate: str = field(repr=False)
    token: str = field(repr=False)
    lease_seconds: float = 0.0


@dataclass(frozen=True)
class SshIdentity:
    """Keys of a worker's sshd, both OpenSSH text.

    Attributes:
        host_key: its own private key.
        authorized_key: the public key that may log in.
        is_required: whether a worker without sshd is of no use.
    """

    host_key: str = field(repr=False)
    authorized_key: str = field(repr=False)
    is_required: bool = True


@dataclass(frozen=True)
class Needs:
    """Requirements of a script on the interpreter that runs it, where only its worker can look at that.

    Attributes:
        python: path or name of the interpreter.
        packages: what it must be able to import.
        version: what it must be of, major and minor; None for any.
    """

    python: str
    packages: tuple[str, ...] = ()
    version: tuple[int, int] | None = None


@dataclass(frozen=True)
class Imports:
    """Modules that a script imports, and the interpreter that runs it: what a template has to have.

    Attributes:
        python: path of the interpreter.
        modules: ``module``, or ``module:attribute`` where it takes something out of it.
    """

    python: str
    modules: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerSpec:
    """One worker to launch.

    Attributes:
        name: unique in its launch, such as ``worker-1``.
        role, index: its place in the cluster.
        run_id: id of the run; it marks every process of the worker (``MUSTER_RUN_ID``).
        resources: what it is given.
        log: file of the session's that takes everything its processes print.
        scratch: folder of its own, mode 0700, removed with the worker. Its path has no spaces.
        cwd: working directory of its processes.
        env: environment of its processes, on top of the session's.
        session: where its agent reports to; None where nobody listens (``launch_workers``).
        ssh: its ssh identity, where it is to run an sshd on port 2222.
        process: what to start at once, without waiting for orders. The worker then ends with it.
        ports: how many free ports to find and hold.
        port_range: where to look for them, first and last; None for any.
        generation: counts the workers that had this name and place before it.
        places: paths on the worker of the folders that files can be put into and got from, by name: ``library``,
            ``run``, ``scratch`` and ``project``. Where it has a ``run`` the worker's log is in there.
        needs: what its interpreter must have; None where the session has looked.
        imports: what may be imported beforehand, where its platform keeps templates; None: its ranks start cold.
        queue_seconds: for how long it may wait until its platform has a place for it; None for any time.

    For a worker that shares no files with the session there are no ``places``: the platform has them where it likes, or
    the agent in a new folder. ``scratch``, ``cwd`` and ``env`` then name them by symbols (:mod:`muster.agent.places`),
    and hold no path of the session's.
    """

    name: str
    role: str
    index: int
    run_id: str
    resources: Resources
    log: Path
    scratch: Path
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    session: SessionAddress | None = None
    ssh: SshIdentity | None = None
    process: Process | None = None
    ports: int = 0
    port_range: tuple[int, int] | None = None
    generation: int = 0
    places: Mapping[str, str] = field(default_factory=dict)
    needs: Needs | None = None
    imports: Imports | None = None
    queue_seconds: float | None = None


class EndCause(str, Enum):
    """Cause of a worker's end, where its platform knows one that its agent could not tell."""

    LOST = "lost"  #: its machine, or whatever it ran in, is gone
    PREEMPTED = "preempted"  #: it had to make way for others
    MEMORY = "memory"  #: the platform ended it for the memory that it used
    OVERTIME = "overtime"  #: the platform ended it for the time that it took
    CANCELLED = "cancelled"  #: somebody had the platform end it
    PEER = "stopped"  #: the platform ended it for what another worker of the run did

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Worker:
    """One launched worker, as its platform knows it. Times are seconds since the epoch.

    Attributes:
        id: its handle, by which its platform knows it; unique there.
        name: its name in the run, such as ``worker-1``.
        address: host address, once known.
        placed_at: when the platform had a place for it, from which on it should start; None while it is queued.
        exit_code: exit status of what it ran, once it has ended by itself.
        signal: number of the signal that ended it.
        reason: why it failed, or, as long as it has not started, what it waits for; in words, with the platform's own
            beside them. It is told live, and in errors.
        cause: what ended it, where the platform knows.
        advice: what to try, where the platform knows that.
        app_url: address of a web application of its own, where its platform gives it one.
    """

    id: str
    name: str
    status: Status = Status.SCHEDULING
    address: str | None = None
    created_at: float | None = None
    placed_at: float | None = None
    running_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None
    cause: EndCause | None = None
    advice: str | None = None
    app_url: str | None = None

    def moved(self, status: Status, **changes: Any) -> Worker:
        """Return the worker in its next state; unchanged where that would be a step back."""
        order = list(Status)
        if self.status.is_final or order.index(status) < order.index(self.status):
            return self
        return replace(self, status=status, **changes)


class Workers(Table[Worker]):
    """Launched workers, shown as a table."""

    HEADING = ("worker", "status", "address", "")

    def cells(self, item: Worker) -> Sequence[str]:
        """Return what is worth knowing of one at a glance."""
        ended = f"exit status {item.exit_code}" if item.exit_code else f"signal {item.signal}" if item.signal else ""
        return item.name, str(item.status), item.address or "", item.reason or ended


@dataclass(frozen=True)
class Member:
    """One worker as its agent reported it, ready to become part of a cluster.

    Attributes:
        name, role, index: its place in the run.
        host: address that the others reach it at.
        ports: free ports that the agent holds for it.
        ssh_port: port of its sshd; None where it runs none, or it cannot be reached.
        host_key: its sshd's public host key, ``type base64``.
        interfaces: names of the network interfaces that carry ``host``.
        cores: cores it may use.
        gpus: devices it may use.
        clock_offset: how much further its monotonic clock is than the session's, in seconds, and
        clock_error: how wrong that may be; None until it has been measured, right after the hello.
        no_ssh: why it runs no sshd, or nobody can reach that, in words; empty where it was not asked for one.
    """

    name: str
    role: str
    index: int
    host: str
    ports: tuple[int, ...] = ()
    ssh_port: int | None = None
    host_key: str | None = None
    interfaces: tuple[str, ...] = ()
    cores: int = 1
    gpus: tuple[str, ...] = ()
    clock_offset: float | None = None
    clock_error: float | None = None
    no_ssh: str = ""


@dataclass(frozen=True)
class Launcher:
    """The program that starts the ranks of a plan by logging in to the workers, such as ``horovodrun``.

    In the session it starts while the workers come up, before its arguments can be known.

    Attributes:
        program: its name or path.
        prestart: what is started first: it gets itself ready, reads a line of JSON with the whole command line as
            ``argv`` from its input, and then is that program.
        env: its whole environment. Nothing of the user's may be in it, as it ends up on command lines of ssh.
        cwd: its working directory.
        args: its arguments; empty before there is a plan.
        where: where it runs: ``SESSION``, or the name of the worker whose agent runs it.
        starts_ranks: False where it only serves ranks that the agents start, until the last of them has ended.
    """

    program: str
    prestart: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    args: tuple[str, ...] = ()
    where: str = SESSION
    starts_ranks: bool = True

    @property
    def name(self) -> str:
        """The program's name, without its folder."""
        return Path(self.program).name

    @property
    def title(self) -> str:
        """Its name, and the worker that it runs on, if it runs on one."""
        return self.name if self.where == SESSION else f"{self.name} on {self.where}"

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line, as a person would type it."""
        return (self.program, *self.args)


@dataclass(frozen=True)
class Plan:
    """Everything that a cluster will start, decided at once.

    Attributes:
        processes: what each worker's agent starts, by worker name. Where there is a launcher these are the ranks,
            which the agent starts when the launcher asks for them by ssh.
        launcher: the program that starts the ranks, such as ``horovodrun``, or serves those that the agents start;
            None where there is no such program.
        files: what to write beforehand (0600), by path relative to the launcher's folder.
        ranks: which worker each rank runs on, where there are ranks.
        rank_env: environment of each rank on top of its worker's, where no launcher sees to that.
        servers: port that each worker must listen on before the cluster counts as up.
        completed_by: names of the workers whose end ends the run; empty where the launcher's end does.
        restarted_alone: names of the workers whose process may be started again while the others go on.
        cluster_spec: addresses (``host:port``) of the TensorFlow servers by role, where there are any.
        notes: what people should know of it, in sentences: what was chosen, and why.
    """

    processes: Mapping[str, Process]
    launcher: Launcher | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    ranks: Mapping[int, str] = field(default_factory=dict)
    rank_env: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    servers: Mapping[str, int] = field(default_factory=dict)
    completed_by: tuple[str, ...] = ()
    restarted_alone: tuple[str, ...] = ()
    cluster_spec: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def starter(self) -> Launcher | None:
        """The launcher, where it is what starts the ranks; None where the agents start everything."""
        return self.launcher if self.launcher is not None and self.launcher.starts_ranks else None

    def starts(self) -> Iterator[tuple[str, int | None, Process]]:
        """Yield what agents start without a launcher: worker, rank (None where there are no ranks), and process."""
        for rank, worker in self.ranks.items():
            process = self.processes[worker]
            yield worker, rank, replace(process, env={**process.env, **self.rank_env.get(rank, {})})
        if not self.ranks:
            for worker, process in self.processes.items():
                yield worker, None, process


@dataclass(frozen=True)
class Limits:
    """Time limits, in seconds; None or 0 for no limit.

    Attributes:
        start: from when a worker has a place to run until all run and every server listens, without its imports.
        run: from then until the end.
        stall: without any sign of progress from a worker that trains.
        queue: from the call until the platform has a place for every worker; ``start`` counts only from there.
        detached: from the call until the end of a run that lives in a process of its own.
    """

    start: float | None = 60
    run: float | None = None
    stall: float | None = None
    queue: float | None = None
    detached: float | None = None

    @classmethod
    def checked(cls, **limits: float | None) -> Limits:
        """The limits that a user gave, in the order of the attributes.

        Raises:
            JobError: one of them is no number of seconds.
        """
        return cls(*(_seconds(name, limit) for name, limit in limits.items()))


def _seconds_in(name: str, limit: object) -> ArgumentText | None:
    """The argument with the seconds that were meant, by a text or a ``timedelta``; None where that is not known."""
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    if isinstance(limit, str) and re.fullmatch(r"\d+(\.\d+)?", limit):
        seconds = float(limit)
    if seconds is limit or not isinstance(seconds, float) or seconds <= 0:
        return None
    return ArgumentText(Argument(name, int(seconds) if seconds.is_integer() else seconds))


def _seconds(name: str, limit: float | None) -> float | None:
    if limit is None or limit == 0:
        return None
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < float("inf"):
        raise JobError(
            ArgumentText(Argument(name), f" is {limit!r}; it must be a number of seconds, or 0 for no limit."),
            advice=_seconds_in(name, limit),
        )
    return float(limit)
