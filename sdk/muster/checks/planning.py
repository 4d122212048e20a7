"""Planning of a run: the facts that a plan is made from, a preview that starts nothing, and a plan's record."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from muster.agent.places import symbol
from muster.checks.places import job_by_places
from muster.checks.project import Project
from muster.errors import JobError
from muster.job import SERVER, Job, Launcher, Member, Plan, Process
from muster.options.fields import chosen_options
from muster.options.values import whole_number
from muster.records.folders import TENSORBOARD, muster_home
from muster.security.ssh import SSH_PORT
from muster.strategies.base import Facts, Strategy
from muster.text.arguments import Argument, ArgumentText, listed

MAX_WORKERS = 10_000
JOINED = {"PYTHONPATH"}  # variables that the user's value becomes a part of
OF_MUSTER = re.compile(
    r"(MUSTER_(RUN_ID|WORKER|ROLE|INDEX|SCRATCH|REPORT|RUN_DIR|RESULTS|TENSORBOARD)|TMPDIR|IPYTHONDIR)$"
)

POINTER = 8  # bytes, which each text takes, too
LONGEST_TEXTS = min(os.sysconf("SC_ARG_MAX"), 6 << 20) - (1 << 17)  # bytes of all, less those of a usual environment
LONGEST_TEXT = 32 * os.sysconf("SC_PAGE_SIZE")  # bytes of an argument or variable, with the zero at its end
OF_LAUNCHER = re.compile(r"(HOROVOD_|OMPI_COMM_WORLD_|PMI_)((LOCAL|CROSS)_)?(RANK|SIZE)$|MUSTER_(RANK|WORLD_SIZE)$")


def member_names(job: Job, strategy: Strategy) -> list[tuple[str, str, int]]:
    """Return name, role and index of every worker, in launch order.

    Raises:
        JobError: a number is invalid, or the job does not fit the strategy.
        ResourceError: the resources are invalid.
    """
    for name, number, least in (("n_workers", job.n_workers, 1), ("n_ps", job.n_ps, 0)):
        if not least <= whole_number(name, number) <= MAX_WORKERS:
            raise JobError(
                ArgumentText(Argument(name), f" is {number}; it must be from {least} to {MAX_WORKERS}."),
                advice=ArgumentText(Argument(name, max(least, 1) if number < least else MAX_WORKERS)),
            )
    job.resources.check()
    _check_texts(job)
    roles = strategy.roles(job)
    _check_servers(job, roles)
    return [(f"{role}-{index}", role, index) for role, count in roles.items() for index in range(count)]


def _check_servers(job: Job, roles: Mapping[str, int]) -> None:
    """Raise JobError for invalid resources of parameter servers, or if there are no parameter servers."""
    if job.ps_resources is None:
        return
    job.ps_resources.check("ps_")
    if job.ps_resources != job.resources and not roles.get(SERVER):
        given = listed([
            f"ps_{argument}"
            for argument, field in (("cpu", "cpu"), ("memory", "memory"), ("nvidia_gpu", "gpu"))
            if getattr(job.ps_resources, field) != getattr(job.resources, field)
        ])  # fmt: skip
        raise JobError(
            ArgumentText("There are no parameter servers that could be given ", given, "."),
            advice=ArgumentText(Argument("n_ps", 1), ", or leave it out"),
        )


def _check_texts(job: Job) -> None:
    """Raise JobError for arguments and variables that no process can be given, without values, which may be secret."""
    for name, value in job.env.items():
        if not name or "=" in name:
            raise JobError(f"The environment variable {name!r} has an impossible name.")
        _check_text(f"The environment variable {name!r}", f"{name}={value}")
    for argument in job.args:
        _check_text("An argument of the script", argument)
    given = [*job.args, *(f"{name}={value}" for name, value in job.env.items())]
    length = sum(len(text.encode("utf-8", "surrogateescape")) + 1 + POINTER for text in given)
    if length > LONGEST_TEXTS:
        raise JobError(
            f"The script's arguments and variables have {length} bytes together, and Linux gives a process at most "
            f"{LONGEST_TEXTS}, beside what it has anyway.",
            advice="write them to a file, and give the file's path",
        )


def _check_text(what: str, text: str) -> None:
    """Raise JobError for a text that the kernel gives no process."""
    if "\0" in text:
        raise JobError(f"{what} has a NUL character in it.")
    try:
        length = len(text.encode("utf-8", "surrogateescape"))  # as names of files are, which need not be text
    except UnicodeEncodeError:
        raise JobError(f"{what} has a lone surrogate in it, which is no character.") from None
    if length >= LONGEST_TEXT:
        raise JobError(
            f"{what} has {length} bytes, and Linux gives a process at most {LONGEST_TEXT - 1} in one text.",
            advice="write it to a file, and give the file's path",
        )


def make_facts(
    job: Job,
    run_dir: Path,
    scratch: Path,
    *,
    library: Path | None = None,
    probed: object = None,
    by_places: bool = False,
) -> Facts:
    """Return everything that planning needs and that does not depend on the workers.

    Args:
        run_dir: the run's folder, which has the run's id as its name.
        scratch: the folder that is removed when the run ends.
        library: folder of the files that are shipped to workers; by default in the scratch folder.
        probed: the result of the strategy's ``probe``.
        by_places: whether plans name places by symbols, which each agent resolves, as workers share no files.
    """
    library = library or scratch / "lib"
    there = run_dir
    places = {}
    python_path = job.env.get("PYTHONPATH") or ("" if by_places else os.environ.get("PYTHONPATH"))
    if by_places:
        places = {"library": str(library), "run": str(run_dir), "scratch": str(scratch), "project": job.cwd}
        library, there = Path(symbol("library")), Path(symbol("run"))
    environment = {
        **job.env,
        "PYTHONPATH": os.pathsep.join([str(library), *([python_path] if python_path else [])]),
        "MUSTER_RUN_DIR": str(there),
        "MUSTER_RESULTS": str(there / "results"),
        "MUSTER_TENSORBOARD": str(there / TENSORBOARD),
    }
    return Facts(
        run_id=run_dir.name,
        run_dir=run_dir,
        scratch=scratch,
        library=library,
        runner=library / "runner.py",
        session_python=sys.executable,
        environment=environment,
        probed=probed,
        places=places,
    )


def preview(job: Job, strategy: Strategy, probed: object, *, project: Project | None = None, **known: Any) -> Plan:
    """Return the plan for this job with placeholders for facts that only a launch tells; start and write nothing.

    Args:
        probed: what the strategy's ``probe`` found.
        project: the files that go along to workers which share none: the plan then names places by symbols.
        known: other facts, by name.

    Raises:
        JobError: the job does not fit the strategy.
    """
    members = [
        Member(name, role, index, f"<{name}>", (2323,), SSH_PORT, "<host key>", ("<interface>",))
        for name, role, index in member_names(job, strategy)
    ]
    run_dir, scratch = muster_home() / "runs" / "<run>", Path("<scratch>")
    facts = make_facts(job, run_dir, scratch, probed=probed, by_places=project is not None)
    return strategy.plan(job_by_places(job, project) if project else job, members, replace(facts, **known))


def overridden(plan: Plan, given: Mapping[str, str]) -> list[str]:
    """Return the user's environment variables that no process gets with the given value."""
    environments = [process.env for _, _, process in plan.starts()]
    return [
        name
        for name, value in given.items()
        if OF_MUSTER.match(name)
        or (plan.launcher and OF_LAUNCHER.match(name))
        or (name not in JOINED and environments and all(env.get(name, value) != value for env in environments))
    ]


