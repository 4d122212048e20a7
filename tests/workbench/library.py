"""Writes the workbench's own client library, as its public calls behave, over the REST interface."""

from __future__ import annotations

from pathlib import Path

SOURCE = """
import concurrent.futures
import os
import random
import time

import requests

AUTH = (os.environ["LIBRARY_CDSW_API_KEY"], "")
PROJECT, ENGINE = os.environ["LIBRARY_CDSW_PROJECT_URL"], os.environ["LIBRARY_CDSW_ENGINE_URL"]


def _launch(order):
    time.sleep(random.random() / 20)
    return requests.post(PROJECT + "/dashboards", json=order, auth=AUTH).json()  # a refusal is a dict without an id


def launch_workers(n, cpu, memory, nvidia_gpu=0, kernel="python3", script="", code="", env={}):
    order = {
        "cpu": cpu, "memory": memory, "nvidia_gpu": nvidia_gpu, "kernel": kernel, "script": script, "code": code,
        "env": env, "master_id": os.environ.get("CDSW_MASTER_ID") or os.environ["CDSW_ENGINE_ID"],
    }
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        launches = [pool.submit(_launch, order) for _ in range(n)]
        return [launch.result() for launch in concurrent.futures.as_completed(launches)]


def list_workers():
    return requests.get(ENGINE + "/workers", auth=AUTH).json()


def stop_workers(*ids):
    chosen = ids or [worker["id"] for worker in list_workers()]
    return [requests.put(f"{PROJECT}/dashboards/{worker}/stop", auth=AUTH) for worker in chosen]
"""


def write_library(folder: Path, name: str) -> None:
    """Write it as the module ``name``, such as ``cml.workers_v1``, into ``folder``."""
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SOURCE)
