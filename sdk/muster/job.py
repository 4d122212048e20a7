"""The plain data of a run: what to run, on which workers, as which processes.

All are frozen dataclasses, which check themselves and decide nothing. With them is what errors advise about amounts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import Enum
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from muster.errors import JobError, ResourceError
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen
from muster.text.shown import Table
from muster.text.spans import seconds_of

MOST = 10**9  # of anything: a larger amount is a mistake, and a longer time as good as none
LIKELY_MEGABYTES = 256  # an amount from here on that exceeds what there is was probably meant in MB
LEAST_MEMORY = 0.02  # GB
SESSION = "session"  # `Launcher.where` of a launcher that runs in the session
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

    is_final: bool  #: whether the worker has ended
    order: int  #: its place among the states: a worker moves to no lower one

    def __init__(self, value: str) -> None:
        self.order = len(type(self).__members__)
        self.is_final = value in ("succeeded", "failed", "stopped", "timedout")  # asked of thousands at every poll

    def __str__(self) -> str:
        return str(self.value)


@frozen
class Resources:
    """Resources of one worker: ``cpu`` in cores, ``memory`` in GB (10**9 bytes), ``gpu`` as a number of devices."""

    cpu: float = 1
    memory: float = 2
    gpu: int = 0

    def __post_init__(self) -> None:
        for name in ("cpu", "memory", "gpu"):  # NumPy's numbers become Python's, which can be recorded
            value = getattr(self, name)
            if isinstance(value, Real) and not isinstance(value, (int, float)):
                object.__setattr__(self, name, int(value) if isinstance(value, Integral) else float(value))

    def check(self, prefix: str = "") -> None:
        """Raise ResourceError if an amount is invalid; ``prefix`` begins the argument names in the message."""
        for name, amount, unit in ((f"{prefix}cpu", self.cpu, ""), (f"{prefix}memory", self.memory, " GB")):
            if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not 0 < amount < MOST:
                raise ResourceError(
                    ArgumentText(
                        Argument(name),
                        f" is {amount!r}; it must be a number greater than 0, and less than 10**9{unit}.",
                    ),
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
        if isinstance(self.gpu, bool) or not isinstance(self.gpu, int) or not 0 <= self.gpu < MOST:
            raise ResourceError(
                ArgumentText(
                    Argument(f"{prefix}nvidia_gpu"),
                    f" is {self.gpu!r}; it must be a whole number from 0, and less than 10**9.",
                )
            )

    def but(self, cpu: float | None, memory: float | None, gpu: int | None) -> Resources:
        """Return a copy with the amounts that are not None replaced."""
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
    """Return advice for a request that exceeds the available amount.

    Args:
        name: ``cpu`` or ``memory``.
        asked: the requested amount.
        most: the available amount.
        worker: name of the worker that the request is for; None for any.

    >>> at_most("cpu", 64, 2), at_most("memory", 64, 25.37, "ps-0"), at_most("memory", 4096, 25.37)
    ('cpu=2 at most', 'ps_memory=25.3 at most', 'memory=4: it is in GB')
    """
    argument = f"ps_{name}" if memory_argument(worker) == "ps_memory" else name
    meant = asked / (1024 if asked % 1024 == 0 else 1000)
    if name == "memory" and asked >= LIKELY_MEGABYTES and meant <= most:
        return ArgumentText(Argument(argument, meant), ": it is in GB")
    return ArgumentText(Argument(argument, math.floor(most * 10) / 10), " at most")


def _as_amount(name: str, text: object) -> str | None:
    """Return the argument that a text such as ``"4GB"`` stands for; None if it is no such text."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(gb?)?\s*", str(text), re.IGNORECASE)
    if not found or not isinstance(text, str) or not float(found[1]):
        return None
    return ArgumentText(Argument(name, float(found[1])), ", in GB" if name.endswith("memory") else "")


SCRIPT_KINDS = ("file", "module", "function", "executable")


@frozen
class Script:
    """The user's script, module, function or program.

    Attributes:
        kind: ``file``, ``module``, ``function``, or ``executable`` for a file that is not Python.
        target: a path, a module's name, or the function's name for display.
        is_task: whether it has a ``run(cluster, server, task_index)`` and is not a complete program.
        pickled: the function, pickled by value; empty for files and modules.
        sources: names and texts of the notebook cells and files that the function comes from, by the names of their
            files, pickled.
    """

    kind: str
    target: str
    is_task: bool = False
    pickled: bytes = field(default=b"", repr=False)
    sources: bytes = field(default=b"", repr=False)

    @property
    def name(self) -> str:
        """A short name: a file's name without folder and suffix, or the last part of a module's or function's name."""
        if self.kind in ("file", "executable"):
            return Path(self.target).stem
        return self.target.rpartition(".")[2].strip("<>")


