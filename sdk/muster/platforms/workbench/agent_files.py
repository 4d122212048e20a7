"""The workbench's launch request for one worker, and the files through which session and agent exchange facts.

The files lie beside the worker's log, in a folder that the session and its workers share: ``<log>.launch`` is the
agent's config, which the agent removes when it has read it; ``<log>.news`` holds its messages to the platform.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from muster.job import WorkerSpec
from muster.platforms.agent_package import program
from muster.platforms.agents import LARGEST_NEWS, agent_config, default_log_cap, news_of, outcome_of
from muster.security.ssh import write_private

VARIABLES = {  # the workbench's environment variables that identify a worker
    "id": "CDSW_ENGINE_ID",
    "address": "CDSW_IP_ADDRESS",
    "session": "CDSW_MASTER_IP",
    "own": "CDSW_",
}


def launch_request(spec: WorkerSpec) -> dict[str, Any]:
    """Return the workbench's request for a worker. It holds no secrets, as the workbench shows it to users."""
    return {
        "kernel": "python3",
        "cpu": spec.resources.cpu,
        "memory": spec.resources.memory,
        "nvidia_gpu": spec.resources.gpu,
        "script": "",
        "code": program("bootstrap.py", str(config_path(spec))),
        "env": {},
    }


def config_path(spec: WorkerSpec) -> Path:
    """Return the path of the agent's config."""
    return spec.log.with_name(spec.log.name + ".launch")


def status_path(spec: WorkerSpec) -> Path:
    """Return the path of the file into which the agent writes its messages to the platform."""
    return spec.log.with_name(spec.log.name + ".news")


def write_config(spec: WorkerSpec) -> None:
    """Write the agent's config, for this user only. Raises OSError."""
    config = {**agent_config(spec, default_log_cap()), "news": str(status_path(spec)), "variables": VARIABLES}
    write_private(config_path(spec), json.dumps(config))


def withdraw(spec: WorkerSpec) -> list[str]:
    """Remove the agent's config. Returns the ids of the containers that have already taken it; usually none."""
    try:
        config_path(spec).unlink()
    except OSError:
        return [line["id"] for line in news_of(_news(spec)) if isinstance(line.get("id"), str)]
    return []


def remove_files(spec: WorkerSpec) -> None:
    """Remove the files that session and agent have written for each other."""
    for path in (config_path(spec), status_path(spec)):
        with contextlib.suppress(OSError):  # never written, or removed by the agent
            path.unlink()


def outcome(spec: WorkerSpec) -> dict[str, Any]:
    """Return the worker's end as its agent told it (``status``, ``exit_code``, ``signal``, ``reason``), or nothing."""
    return outcome_of(_news(spec))


def _news(spec: WorkerSpec) -> bytes:
    try:
        with status_path(spec).open("rb") as file:
            return file.read(LARGEST_NEWS)
    except OSError:
        return b""
