"""The workbench's calls for single workers: to launch, await, list and stop them, with its arguments and results.

A thin layer over :class:`~muster.platforms.base.Platform`. For a training cluster use :func:`muster.run_cluster`, whose
workers are not among these: its runs are listed by :func:`muster.list_runs`, and each is ended by its own ``stop()``.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import math
import os
import re
import secrets
import sys
import time
from collections import deque
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from muster.agent.removal import remove_folder
from muster.errors import ExtraMissing, JobError, ScriptError
from muster.job import Limits, Process, Resources, Status, Worker, WorkerSpec
from muster.platforms import get_platform
from muster.platforms.base import Platform, PollBackoff
from muster.records.folders import make_folder, muster_home
from muster.records.scratch import make_scratch
from muster.runtime.forks import in_forked_children

LOG_TAIL = 20  # lines
IPYTHON_RUNNER = Path(__file__).with_name("ipython_runner.py")
SHELL_LINE = re.compile(r"^\s*[!%]", re.MULTILINE)  # lines that only IPython understands

Workers = str | Mapping[str, Any] | Iterable[str | Mapping[str, Any]]

_platform: Platform | None = None


def launch_workers(
    n: int,
    cpu: float,
    memory: float,
    nvidia_gpu: int = 0,
    kernel: str = "python3",
    script: str = "",
    code: str = "",
    env: Mapping[str, str] | None = None,
    *,
    name: str = "worker",
) -> list[dict[str, Any]]:
    """Launch ``n`` workers that each run a script or some code, and return at once.

    Args:
        n: number of workers.
        cpu, memory, nvidia_gpu: resources of each worker: cores, GB, devices.
        kernel: ``python3``; there is no other.
        script: path of the script to run; it overrides ``code``.
        code: the code to run; a line that starts with ``!`` is a shell command.
        env: environment variables of the workers.
        name: beginning of their names.

    Returns:
        One dict per worker, in launch order, with ``id``, ``status``, ``created_at``, ``running_at``,
        ``finished_at``, ``duration``, ``ip_address`` and ``app_url``.

    Raises:
        JobError: there is nothing to run, or it cannot be run as described.
        PlatformError: a worker was refused; those that had started have been stopped.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise JobError(f"n is {n!r}; it must be a whole number of at least 1.")
    if kernel != "python3":
        raise JobError(f"There is no kernel {kernel!r}.", advice='kernel="python3"')
    resources = Resources(cpu, memory, nvidia_gpu)
    resources.check()
    run = f"workers-{secrets.token_hex(4)}"
    folder = muster_home() / "workers" / run
    command = _command(script, code, folder)
    specs = [
        WorkerSpec(
            name=f"{name}-{secrets.token_hex(3)}",
            role="worker",
            index=index,
            run_id=run,
            resources=resources,
            log=folder / f"{index}.log",
            scratch=_session_scratch() / f"{run}-{index}",
            cwd=os.getcwd(),
            env=dict(env or {}),
            process=Process(command, cwd=os.getcwd()),
        )
        for index in range(n)
    ]
    return [describe(worker) for worker in session_platform().launch(specs, run)]


def list_workers() -> list[dict[str, Any]]:
    """Return all workers that this session has launched by ``launch_workers``, also ended ones, oldest first.

    Workers of ``run_cluster`` are not among them: ``muster.list_runs()`` lists its runs.
    """
    return [describe(worker) for worker in session_platform().list()]


def await_workers(
    ids: Workers,
    wait_for_completion: bool = True,
    timeout_seconds: float = 60,
) -> dict[str, list[dict[str, Any]]]:
    """Wait until workers have succeeded, or until they run and have an address.

    Args:
        ids: ids, or the dicts that ``launch_workers`` and ``list_workers`` return.
        wait_for_completion: whether to wait until workers succeed, rather than until they run and have an address.
        timeout_seconds: how long to wait; 0 for any time.

    Returns:
        ``workers``, for which the wait succeeded, and ``failures``, which failed, were stopped or refused, are unknown,
        or were not ready at the deadline. Failures have a ``reason`` and a ``log_tail``.

    Raises:
        JobError: ``timeout_seconds`` is no number of seconds.
        PlatformError: the platform cannot be asked for their states; the workers themselves keep running.
    """
    given = _several(ids)
    limit = Limits.checked(timeout_seconds=timeout_seconds).start
    deadline = math.inf if limit is None else time.monotonic() + limit
    platform = session_platform()
    backoff = PollBackoff(platform)
    while True:
        found = platform.list()
        workers = {worker.id: worker for worker in found}
        known = [workers.get(_id(item) or "") for item in given]
        verdicts = [_verdict(worker, wait_for_completion) for worker in known]
        remaining = deadline - time.monotonic()
        if remaining <= 0 or None not in verdicts:
            break
        time.sleep(min(backoff.seconds(found), remaining))
    outcomes = [*zip(given, known, verdicts, strict=True)]
    return {
        "workers": [describe(worker) for _, worker, is_good in outcomes if worker and is_good],
        "failures": [_failure(platform, item, worker) for item, worker, is_good in outcomes if not is_good],
    }


