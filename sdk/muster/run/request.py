"""A run on its way: what was asked (RunRequest), what was found out (CheckedRun), what it runs with (RunContext)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from muster import platforms, strategies
from muster.checks import interpreter
from muster.checks.arguments import plain_args, plain_env, plain_path, plain_text, port_range, whole_number
from muster.checks.planning import member_names
from muster.checks.script import make_script
from muster.errors import JobError
from muster.job import Job, Limits, Resources, Script, WorkerSpec
from muster.platforms import get_platform
from muster.platforms.base import Platform
from muster.pools.endpoint import parse_address
from muster.runtime import descriptors
from muster.strategies import get_strategy
from muster.strategies.base import Facts, Strategy


@dataclass(frozen=True)
class RunRequest:
    """Everything that was asked of a run, as it was asked. Nothing has been checked.

    Attributes:
        script: file, name of a module, function, or a script that is checked already; None starts servers only.
        n_workers, n_ps: workers that train, and parameter servers.
        resources: what each worker is given.
        args, env: command-line arguments and environment variables of the script.
        kwargs: keyword arguments of the script, where it is a function.
        python: the interpreter that runs the script; None for this one.
        cwd: working directory of the script; empty for this process's.
        name: what to call the run; empty for the script's name.
        is_module: whether ``script`` is the name of a module in any case.
        strategy: name of a strategy, or one that is made already.
        platform: name of a platform, or one that is made already; None for the usual one.
        options: options of a strategy or a platform that is given by name.
        timeout_seconds, run_timeout, stall_seconds, queue_timeout: limits in seconds, see :class:`~muster.job.Limits`.
        session_address: ``host:port`` that workers reach this session at; None for the platform's advice.
        worker_ports: first and last port that servers of workers may use; None for any.
    """

    script: str | Path | Callable[..., Any] | Script | None = field(default=None, repr=False)
    n_workers: int = 1
    n_ps: int = 0
    resources: Resources = Resources()
    args: Sequence[object] = ()
    env: Mapping[str, object] = field(default_factory=dict, repr=False)
    kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    python: str | Path | None = None
    cwd: str = ""
    name: str = ""
    is_module: bool = False
    strategy: str | Strategy = "parameter_server"
    platform: str | Platform | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_seconds: float | None = 60
    run_timeout: float | None = None
    stall_seconds: float | None = None
    queue_timeout: float | None = None
    session_address: str | None = None
    worker_ports: tuple[int, int] | None = None

    @classmethod
    def of_job(cls, job: Job, **more: Any) -> RunRequest:
        """The request for a job that somebody has described already; ``more`` is what a job does not say."""
        return cls(
            script=job.script,
            n_workers=job.n_workers,
            n_ps=job.n_ps,
            resources=job.resources,
            args=job.args,
            env=job.env,
            python=job.python,
            cwd=job.cwd,
            name=job.name,
            **more,
        )


@dataclass(frozen=True)
class CheckedRun:
    """A run that can be started as far as anybody can tell beforehand; nothing of it has been started.

    Attributes:
        job: with its script resolved, the path of its interpreter, its working directory and its name.
        strategy, platform: ready for use.
        probed: what the strategy's ``probe`` found.
        owns_platform: whether the platform ends with the run, or is somebody's who uses it for other things, too.
        limits: how long things may take.
        session_address: host and port to listen on; port 0 for any.
        worker_ports: first and last port for servers of workers; None for any.
        members: name, role and index of every worker, in launch order.
        request: what it was made from.
    """

    job: Job
    strategy: Strategy
    platform: Platform
    probed: Any = None
    owns_platform: bool = True
    limits: Limits = Limits()
    session_address: tuple[str, int] = ("127.0.0.1", 0)
    worker_ports: tuple[int, int] | None = None
    members: Sequence[tuple[str, str, int]] = ()
    request: RunRequest = RunRequest()

    def shortages(self) -> list[str]:
        """Return, in words, what the workers will have to share that each is to have for itself.

        Raises:
            ResourceError: the platform could never grant what they are to have.
        """
        return self.platform.shortages(self.job.resources, len(self.members))


def describe_place(checked: CheckedRun) -> str:
    """Return, in words, the platform of a run's workers and the address at which they reach this session."""
    host, port = checked.session_address
    where = f"{host}, port {port}" if port else f"{host}, on any free port"
    return f"workers run on {checked.platform.name}, and reach this session at {where}"


