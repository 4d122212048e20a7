"""Checks that need no workers: of the script, this machine, and the session."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.checks.interpreter import find_module
from muster.checkup import horovod
from muster.checkup.report import Finding, count_of
from muster.errors import PlatformError, ResourceError
from muster.job import Job
from muster.platforms.base import gpus_in_words
from muster.platforms.surroundings import idle_minutes
from muster.pools.listener import listening_socket
from muster.records.folders import muster_home
from muster.run.checked import CheckedRun, describe_place
from muster.text.arguments import Argument, ArgumentText
from muster.text.names import join_names
from muster.text.reading import parse_last_line

IMPORTS = Path(__file__).with_name("imports.py")
PROBE_SECONDS = 30.0
LITTLE, TOO_LITTLE = 1e9, 50e6  # bytes free on a disk
DISTRIBUTIONS = {
    "cv2": "opencv-python",
    "PIL": "Pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}


def check_script(checked: CheckedRun) -> Iterator[Finding]:
    """Check that the worker's interpreter compiles the script and has its imports, and that it avoids known traps."""
    answer, job, path = _look(checked)
    if isinstance(answer, Finding):
        yield answer
        return
    if answer["problem"]:
        yield _does_not_compile(job, answer["problem"])
        return
    if path is None:
        return
    yield Finding("ok", "script", f"{job.python} compiles {path}")
    if not checked.platform.python:  # else workers have another interpreter, which only they can examine
        yield from (_is_missing(job, missing) for missing in answer["missing"])
        if not answer["missing"]:
            yield Finding("ok", "imports", "what it imports is there")
    yield from horovod.traps(answer["imported"], answer["keras"], {**os.environ, **job.env})
    if checked.strategy.name == "horovod" and not answer["imported"]:
        yield Finding(
            "warning",
            "horovod",
            f"{path} imports neither Horovod nor muster.training: its ranks would train apart, each as if alone",
            ArgumentText("hvd.init() of horovod.tensorflow in the script, or ", Argument("strategy", "processes")),
        )


def imported_for_training(checked: CheckedRun) -> list[str]:
    """Return the names that the script imports from Horovod and Muster; empty if it cannot be analysed."""
    answer = _look(checked)[0]
    return answer.get("imported", []) if isinstance(answer, dict) else []


def needed_of_workers(checked: CheckedRun) -> list[str]:
    """Return the packages that the script needs in any case, as far as that can be determined here."""
    answer = _look(checked)[0]
    return answer.get("needed", []) if isinstance(answer, dict) else []


def _look(checked: CheckedRun) -> tuple[dict[str, Any] | Finding, Job, str | None]:
    """Analyse the script: with the interpreter that will run it, or with this one if only the workers have that.

    Returns:
        The answer or the finding of the analysis, the job with the interpreter that was used, and the script's path,
        which is None if it has no source here.
    """
    job = checked.job
    if checked.platform.python:
        job = replace(job, python=sys.executable)
    nothing: dict[str, Any] = {"problem": None}
    if job.script is None or job.script.kind not in {"file", "module"}:
        return nothing, job, None
    path, folder = _source(job)
    if path is None:  # a module without source, or a module that only the workers have
        return {**nothing, "needed": [job.script.target.split(".")[0]]}, job, None
    return _inspect(job, path, folder), job, path


def _inspect(job: Job, path: str, folder: str) -> dict[str, Any] | Finding:
    """Have the worker's interpreter analyse a file; return its answer, or a finding that says why there is none."""
    command = [job.python, "-c", IMPORTS.read_text(), path, folder]
    environment = {**os.environ, **job.env}
    details = ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS, cwd=job.cwd,
            env=environment,
        )  # fmt: skip
        details = (done.stderr or done.stdout)[-2000:]
        done.check_returncode()
        return parse_last_line(done.stdout)
    except subprocess.TimeoutExpired:
        text = f"{job.python} has not looked at {path} within {PROBE_SECONDS:.0f} s"
        return Finding("error", "script", text, "try again")
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        fix = ArgumentText(Argument("python", ""), " an interpreter that runs")
        return Finding("error", "script", f"{job.python} cannot look at {path}", fix, details=details or str(error))


def _source(job: Job) -> tuple[str | None, str]:
    """Return the script's file, None if it has no source here, and the folder that comes first on its ``sys.path``."""
    assert job.script is not None
    if job.script.kind == "file":
        return job.script.target, os.path.dirname(job.script.target)
    location = find_module(job.python, job.script.target)
    return (location if location and location.endswith(".py") else None), job.cwd


def _does_not_compile(job: Job, problem: dict[str, Any]) -> Finding:
    where = f"{problem['file']}, line {problem['line']}," if problem["line"] else problem["file"]
    return Finding(
        "error", "script", f"{where} does not compile with {job.python}: {problem['message']}",
        fix=ArgumentText("write it for that Python, or ", Argument("python", ""), " one that knows this syntax"),
        details=problem["text"] or "",
    )  # fmt: skip


def _is_missing(job: Job, missing: dict[str, Any]) -> Finding:
    package = missing["name"].split(".")[0]
    text = f"{missing['file']}, line {missing['line']}, imports {missing['name']}, which {job.python} does not have"
    fix: str = ArgumentText(
        f"{job.python} -m pip install {DISTRIBUTIONS.get(package, package)}, or ",
        Argument("python", ""),
        " another interpreter",
    )
    if package == "muster":
        text = (
            f"{missing['file']}, line {missing['line']}, imports {missing['name']}: workers have muster.training only"
        )
        fix = "leave launching to the session, and import muster.training in the script"
    return Finding("error" if missing["is_certain"] else "warning", "imports", text, fix)


