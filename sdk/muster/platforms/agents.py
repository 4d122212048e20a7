"""A worker as its agent needs it, whatever the platform: plain data."""

from __future__ import annotations

import os
from typing import Any

from muster.job import Process, WorkerSpec

LOG_CAP = 64 << 20  # bytes


def default_log_cap() -> int:
    """Largest size of a worker's log in bytes: ``MUSTER_LOG_CAP`` from the environment, or else 64 MiB."""
    return int(os.environ.get("MUSTER_LOG_CAP") or LOG_CAP)


def agent_config(spec: WorkerSpec, cap: int) -> dict[str, Any]:
    """Return the config of a worker's agent; the platform adds where the worker is, and what it has.

    Args:
        spec: the worker.
        cap: largest size of its log in bytes.
    """
    return {
        "name": spec.name,
        "role": spec.role,
        "index": spec.index,
        "generation": spec.generation,
        "run": spec.run,
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory_bytes,
        "gpu": spec.resources.gpu,
        "log": f"{spec.places['run']}/logs/{spec.log.name}" if "run" in spec.places else str(spec.log),
        "log_cap": cap,
        "scratch": str(spec.scratch),
        "cwd": spec.cwd,
        "env": dict(spec.env),
        "session": spec.session and vars(spec.session),
        "ssh": spec.ssh and vars(spec.ssh),
        "process": spec.process and _process(spec.process),
        "ports": spec.ports,
        "port_range": spec.port_range,
        "places": dict(spec.places),
    }


def _process(process: Process) -> dict[str, Any]:
    return {"argv": [*process.argv], "env": dict(process.env), "cwd": process.cwd}