@dataclass(frozen=True)
class RunContext:
    """One run that is ready to launch: its folders are there, and nothing has been launched.

    Attributes:
        checked: what is to run, where, and how long it may take.
        facts: what planning needs: the run's id, its folders, the environment of its processes.
        specs: the workers to launch, in launch order.
    """

    checked: CheckedRun
    facts: Facts
    specs: Sequence[WorkerSpec]

    @property
    def run_id(self) -> str:
        """Id of the run; it marks every process of the run."""
        return self.facts.run_id

    @property
    def run_dir(self) -> Path:
        """The run's folder, which keeps logs and results."""
        return self.facts.run_dir

    @property
    def job(self) -> Job:
        """The job that runs."""
        return self.checked.job

    @property
    def strategy(self) -> Strategy:
        """The strategy that plans it."""
        return self.checked.strategy

    @property
    def platform(self) -> Platform:
        """The platform that its workers run on."""
        return self.checked.platform

    @property
    def owns_platform(self) -> bool:
        """True if the platform ends with the run."""
        return self.checked.owns_platform

    @property
    def limits(self) -> Limits:
        """Time limits of the run."""
        return self.checked.limits


def check(request: RunRequest) -> CheckedRun:
    """Find out everything that can be known before a launch. Starts nothing, and writes nothing.

    Raises:
        JobError: the request cannot be run as described: the script, its interpreter, the numbers, the strategy and its
            options, the limits, or the address; or there are more workers than this process may have connections.
        PlatformUnsupported: this system cannot host the platform, or has no launcher for the strategy.
    """
    job = _job(request)
    strategy = get_strategy(request.strategy, **_options(request)[0])
    worker_ports = port_range(request.worker_ports)
    address = plain_text("session_address", request.session_address)
    members = member_names(job, strategy)
    _check_descriptors(len(members))
    job = replace(job, python=interpreter.check(job, strategy.requires).path)
    probed = strategy.probe()
    limits = Limits.checked(
        timeout_seconds=request.timeout_seconds,
        run_timeout=request.run_timeout,
        stall_seconds=request.stall_seconds,
        queue_timeout=request.queue_timeout,
    )
    platform = make_platform(request)
    platform.check()
    return CheckedRun(
        job=job,
        strategy=strategy,
        probed=probed,
        platform=platform,
        owns_platform=not isinstance(request.platform, Platform),
        limits=limits,
        session_address=parse_address(address or f"{platform.reach().advertise}:0"),
        worker_ports=worker_ports,
        members=members,
        request=request,
    )


def _check_descriptors(n_workers: int) -> None:
    """Raise JobError where this process may not have as many connections."""
    try:
        descriptors.check(n_workers)
    except descriptors.TooFewDescriptors as error:
        raise JobError(
            f"{n_workers} workers need {error.needed} file descriptors in this session, which may have {error.limit}: "
            "each worker is a connection.",
            advice=f"fewer workers, or a higher limit before this process starts: ulimit -Hn {error.needed}",
        ) from None


def make_platform(request: RunRequest) -> Platform:
    """The platform that the request asks for: a new one, where it is asked for by name.

    Raises:
        JobError: there is no such platform, or it has no such option.
        PlatformUnsupported: it cannot be used from here.
    """
    return get_platform(request.platform, **_options(request)[1])


def _options(request: RunRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the strategy, and those that are not its own but some platform's."""
    own = strategies.option_names(request.strategy) if isinstance(request.strategy, str) else []
    of_platforms = {name for platform in platforms.PLATFORMS for name in platforms.option_names(platform)}
    theirs = {name: value for name, value in request.options.items() if name in of_platforms and name not in own}
    return {name: value for name, value in request.options.items() if name not in theirs}, theirs


def _working_directory() -> str:
    """The working directory of this process. Raises JobError where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise JobError("The working directory is not there any more.", advice="change into a folder that is") from None


def _job(request: RunRequest) -> Job:
    """The job with its script resolved and everything else as plain text."""
    args, env = plain_args(request.args), plain_env(request.env)
    python, name = plain_path("python", request.python), plain_text("name", request.name)
    script = request.script
    if script is not None and not isinstance(script, Script):
        script = make_script(script, module=request.is_module, python=python or None, kwargs=request.kwargs)
    return Job(
        script=script,
        n_workers=whole_number("n_workers", request.n_workers),
        n_ps=whole_number("n_ps", request.n_ps),
        resources=request.resources,
        args=args,
        env=env,
        python=python,
        cwd=request.cwd or _working_directory(),
        name=name or (script.name if script else "servers"),
    )