def describe(plan: Plan, job: Job) -> dict[str, Any]:
    """Return a plan as plain data to be recorded or printed, without the values of the user's environment variables.

    Places that it names by symbols are in angle brackets, such as ``<library>``.
    """
    described: dict[str, Any] = _named(_describe(plan, job))
    return described


def _named(data: Any) -> Any:
    """Return plain data with the symbols of places replaced by their names in angle brackets."""
    if isinstance(data, str):
        return re.sub("\0(.*?)\0", r"<\1>", data) if "\0" in data else data
    if isinstance(data, dict):
        return {key: _named(value) for key, value in data.items()}
    return [_named(value) for value in data] if isinstance(data, list) else data


def _describe(plan: Plan, job: Job) -> dict[str, Any]:
    processes = {name: _process(process, job.env) for name, process in plan.processes.items()}
    common = _in_common([process["env"] for process in processes.values()])
    for process in processes.values():
        process["env"] = {name: value for name, value in process["env"].items() if name not in common}
    return {
        **_resources(job),
        "files": {path: None if path.startswith("bin/") else text for path, text in plan.files.items()},
        "environment": common,
        "processes": processes,
        "launcher": _launcher(plan.launcher, job.env) if plan.launcher else None,
        "command": command_line(plan),
        "notes": list(plan.notes),
        "ranks": {str(rank): worker for rank, worker in plan.ranks.items()},
        "rank_env": {str(rank): dict(env) for rank, env in plan.rank_env.items()},
        "servers": dict(plan.servers),
        "completed_by": list(plan.completed_by),
        "cluster_spec": {role: list(addresses) for role, addresses in plan.cluster_spec.items()},
    }


def command_line(plan: Plan) -> str:
    """Return shell commands to paste: the launcher's, or else each worker's, one a line."""
    if plan.starter:
        return shlex.join(plan.starter.argv)
    return "\n".join(f"# {name}\n{shlex.join(process.argv)}" for name, process in plan.processes.items())


def describe_job(job: Job, strategy: Strategy) -> dict[str, Any]:
    """Return a job as plain data to be recorded, with the names, but not the values, of the user's variables."""
    script = job.script
    return {
        "name": job.name,
        "strategy": strategy.name,
        "slots": strategy.ranks_per_worker,
        "options": chosen_options(strategy),
        "script": {"kind": script.kind, "target": script.target, "is_task": script.is_task} if script else None,
        "n_workers": job.n_workers,
        "n_ps": job.n_ps,
        **_resources(job),
        "args": list(job.args),
        "env": sorted(job.env),
        "python": job.python,
        "cwd": job.cwd,
    }


def _resources(job: Job) -> dict[str, Any]:
    """Return the resources of each worker, and of each parameter server if there are any."""
    servers = {"ps_resources": asdict(job.resources_of(SERVER))} if job.n_ps else {}
    return {"resources": asdict(job.resources), **servers}


def _in_common(environments: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the variables that are the same in all of several processes; none for a single process."""
    if len(environments) < 2:
        return {}
    first, *others = environments
    return {name: value for name, value in first.items() if all(env.get(name) == value for env in others)}


def _launcher(launcher: Launcher, secret: Mapping[str, str]) -> dict[str, Any]:
    return {**_process(launcher, secret), "where": launcher.where, "starts_ranks": launcher.starts_ranks}


def _process(process: Process | Launcher, secret: Mapping[str, str]) -> dict[str, Any]:
    env = {
        name: "<redacted>" if name in secret and name != "PYTHONPATH" else text for name, text in process.env.items()
    }
    return {"argv": list(process.argv), "cwd": process.cwd, "env": env}
