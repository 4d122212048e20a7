"""Checks of a run that are possible before its launch."""

from __future__ import annotations

import os
from dataclasses import replace

from muster.checks import interpreter
from muster.checks.arguments import duration, patterns, plain_args, plain_env, plain_path, port_range
from muster.checks.planning import member_names
from muster.checks.project import find_project, refuse_missing
from muster.checks.script import make_script
from muster.errors import JobError, PlatformUnsupported, ScriptError
from muster.job import SCRIPT_KINDS, Job, Limits, Resources, Script
from muster.options.fields import check_numbers
from muster.options.values import plain_text, whole_number
from muster.platforms.base import Platform, Storage
from muster.run.attempts import RestartPolicy
from muster.run.checked import CheckedRun, reach_at
from muster.run.request import RunRequest
from muster.runtime import descriptors
from muster.strategies.base import Strategy
from muster.text.arguments import Argument, ArgumentText


def check(request: RunRequest) -> CheckedRun:
    """Check everything that can be checked before a launch. Starts nothing, and writes nothing.

    Raises:
        JobError: the request cannot be run as described: the script, its interpreter, the numbers, the strategy and its
            options, the limits, or the address; or there are more workers than this process may have connections.
        PlatformUnsupported: this system cannot host the platform, or has no launcher for the strategy.
    """
    strategy = request.make_strategy()
    platform = request.make_platform()
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
    python = _interpreter_of(job, platform)
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
    session_address, reach = reach_at(platform, address)
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


def _check_script(script: Script) -> None:
    """Raise JobError for a script that a user has described, and not as ``make_script`` does."""
    if script.kind not in SCRIPT_KINDS:
        raise JobError(f"A script's kind is one of {', '.join(SCRIPT_KINDS)}, and not {script.kind!r}.")
    if script.kind in ("file", "executable") and not os.path.isfile(plain_path("target", script.target)):
        raise ScriptError(f"The script {script.target} is not there, or is no file.")


def _working_directory() -> str:
    """Return the working directory of this process. Raises JobError where it has been removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        raise JobError("The working directory is not there any more.", advice="change into a folder that is") from None


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


def _interpreter_of(job: Job, platform: Platform) -> str:
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