def stop_workers(*ids: Workers) -> list[dict[str, Any]]:
    """Ask workers to end: those given by id, dict or a list of these, or all that ``list_workers`` returns.

    Runs of ``run_cluster`` are not ended; without ids, a line on standard error names those of this session and the
    calls that end them.

    Returns:
        The workers, as they were before.
    """
    platform = session_platform()
    wanted = {_id(item) for several in ids for item in _several(several)}
    chosen = [worker for worker in platform.list() if not ids or worker.id in wanted]
    platform.stop([worker.id for worker in chosen])
    if not ids:
        _tell_what_goes_on()
    return [describe(worker) for worker in chosen]


def _tell_what_goes_on() -> None:
    """Print the runs of this session, which ``stop_workers`` does not end, and the calls that end them."""
    from muster.run.cluster import running_clusters  # imported here, as that takes long

    ways = [f"muster.open_run({cluster.run_id!r}).stop()" for cluster in running_clusters()]
    if ways:
        print(f"Runs of run_cluster go on. What ends them: {', '.join(ways)}", file=sys.stderr)


def describe(worker: Worker) -> dict[str, Any]:
    """Return a worker in the workbench's form: times as ISO 8601, ``duration`` in seconds."""
    ended = worker.finished_at or time.time()
    return {
        "id": worker.id,
        "status": str(worker.status),
        "created_at": _iso(worker.created_at),
        "running_at": _iso(worker.running_at),
        "finished_at": _iso(worker.finished_at),
        "duration": round(max(0.0, ended - worker.running_at), 3) if worker.running_at else 0,
        "ip_address": worker.address or "unknown",
        "app_url": worker.app_url,
    }


def _several(ids: Workers) -> list[str | Mapping[str, Any]]:
    """Return a list of workers, given an id, a dict, or several of them."""
    return [ids] if isinstance(ids, (str, Mapping)) else list(ids)


def _id(item: str | Mapping[str, Any]) -> str | None:
    """Return the id of a worker; None for one whose launch was refused: its dict has a message instead."""
    return item if isinstance(item, str) else item.get("id")


def _verdict(worker: Worker | None, wait_for_completion: bool) -> bool | None:
    """Return True if the wait for a worker has succeeded, False if it has failed, and None until then."""
    if worker is None or worker.status in (Status.FAILED, Status.STOPPED, Status.TIMEDOUT):
        return False
    if worker.status is Status.SUCCEEDED:
        return wait_for_completion  # a worker that has ended can no longer be reached
    if not wait_for_completion and worker.status is Status.RUNNING and worker.address:
        return True
    return None


def _failure(platform: Platform, item: str | Mapping[str, Any], worker: Worker | None) -> dict[str, Any]:
    if worker is None:
        described = item if isinstance(item, Mapping) else {"id": item}
        why = described.get("message", "no worker of this session has that id")
        return {**described, "status": str(Status.FAILED), "reason": why, "log_tail": ""}
    reasons = {
        Status.SUCCEEDED: "it ended before it could be reached",
        Status.STOPPED: "it was stopped",
        Status.FAILED: f"it failed with exit status {worker.exit_code}",
    }
    if worker.status is Status.RUNNING and not worker.address:
        reasons[Status.RUNNING] = "it runs, but its address is still unknown at the deadline"
    reason = worker.reason or reasons.get(worker.status, f"it is still {worker.status} at the deadline")
    return {**describe(worker), "reason": reason, "log_tail": "\n".join(deque(platform.logs(worker.id), LOG_TAIL))}


def _command(script: str, code: str, folder: Path) -> tuple[str, ...]:
    """Return the command that runs the script or the code; code is written to a file in ``folder``, beside the logs.

    IPython runs scripts and code with lines that only it understands, and plain Python runs the others.
    """
    path = Path(script).expanduser().absolute()
    if script and not path.is_file():
        raise ScriptError(f"The script {path} does not exist.")
    if not script and not code.strip():
        raise JobError("There is nothing to run.", advice="script= a file, or code= some Python")
    text = path.read_text(encoding="utf-8", errors="replace") if script else code
    needs_ipython = bool(SHELL_LINE.search(text))
    if needs_ipython and importlib.util.find_spec("IPython") is None:
        raise ExtraMissing(
            "Lines that begin with ! or % need IPython, which is not here.", advice="pip install 'muster[notebook]'"
        )
    make_folder(folder, 0o700)
    if not script:
        path = folder / "code.py"
        path.write_text(text, encoding="utf-8")
    return (sys.executable, "-u", *([str(IPYTHON_RUNNER)] if needs_ipython else []), str(path))


@functools.lru_cache(maxsize=1)
def _session_scratch() -> Path:
    """Return the scratch folder that all workers of this session share."""
    path = make_scratch()
    atexit.register(_remove_scratch, path, os.getpid())
    return path


def _remove_scratch(path: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the exit handlers
        try:
            session_platform().close()
        finally:
            remove_folder(path)


def session_platform() -> Platform:
    """Return the platform that all workers of this session share."""
    global _platform
    if _platform is None:
        _platform = get_platform(None)
    return _platform


def _iso(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc).isoformat()


def _forget_platform() -> None:
    """Forget the platform in a forked child, so that the child makes its own."""
    global _platform
    _platform = None
    _session_scratch.cache_clear()


in_forked_children(_forget_platform)
