"""The workbench's own client library, as its public calls behave, over the REST interface.

Tests copy it to where a session would find ``cml.workers_v1`` or ``cdsw``.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import time
from typing import Any

import requests

AUTH = (os.environ["LIBRARY_CDSW_API_KEY"], "")
PROJECT, ENGINE = os.environ["LIBRARY_CDSW_PROJECT_URL"], os.environ["LIBRARY_CDSW_ENGINE_URL"]


def launch_workers(
    n: int,
    cpu: float,
    memory: float,
    nvidia_gpu: int = 0,
    kernel: str = "python3",
    script: str = "",
    code: str = "",
    env: dict[str, str] = {},  # noqa: B006  (as it is there)
) -> list[dict[str, Any]]:
    """Launch workers; they come in the order of the answers, and the refused among them as dicts without an id."""
    order = {
        "cpu": cpu, "memory": memory, "nvidia_gpu": nvidia_gpu, "kernel": kernel, "script": script, "code": code,
        "env": env, "master_id": os.environ.get("CDSW_MASTER_ID") or os.environ["CDSW_ENGINE_ID"],
    }  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        launches = [pool.submit(_launch, order) for _ in range(n)]
        return [launch.result() for launch in concurrent.futures.as_completed(launches)]


def list_workers() -> Any:
    """The session's workers."""
    return requests.get(ENGINE + "/workers", auth=AUTH).json()


def stop_workers(*ids: str) -> list[requests.Response]:
    """Ask workers to end: these, or all of the session."""
    chosen = ids or [worker["id"] for worker in list_workers()]
    return [requests.put(f"{PROJECT}/dashboards/{worker}/stop", auth=AUTH) for worker in chosen]


def _launch(order: dict[str, Any]) -> Any:
    time.sleep(random.random() / 20)
    return requests.post(PROJECT + "/dashboards", json=order, auth=AUTH).json()
