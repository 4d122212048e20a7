"""The config of a worker's agent, and what the agent leaves for the platform: plain data on every platform."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from muster.agent.fields import number, one_of, optional, text, whole
from muster.agent.places import is_symbolic, resolve, symbol
from muster.errors import JobError
from muster.job import Process, Status, WorkerSpec

LOG_CAP = 64 << 20  # bytes
LARGEST_NEWS = 1 << 20  # bytes of what an agent has left for its platform
ENDS = {
    "status": one_of("succeeded", "failed", "stopped"),
    "exit_code": optional(whole(0, 255)),
    "signal": optional(whole(1, 127)),
    "reason": optional(text(4000)),
}
TOLD_TO_END_AT = number(0, 1e11)


def default_log_cap() -> int:
    """Return the largest size of a worker's log in bytes: ``MUSTER_LOG_CAP`` of the environment, or else 64 MiB.

    Raises:
        JobError: the variable is no such number.
    """
    cap = os.environ.get("MUSTER_LOG_CAP") or str(LOG_CAP)
    if not cap.isdecimal() or not int(cap):
        raise JobError(f"MUSTER_LOG_CAP is {cap!r} in the environment; it must be a number of bytes, in digits alone.")
    return int(cap)


def agent_config(spec: WorkerSpec, cap: int, places: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the config of a worker's agent, to which the platform adds the worker's address and other facts.

    Args:
        spec: the worker.
        cap: largest size of its log in bytes.
        places: folders on a worker that shares no files with the session, as its platform chose them: any of
            ``library``, ``run``, ``scratch`` and ``project``. For those that are not given, the agent of a worker that
            is a machine of its own makes a new folder, and removes it in the end.
    """
    known = {**spec.places, **(places or {})}
    shares = bool(spec.places) or not is_symbolic(str(spec.scratch))
    run = known.get("run") or ("" if shares else symbol("run"))
    return {
        "name": spec.name,
        "role": spec.role,
        "index": spec.index,
        "generation": spec.generation,
        "run_id": spec.run_id,
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory_bytes,
        "gpu": spec.resources.gpu,
        "log": f"{run}/logs/{spec.log.name}" if run else str(spec.log),
        "log_cap": cap,
        "scratch": resolve(str(spec.scratch), known),
        "cwd": resolve(spec.cwd, known),
        "env": dict(spec.env),
        "session": spec.session and vars(spec.session),
        "ssh": spec.ssh and vars(spec.ssh),
        "process": spec.process and _process(spec.process),
        "ports": spec.ports,
        "port_range": spec.port_range,
        "places": known,
        "needs": spec.needs and vars(spec.needs),
        "imports": spec.imports and vars(spec.imports),
    }


def news_of(data: bytes) -> list[dict[str, Any]]:
    """Return the messages that an agent has left for its platform, oldest first; skip lines that are malformed."""
    found: list[dict[str, Any]] = []
    for line in data.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found


def outcome_of(data: bytes) -> dict[str, Any]:
    """Return a worker's end as its agent told it (``status``, ``exit_code``, ``signal``, ``reason``), or nothing."""
    for said in news_of(data):
        try:
            found = {name: check(said.get(name)) for name, check in ENDS.items()}
        except ValueError:
            continue
        told = {name: value for name, value in found.items() if value is not None}
        return {**told, "status": Status(found["status"])}
    return {}


def told_to_end_at(data: bytes) -> float | None:
    """Return when SIGTERM came to an agent that gave its scripts a notice then, in seconds since the epoch."""
    for said in news_of(data):
        with contextlib.suppress(ValueError):
            return float(TOLD_TO_END_AT(said.get("told_to_end_at")))
    return None


def _process(process: Process) -> dict[str, Any]:
    return {"argv": [*process.argv], "env": dict(process.env), "cwd": process.cwd}