@frozen
class Job:
    """A job of the user's: a script, its workers, their resources, and the script's arguments and environment.

    Attributes:
        script: what to run; None starts servers only.
        n_workers: number of workers that train, at least 1.
        n_ps: number of parameter servers.
        resources: resources of each worker.
        ps_resources: resources of each parameter server; None for the same.
        args: command-line arguments of the script.
        env: environment variables of the script, in addition to those of the session. Their values are never recorded.
        python: path of the interpreter that runs the script.
        cwd: working directory of the script.
        name: name of the run.
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
        """Return the resources of each worker of a role."""
        return self.ps_resources if role == SERVER and self.ps_resources is not None else self.resources


@frozen
class Process:
    """One process to start. ``env`` is added to the environment of the process that starts it."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None


@frozen
class SessionAddress:
    """Address of a session, with the credentials that an agent needs to connect to it.

    Attributes:
        host, port: address that the agent connects to.
        certificate: the session's certificate, which the agent pins (PEM).
        token: proves that the agent belongs to this generation of this worker.
        lease_seconds: how long the agent goes on without the session before it ends everything; 0: it ends at once.
    """

    host: str
    port: int
    certificate: str = field(repr=False)
    token: str = field(repr=False)
    lease_seconds: float = 0.0


@frozen
class SshIdentity:
    """Keys of a worker's sshd, both in OpenSSH's text format.

    Attributes:
        host_key: the sshd's own private key.
        authorized_key: the public key that may log in.
        is_required: whether the worker is useless without sshd.
    """

    host_key: str = field(repr=False)
    authorized_key: str = field(repr=False)
    is_required: bool = True


@frozen
class Needs:
    """A script's requirements on an interpreter that only its worker can check.

    Attributes:
        python: path or name of the interpreter.
        packages: packages that it must be able to import.
        version: its required version, major and minor; None for any.
    """

    python: str
    packages: tuple[str, ...] = ()
    version: tuple[int, int] | None = None


@frozen
class Imports:
    """Modules that a script imports, and the interpreter that runs it: the requirements on a template process.

    Attributes:
        python: path of the interpreter.
        modules: ``module``, or ``module:attribute`` where the script imports an attribute from it.
    """

    python: str
    modules: tuple[str, ...] = ()


@frozen
class WorkerSpec:
    """One worker to launch.

    Attributes:
        name: unique in its launch, such as ``worker-1``.
        role, index: its role in the cluster, and its number in that role.
        run_id: id of the run, which marks every process of the worker (``MUSTER_RUN_ID``).
        resources: its resources.
        log: file on the session's side for everything that its processes print.
        scratch: the worker's own folder, mode 0700, removed with the worker. Its path has no spaces.
        cwd: working directory of its processes.
        env: environment of its processes, added to the session's.
        session: the session that its agent connects to; None where there is none (``launch_workers``).
        ssh: its ssh identity, where it is to run an sshd on port 2222.
        process: process to start at once, without waiting for orders. The worker then ends with it.
        ports: number of free ports to find and hold.
        port_range: first and last port to choose from; None for any.
        generation: number of earlier workers that this one replaces under the same name.
        places: paths on the worker of the folders that files are transferred into and out of, by name: ``library``,
            ``run``, ``scratch`` and ``project``. If there is a ``run``, the worker's log is in it.
        needs: requirements on its interpreter; None if the session has checked them.
        imports: imports to make beforehand, where its platform keeps templates; None: its ranks start cold.
        queue_seconds: how long it may wait until its platform has a place for it; None for no limit.

    A worker that shares no files with the session has no ``places``: the platform chooses these folders, or the agent
    makes them in a new folder. ``scratch``, ``cwd`` and ``env`` then name them by symbols
    (:mod:`muster.agent.places`), and contain no path of the session's.
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
    """Cause of a worker's end that its platform knows, and its agent could not report."""

    LOST = "lost"  #: its machine, or whatever it ran in, is gone
    PREEMPTED = "preempted"  #: it had to make way for others
    MEMORY = "memory"  #: the platform ended it for the memory that it used
    OVERTIME = "overtime"  #: the platform ended it for the time that it took
    CANCELLED = "cancelled"  #: somebody had the platform end it
    PEER = "stopped"  #: the platform ended it for what another worker of the run did

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)  # compared so often that its methods are its own
class Worker:
    """One launched worker, as its platform knows it. Times are seconds since the epoch.

    Attributes:
        id: the platform's identifier of the worker, unique there.
        name: its name in the run, such as ``worker-1``.
        address: host address, once known.
        placed_at: when the platform had a place for it, so that its start begins; None while it is queued.
        exit_code: exit status of its process, once it has ended by itself.
        signal: number of the signal that ended it.
        reason: why it failed; as long as it has not started, what it is waiting for; or, while it runs, why it may be
            silent. In words, including the platform's own. It is shown while the run is under way, and in errors.
        cause: cause of its end, if the platform knows it.
        advice: what to try, if the platform knows.
        app_url: URL of the worker's own web application, if its platform provides one.
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
        """Return the worker with a new status; unchanged if the status would move backwards."""
        if self.status.is_final or status.order < self.status.order:
            return self
        return replace(self, status=status, **changes)

    def updated(self, fresh: Worker) -> Worker:
        """Return the worker as a later poll found it, with the name and the time of creation that are known here."""
        known = {"id", "name", "status", "created_at"}
        return self.moved(fresh.status, **{name: value for name, value in vars(fresh).items() if name not in known})


class Workers(Table[Worker]):
    """Launched workers, shown as a table."""

    HEADING = ("worker", "status", "address", "")

    def cells(self, item: Worker) -> Sequence[str]:
        """Return a worker's row: name, status, address, and its reason or how it ended."""
        ended = f"exit status {item.exit_code}" if item.exit_code else f"signal {item.signal}" if item.signal else ""
        return item.name, str(item.status), item.address or "", item.reason or ended


