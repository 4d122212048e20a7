"""A run before its launch: as requested (RunRequest), as checked (CheckedRun), and as prepared (RunContext)."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from muster import platforms, strategies
from muster.agent.places import symbol
from muster.checks import interpreter
from muster.checks.arguments import (
    duration,
    parse_address,
    patterns,
    plain_args,
    plain_env,
    plain_path,
    port_range,
)
from muster.checks.function import name_of, without_arguments
from muster.checks.planning import member_names, overridden, preview
from muster.checks.project import LIMIT, Project, find_project, refuse_missing
from muster.checks.script import make_script
from muster.errors import JobError, PlatformUnsupported, ScriptError
from muster.job import SCRIPT_KINDS, SESSION, Job, Limits, Plan, Resources, Script, WorkerSpec
from muster.options.fields import check_numbers
from muster.options.values import plain_text, whole_number
from muster.platforms import get_platform
from muster.platforms.base import Platform, Reach, Storage
from muster.run.attempts import RestartPolicy
from muster.runtime import descriptors
from muster.strategies import get_strategy
from muster.strategies.base import Facts, Strategy
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen

AT_ONCE = "at once"  # reason of a stop that leaves processes no time to end by themselves
ATTEMPT_VARIABLE = "MUSTER_ATTEMPT"  # in a script's environment: the number of its attempt, from 1


@frozen
class RunRequest:
    """A request for a run, as the user made it: nothing in it has been checked.

    Attributes:
        script: file, name of a module, function, or a script that is checked already; None starts servers only.
        n_workers, n_ps: workers that train, and parameter servers.
        resources: what each worker is given.
        ps_resources: what each parameter server is given; None for the same.
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
        session_address: ``host:port`` at which workers reach this session; None for the platform's proposal.
        worker_ports: first and last port that servers of workers may use; None for any.
        project: files that go to workers which share none with the session, as ``find_project`` takes it.
        project_limit: MB that they may have together.
        collect: patterns of files in the workers' working directories that are brought back at the end.
        detach: how long the run may live in a process of its own, in seconds or as ``"8h"``; None: not at all.
        restarts, restart_on, from_scratch: when it is tried again, see :class:`~muster.run.attempts.RestartPolicy`.
        min_workers: with how few workers it starts and goes on where others cannot be had; None for all.
        warm: whether ranks may be forked from a process that has imported the script's modules, if there is one.
    """

    script: str | Path | Callable[..., Any] | Script | None = field(default=None, repr=False)
    n_workers: int = 1
    n_ps: int = 0
    resources: Resources = Resources()
    ps_resources: Resources | None = None
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
    project: str | Path | Sequence[str | Path] | None = None
    project_limit: float = LIMIT
    collect: str | Sequence[str] = ()
    detach: str | float | None = None
    restarts: int = 0
    restart_on: str | Sequence[str] | None = None
    from_scratch: bool = False
    min_workers: int | None = None
    warm: bool = True

    @classmethod
    def of_job(cls, job: Job, **more: Any) -> RunRequest:
        """Return the request for a job that is described already; ``more`` has the fields that a job does not have."""
        return cls(
            script=job.script,
            n_workers=job.n_workers,
            n_ps=job.n_ps,
            resources=job.resources,
            ps_resources=job.ps_resources,
            args=job.args,
            env=job.env,
            python=job.python,
            cwd=job.cwd,
            name=job.name,
            **more,
        )


@frozen
class CheckedRun:
    """A run that has passed all checks that are possible before the launch; nothing of it has been started.

    Attributes:
        job: with its script resolved, the path of its interpreter, its working directory and its name.
        strategy, platform: ready for use.
        probed: what the strategy's ``probe`` found.
        owns_platform: whether the platform was made for the run and is closed with it; else it is the caller's.
        limits: how long things may take.
        session_address: host and port that agents dial; port 0 for any.
        listen: address to listen on.
        is_coming: whether this machine may get that address only when the workers are launched.
        is_relayed: whether the platform relays agents' connections to that address, which they cannot reach themselves.
        no_ssh: why nobody can log in to the workers, in words; empty where that is possible as far as is known.
        worker_ports: first and last port for servers of workers; None for any.
        members: name, role and index of every worker, in launch order.
        project: the files that are sent to the workers; None where the workers share files with the session.
        collect: patterns of files that are brought back at the end.
        restart_policy: after which failures it is tried again.
        spare: how many of its workers the run can do without, where they cannot be had.
        trained: seconds that the attempts before this one have trained.
        attempt_number: the number of this attempt, from 1.
        request: the request that was checked.
    """

    job: Job
    strategy: Strategy
    platform: Platform
    probed: Any = None
    owns_platform: bool = True
    limits: Limits = Limits()
    session_address: tuple[str, int] = ("127.0.0.1", 0)
    listen: str = "127.0.0.1"
    is_coming: bool = False
    is_relayed: bool = False
    no_ssh: str = ""
    worker_ports: tuple[int, int] | None = None
    members: Sequence[tuple[str, str, int]] = ()
    project: Project | None = None
    collect: tuple[str, ...] = ()
    restart_policy: RestartPolicy = RestartPolicy()
    spare: int = 0
    trained: float = 0.0
    attempt_number: int = 1
    request: RunRequest = RunRequest()

    @property
    def launcher_at(self) -> str:
        """Host of a launcher: the session, or the first worker if the session cannot reach the workers itself."""
        return self.members[0][0] if self.is_relayed or self.platform.launches_there else SESSION

    def numbered(self, number: int, trained: float) -> CheckedRun:
        """Return the run for the attempt of this number, from 1, on the same platform.

        Args:
            trained: seconds that the attempts before it have trained.
        """
        job = replace(self.job, env={**self.job.env, ATTEMPT_VARIABLE: str(number)})
        return replace(self, job=job, trained=trained, attempt_number=number)

    def attempt(self, number: int, trained: float) -> CheckedRun:
        """Return the run for the attempt of this number, from 1, on newly launched workers.

        A platform that the run owns was closed with the attempt before, so that a new one is made; its workers may
        reach the session at another address.

        Args:
            trained: seconds that the attempts before it have trained.

        Raises:
            JobError, PlatformError: as ``check``.
        """
        again = self.numbered(number, trained)
        return again if number == 1 or not self.owns_platform else again.on_new_platform()

    def on_new_platform(self) -> CheckedRun:
        """Return the run on another platform object, whose workers may reach the session at another address.

        It is the same object where the caller has given one.

        Raises:
            JobError, PlatformError: as ``check``.
        """
        platform = make_platform(self.request)
        try:
            platform.check()
            address, reach = _reach(platform, plain_text("session_address", self.request.session_address))
        except BaseException:
            if self.owns_platform:
                platform.close()
            raise
        return replace(
            self,
            platform=platform,
            session_address=address,
            listen=reach.listen,
            is_coming=reach.is_coming,
            is_relayed=reach.relayed,
        )

    def preview(self) -> Plan:
        """Return the plan, with placeholders for what is known only after a launch. Starts and writes nothing."""
        known = {"launcher_at": self.launcher_at, "no_ssh": self.no_ssh}
        return preview(self.job, self.strategy, self.probed, project=self.project, **known)

    def submission_text(self) -> str:
        """Return what the platform would submit to its backend, without secrets; empty where it submits nothing.

        Raises:
            PlatformError: it cannot be found out.
        """
        by_places = self.project is not None
        scratch = symbol("scratch") if by_places else "/tmp"
        run = Path("run")
        specs = [
            WorkerSpec(
                name=name,
                role=role,
                index=index,
                run_id=run.name,
                resources=self.job.resources_of(role),
                log=run / "logs" / f"{name}.log",
                scratch=Path(scratch),
                cwd=symbol("project") if by_places else self.job.cwd,
                queue_seconds=self.limits.queue,
            )
            for name, role, index in self.members
        ]
        return self.platform.submission_text(specs)

    def shortages(self) -> list[str]:
        """Return texts about resources that the workers will have to share although each was to have its own.

        Raises:
            ResourceError: the platform could never grant what they are to have.
        """
        return self._shortages

    @functools.cached_property
    def _shortages(self) -> list[str]:
        return self.platform.shortages([self.job.resources_of(role) for _, role, _ in self.members])

    def remarks(self) -> list[str]:
        """Return remarks for the user before the start: on shortages, and on arguments that have no effect.

        Raises:
            ResourceError: the platform could never grant what the workers are to have.
        """
        found = [*self.shortages(), *self.without_effect(), *self._forgotten()]
        if self.collect and self.project is None:
            found.append(f"Nothing has to be collected: the workers write into {self.job.cwd} itself.")
        if self.restart_policy.restarts and self.job.script and self.platform.storage is Storage.NOTHING:
            found.append(
                "Each attempt begins with the project's files as they are here: the script goes on from its checkpoint "
                "only where that is in a folder which outlives the workers."
            )
        return found

    def _forgotten(self) -> list[str]:
        """Return remarks on what the user has perhaps forgotten: a script, or the arguments of a function."""
        function = self.request.script
        if self.job.script is None and not self.job.n_ps and self.strategy.name == "parameter_server":
            return [
                f"There is no script and no parameter server: {self.job.n_workers} idle "
                f"server{'s' if self.job.n_workers != 1 else ''} will wait for this session to train through them, "
                "until stopped. A script is given as worker_script, parameter servers as n_ps."
            ]
        if not self.job.args or self.request.kwargs or not callable(function):
            return []
        names = without_arguments(function)
        if not names:
            return []
        example = f"kwargs={{{names[0]!r}: ...}}"
        return [
            f"{name_of(function)} is given none of its arguments ({', '.join(names)}): args becomes sys.argv, and "
            f"{example} gives them."
        ]

    def without_effect(self) -> list[str]:
        """Return remarks on environment variables whose given values Muster overrides in every process."""
        if not self.job.env:
            return []
        names = overridden(self.preview(), self.job.env)
        return [f"Muster sets {name} in every process: the value that is given for it has no effect." for name in names]


def describe_place(checked: CheckedRun) -> str:
    """Return, in words, the platform of a run's workers and the address at which they reach this session."""
    host, port = checked.session_address
    where = f"{host}, port {port}" if port else f"{host}, on any free port"
    if checked.is_relayed and checked.platform.describe() == checked.platform.name:  # others say how
        where += f", through a relay of {checked.platform.name}"
    return f"workers run on {checked.platform.describe()}, and reach this session at {where}"