def check_resources(checked: CheckedRun) -> Iterator[Finding]:
    """Check that processes, cores and GPUs match, that resources suffice, and that given variables have an effect."""
    job, resources = checked.job, checked.job.resources
    slots = checked.strategy.ranks_per_worker
    workers = sum(checked.strategy.roles(job).values())
    found = []
    if slots and slots > max(resources.cpu, 1):
        text = f"{slots} processes share the {resources.cpu:g} cores of each worker, and each is slower"
        found.append(
            Finding(
                "warning", "resources", text, ArgumentText(Argument("cpu", slots), ", or fewer ", Argument("slots"))
            )
        )
    if slots and resources.gpu and slots != resources.gpu:
        text = f"each worker has {gpus_in_words(resources.gpu)} for {slots} processes"
        found.append(
            Finding(
                "warning", "resources", text, ArgumentText(Argument("slots", resources.gpu), ": a process for each GPU")
            )
        )
    try:
        shortages = checked.shortages()
    except (ResourceError, PlatformError) as error:
        found.append(Finding.of_error("resources", error, "fewer workers, or less for each"))
    else:
        found += [Finding("warning", "resources", text, "fewer workers, or less for each") for text in shortages]
    fix = "another name, if the script is to read it"
    found += [Finding("warning", "environment", text, fix) for text in checked.without_effect()]
    parts = [f"{resources.cpu:g} core{'' if resources.cpu == 1 else 's'}", f"{resources.memory:g} GB"]
    parts += [f"{resources.gpu} GPU{'' if resources.gpu == 1 else 's'}"] * bool(resources.gpu)
    yield from found or [Finding("ok", "resources", f"no shortage for {count_of(workers)} of {join_names(parts)}")]


def check_platform(checked: CheckedRun) -> Iterator[Finding]:
    """Report where workers will run, how they reach the session, and its limits; check the user's rights there."""
    yield Finding("ok", "platform", describe_place(checked))
    try:
        missing, limits = checked.platform.missing_rights(), checked.platform.limits()
    except PlatformError as error:
        yield Finding.of_error("rights", error)
        return
    yield from (Finding("ok", "limits", text) for text in limits)
    fix = "have whoever runs the platform give them to you; its guide lists them"
    yield from (Finding("error", "rights", text, fix) for text in missing)


def check_address(checked: CheckedRun) -> Iterator[Finding]:
    """Check that the session can listen at the address where workers are to reach it."""
    host, port = checked.listen, checked.session_address[1]
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening_socket(address[:2], family, checked.is_coming).close()
    except OSError as error:
        text = f"the session cannot listen on {host}:{port}: {error.strerror or error}"
        yield Finding(
            "error",
            "session",
            text,
            ArgumentText(Argument("session_address", ""), " another host:port, or none for any free port"),
        )
    else:
        yield Finding("ok", "session", f"it can listen on {host}" + (f":{port}" if port else ""))


def check_disk(checked: CheckedRun) -> Iterator[Finding]:
    """Check that the disks have room for logs, records and the files of scripts."""
    for path, variable in ((muster_home(), "MUSTER_HOME"), (Path(tempfile.gettempdir()), "TMPDIR")):
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        try:
            tempfile.TemporaryFile(dir=existing).close()
        except OSError as error:
            text = f"no file can be made in {existing}: {error.strerror}"
            yield Finding("error", "disk", text, f"{variable}= a folder that you may write to")
            continue
        free = shutil.disk_usage(existing).free
        level = "error" if free < TOO_LITTLE else "warning" if free < LITTLE else "ok"
        fix = "" if level == "ok" else f"make room there, or {variable}= a folder elsewhere"
        yield Finding(level, "disk", f"{free / 1e9:.2f} GB are free in {path}", fix)


def check_idle_limit(checked: CheckedRun) -> Iterator[Finding]:
    """Check that the session will not be ended for idling before the run is over."""
    limit = idle_minutes(os.environ)
    if limit is None:
        return
    length = checked.limits.run
    if length and length <= limit * 60:
        yield Finding("ok", "idle limit", f"the run ends before the session's {limit:g} minutes without a browser")
        return
    takes = f"and the run may take {length / 60:g}" if length else "and nothing limits how long the run takes"
    yield Finding(
        "warning",
        "idle limit",
        f"the session is ended after {limit:g} minutes without activity in a browser, {takes}",
        ArgumentText("keep the notebook open, raise IDLE_MAXIMUM_MINUTES, or have a shorter ", Argument("run_timeout")),
    )


def check_logout(checked: CheckedRun) -> Iterator[Finding]:
    """Warn if systemd ends all processes of a user who logs out, also those of detached runs."""
    try:
        ends = _of_logind("session", "KillUserProcesses")
        stays = _of_logind("user", "Linger")
    except (OSError, subprocess.SubprocessError):  # no logind, so nothing ends them
        return
    if ends == "yes" and stays != "yes":
        text = "systemd ends all processes of a user who logs out, also those of a detached run"
        yield Finding("warning", "logout", text, "loginctl enable-linger")


def _of_logind(of: str, name: str) -> str:
    command = ["loginctl", f"show-{of}", f"--property={name}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=True)
    return done.stdout.strip().partition("=")[2]


CHECKS: tuple[Callable[[CheckedRun], Iterator[Finding]], ...] = (
    check_platform,
    check_script,
    check_resources,
    check_address,
    check_disk,
    check_idle_limit,
    check_logout,
)