@frozen
class Member:
    """One worker as its agent reported it, ready to become part of a cluster.

    Attributes:
        name, role, index: its name, its role, and its number in that role.
        host: address that the other workers reach it at.
        ports: free ports that the agent holds for it.
        ssh_port: port of its sshd; None if it runs none, or the sshd cannot be reached.
        host_key: its sshd's public host key, ``type base64``.
        account: name of the account there that its sshd lets in; None if it is not known.
        interfaces: names of the network interfaces that carry ``host``.
        cores: number of cores it may use.
        gpus: devices it may use.
        clock_offset: seconds by which its monotonic clock is ahead of the session's; None until it has been measured,
            right after the hello.
        clock_error: greatest error of ``clock_offset``, in seconds; None until then, too.
        no_ssh: why it runs no sshd, or the sshd cannot be reached, in words; empty if it was not asked for one.
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
    account: str | None = None


@frozen
class Launcher:
    """The program that starts the ranks of a plan by logging in to the workers, such as ``horovodrun``.

    In the session it starts while the workers come up, before its arguments can be known.

    Attributes:
        program: its name or path.
        prestart: command that is started first: it prepares itself, reads a line of JSON with the whole command line
            as ``argv`` from its standard input, and then becomes that program.
        env: its whole environment. It must contain nothing of the user's, as it ends up on command lines of ssh.
        cwd: its working directory.
        args: its arguments; empty before there is a plan.
        where: where it runs: ``SESSION``, or the name of the worker whose agent runs it.
        starts_ranks: False if it only serves ranks that the agents start, until the last of them has ended.
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
        """The program's name, and the worker that it runs on, if any."""
        return self.name if self.where == SESSION else f"{self.name} on {self.where}"

    @property
    def argv(self) -> tuple[str, ...]:
        """Its command line, as a person would type it."""
        return (self.program, *self.args)


@frozen
class Plan:
    """Everything that a cluster will start, decided before anything is started.

    Attributes:
        processes: the process that each worker's agent starts, by worker name. With a launcher these are the ranks,
            which the agent starts when the launcher asks for them by ssh.
        launcher: the program that starts the ranks, such as ``horovodrun``, or serves the ranks that the agents start;
            None if there is no such program.
        files: contents of files to write beforehand (0600), by path relative to the launcher's folder.
        ranks: the worker that each rank runs on, if there are ranks.
        rank_env: environment of each rank, added to its worker's, where no launcher sets it.
        servers: port that each worker must listen on before the cluster counts as up.
        completed_by: names of the workers whose end ends the run; empty where the launcher's end does.
        restarted_alone: names of the workers whose process may be started again while the others go on.
        cluster_spec: addresses (``host:port``) of the TensorFlow servers by role, if there are any.
        notes: sentences for the user: what was chosen, and why.
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
        """The launcher, if it starts the ranks; None if the agents start everything."""
        return self.launcher if self.launcher is not None and self.launcher.starts_ranks else None

    def starts(self) -> Iterator[tuple[str, int | None, Process]]:
        """Yield what the agents start without a launcher: worker, rank (None if there are no ranks), and process."""
        for rank, worker in self.ranks.items():
            process = self.processes[worker]
            yield worker, rank, replace(process, env={**process.env, **self.rank_env.get(rank, {})})
        if not self.ranks:
            for worker, process in self.processes.items():
                yield worker, None, process


@frozen
class Limits:
    """Time limits, in seconds; None or 0 for no limit.

    Attributes:
        start: from when a worker has a place to run until all run and every server listens, not counting its imports.
        run: from then until the end.
        stall: time without any sign of progress from a worker that trains.
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
        """Return the limits that a user gave, in the order of the attributes.

        Raises:
            JobError: a limit is not a number of seconds.
        """
        return cls(*(_seconds(name, limit) for name, limit in limits.items()))


def _seconds_in(name: str, limit: object) -> ArgumentText | None:
    """Return the argument with the seconds that a text or a ``timedelta`` stands for; None if that is not known."""
    seconds = limit.total_seconds() if isinstance(limit, timedelta) else None
    if isinstance(limit, str):
        seconds = seconds_of(limit)
    if seconds is None or seconds <= 0:
        return None
    return ArgumentText(Argument(name, int(seconds) if seconds.is_integer() else seconds))


def _seconds(name: str, limit: float | None) -> float | None:
    if limit is None or limit == 0:
        return None
    if isinstance(limit, bool) or not isinstance(limit, Real) or not 0 < limit < float("inf"):
        raise JobError(
            ArgumentText(Argument(name), f" is {limit!r}; it must be a number of seconds, or 0 for no limit."),
            advice=_seconds_in(name, limit),
        )
    return float(min(limit, MOST))