@frozen
class RunContext:
    """One run that is ready to launch: its folders have been made, and nothing has been launched.

    Attributes:
        checked: the run, with its platform and its limits.
        facts: the facts for planning: the run's id, its folders, the environment of its processes.
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
    def submission(self) -> str:
        """Key under which its workers are submitted, different in each attempt."""
        return f"{self.run_id}.{self.checked.attempt_number}"

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
    """Check everything that can be checked before a launch. Starts nothing, and writes nothing.

    Raises:
        JobError: the request cannot be run as described: the script, its interpreter, the numbers, the strategy and its
            options, the limits, or the address; or there are more workers than this process may have connections.
        PlatformUnsupported: this system cannot host the platform, or has no launcher for the strategy.
    """
    strategy = get_strategy(request.strategy, **_options(request)[0])
    platform = make_platform(request)
    check_numbers(strategy)
    check_numbers(platform)
    job = _job(request, platform)
    worker_ports = port_range(request.worker_ports)
    address = plain_text("session_address", request.session_address)
    members = member_names(job, strategy)
    _make_room_for(len(members))
    collect = patterns("collect", request.collect)
    platform.check()
    project = None
    if platform.storage is Storage.NOTHING:
        project = find_project(job, request.project, request.project_limit)
    else:
        refuse_missing(job, request.project)
    python = interpreter_of(job, platform)
    if python:
        answers = platform.try_command(interpreter.question(python, job, strategy.requires))
        interpreter.check_answers(python, job, answers)
    else:
        python = interpreter.check(job, strategy.requires).path
    job = replace(job, python=python)
    probed = strategy.probe()
    limits = Limits.checked(
        timeout_seconds=request.timeout_seconds,
        run_timeout=request.run_timeout,
        stall_seconds=request.stall_seconds,
        queue_timeout=request.queue_timeout,
        detach=duration("detach", request.detach),
    )
    session_address, reach = _reach(platform, address)
    return CheckedRun(
        job=job,
        strategy=strategy,
        probed=probed,
        platform=platform,
        owns_platform=not isinstance(request.platform, Platform),
        limits=limits,
        session_address=session_address,
        listen=reach.listen,
        is_coming=reach.is_coming,
        is_relayed=reach.relayed,
        no_ssh=_no_ssh(strategy, platform),
        worker_ports=worker_ports,
        members=members,
        project=project,
        collect=collect,
        restart_policy=RestartPolicy.checked(request.restarts, request.restart_on, request.from_scratch, job.script),
        spare=_spare(request.min_workers, job, strategy),
        request=request,
    )


def _spare(least: int | None, job: Job, strategy: Strategy) -> int:
    """Return how many of its workers a run can do without.

    Raises:
        JobError: the strategy needs all of them, or the number is none of a run's workers.
    """
    if least is None:
        return 0
    number = whole_number("min_workers", least)
    if not 1 <= number <= job.n_workers:
        raise JobError(
            ArgumentText(Argument("min_workers"), f" is {number}; it must be from 1 to the {job.n_workers} of the run.")
        )
    if number < job.n_workers and not strategy.can_do_with_fewer:
        raise JobError(
            ArgumentText(
                Argument("min_workers"), f" is {number}, but {strategy.name} needs all of its {job.n_workers} workers."
            ),
            advice=ArgumentText("leave it out; horovod, mpi and processes can go on with fewer"),
        )
    return job.n_workers - number


def interpreter_of(job: Job, platform: Platform) -> str:
    """Return the job's interpreter on workers with interpreters of their own; empty where they use the session's."""
    return platform.python and (job.python or platform.python)


def _no_ssh(strategy: Strategy, platform: Platform) -> str:
    """Return why workers cannot run sshd, for a strategy that uses ssh but does not need it; empty otherwise.

    A strategy that needs ssh fails at the launch instead.
    """
    if strategy.needs_ssh or not strategy.uses_ssh:
        return ""
    try:
        platform.check_sshd()
    except PlatformUnsupported as error:
        return error.message.rstrip(".")
    return ""


def _reach(platform: Platform, asked: str) -> tuple[tuple[str, int], Reach]:
    """Return how agents reach the session: as the platform proposes, or at the address that the user has given.

    Returns:
        Host and port that agents dial, and the ``Reach`` that belongs to them.
    """
    if not asked:
        reach = platform.reach()
        return (reach.advertise, 0), reach
    host, port = parse_address(asked)
    try:
        reach = platform.reach()
    except PlatformUnsupported:  # the platform does not know an address: the user has given one for that reason
        return (host, port), Reach(host, host)
    return (host, port), reach if host == reach.advertise else Reach(host, host)


def _make_room_for(n_workers: int) -> None:
    """Make room for a connection of each worker, also in what the platform starts. Raises JobError without any."""
    try:
        descriptors.check(n_workers)
        descriptors.make_room(n_workers)
    except descriptors.TooFewDescriptors as error:
        fewer = "fewer workers, or " if error.needed - n_workers < error.limit else ""
        raise JobError(
            f"{n_workers} workers need {error.needed} file descriptors in this session, which may have {error.limit}: "
            "each worker is a connection.",
            advice=f"{fewer}a higher limit before this process starts: ulimit -Hn {error.needed}",
        ) from None


def make_platform(request: RunRequest) -> Platform:
    """Return the platform of a request: a new one if the request names it.

    Raises:
        JobError: there is no such platform, or it has no such option.
        PlatformUnsupported: it cannot be used from here.
    """
    return get_platform(request.platform, **_options(request)[1])


def _options(request: RunRequest) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of the strategy, and those that only a platform has."""
    own = strategies.option_names(request.strategy) if isinstance(request.strategy, str) else []
    theirs = {name: value for name, value in request.options.items() if name not in own and _is_of_platform(name)}
    return {name: value for name, value in request.options.items() if name not in theirs}, theirs


