"""Whole runs on a real Docker, which pulls from a real registry."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import MusterError, WorkerLost, WorkerOutOfMemory

from tests.platforms.containers_docker import Docker, fetch, why_not
from tests.support import eventually

ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Docker]:
    """A Docker of the tests' own; skips where there can be none."""
    reason = why_not()
    root = None if reason else fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Docker cannot be fetched here")
    daemon = Docker(root)
    yield daemon
    daemon.remove()


@pytest.fixture
def docker(daemon: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """The Docker that is used by default, from a folder of the user's; fails where something is left on it."""
    monkeypatch.setenv("DOCKER_HOST", daemon.url)
    monkeypatch.setenv("DOCKER_CONFIG", str(daemon.folder))
    monkeypatch.chdir(tmp_path)
    yield daemon
    eventually(lambda: daemon.left_behind() == [], "nothing is left on the engine", timeout=60)


@pytest.fixture
def registry(docker: Docker) -> Iterator[str]:
    """The address of a registry that runs."""
    yield docker.start_registry()
    docker.stop_registry()


def run(script: str, n: int = 2, **options: Any) -> muster.Cluster:
    Path("train.py").write_text(script)
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, **options}
    cluster: muster.Cluster = muster.run_cluster(n, worker_script="train.py", platform="containers", **options).cluster
    return cluster


def test_two_containers_train_and_share_nothing(docker: Docker, tmp_path: Path) -> None:
    found = run(
        "import json, os\n"
        "print(json.dumps({'rank': os.environ['RANK'], 'owner': os.getuid(), 'cwd': os.getcwd(),\n"
        f"    'sees': os.path.exists({str(tmp_path)!r})}}))\n"
    )
    said = [json.loads(found.logs(f"worker-{index}")) for index in range(2)]
    common = {"owner": os.getuid(), "cwd": "/muster/project", "sees": False}
    assert said == [{"rank": str(index), **common} for index in range(2)]


def test_an_image_is_pulled_and_how_far_that_is_is_told(docker: Docker, registry: str) -> None:
    image = f"{registry}/team/python:1"
    docker.add_python(image)
    docker.run("push", image)
    docker.run("rmi", image)
    events: list[Any] = []
    found = run("import sys\nprint(sys.executable)\n", image=image, observers=[events.append])
    assert found.logs("worker-1") == "/usr/bin/python3\n"
    told = [str(event) for event in events if "pulling the image" in str(event)]
    assert told, "nothing was told of the pull"
    docker.run("rmi", image)


def test_an_image_that_the_registry_does_not_have(docker: Docker, registry: str) -> None:
    with pytest.raises(MusterError, match="could not be pulled: the registry has no such image"):
        run("print('never')\n", 1, image=f"{registry}/team/nowhere:1")


def test_a_registry_that_does_not_run(docker: Docker) -> None:
    image = f"{docker.start_registry()}/team/python:2"
    docker.stop_registry()
    with pytest.raises(MusterError, match="could not be pulled: the registry does not answer"):
        run("print('never')\n", 1, image=image)


def test_a_child_that_the_kernel_ends_for_want_of_memory(docker: Docker) -> None:
    # The engine says nothing of it: only the agent sees what the kernel has counted.
    with pytest.raises(WorkerOutOfMemory, match="GB of memory and was given 0.5 GB"):
        run("data = bytearray(b'.') * (2 << 30)\n", 1)


def test_a_daemon_that_is_stopped_takes_its_containers_along(docker: Docker) -> None:
    running = run(ENDLESS, wait=False)
    started = "started\nstarted\n"
    eventually(lambda: running.logs("worker-0") + running.logs("worker-1") == started, "both have started", timeout=60)
    docker.stop()
    try:
        with pytest.raises(WorkerLost, match=r"worker-\d was (lost|taken away)"):
            running.wait()
    finally:
        docker.start()