def _is_of_platform(option: str) -> bool:
    """Return whether any platform has this option. Platforms are imported one by one until one has it."""
    return any(option in platforms.option_names(platform) for platform in platforms.PLATFORMS)


def _working_directory() -> str:
    """Return the working directory of this process. Raises JobError where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise JobError("The working directory is not there any more.", advice="change into a folder that is") from None


def _check_script(script: Script) -> None:
    """Raise JobError for a script that a user has described, and not as ``make_script`` does."""
    if script.kind not in SCRIPT_KINDS:
        raise JobError(f"A script's kind is one of {', '.join(SCRIPT_KINDS)}, and not {script.kind!r}.")
    if script.kind in ("file", "executable") and not os.path.isfile(plain_path("target", script.target)):
        raise ScriptError(f"The script {script.target} is not there, or is no file.")


def _job(request: RunRequest, platform: Platform) -> Job:
    """Return the job, with its script resolved and everything else as plain text."""
    of_function = callable(request.script) or (isinstance(request.script, Script) and request.script.kind == "function")
    args, env = plain_args(request.args, of_function=of_function), plain_env(request.env)
    python, name = plain_path("python", request.python), plain_text("name", request.name)
    if name and not name.strip():
        raise JobError(f"name is {name!r}; it must say something.", advice="leave it out for the script's name")
    cwd = os.path.normpath(os.path.join(_working_directory(), plain_path("cwd", request.cwd)))
    if not os.path.isdir(cwd):
        raise JobError(f"The working directory {cwd} is not there, or is no folder.")
    for resources in (request.resources, *filter(None, [request.ps_resources])):
        if not isinstance(resources, Resources):
            raise JobError(f"The resources are {resources!r}; they must be muster.Resources(cpu, memory, gpu).")
    script = request.script
    if isinstance(script, Script):
        _check_script(script)
    elif script is not None:
        script = make_script(
            script,
            module=request.is_module,
            python=python or None,
            kwargs=request.kwargs,
            elsewhere=bool(platform.python),
        )
    return Job(
        script=script,
        n_workers=whole_number("n_workers", request.n_workers),
        n_ps=whole_number("n_ps", request.n_ps),
        resources=request.resources,
        ps_resources=request.ps_resources,
        args=args,
        env=env,
        python=python,
        cwd=cwd,
        name=name or (script.name if script else "servers"),
    )
