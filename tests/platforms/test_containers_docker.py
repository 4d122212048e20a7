"""What only Docker does: it takes its containers along when it is stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent.claims import claim
from muster.errors import PlatformError, WorkerLost
from muster.job import Resources, Status
from muster.platforms import machine
from muster.platforms.containers import platform as module
from muster.platforms.containers.platform import ContainersPlatform

from tests.platforms.containers_docker import Docker
from tests.platforms.test_containers import NAMED_SECONDS
from tests.support import Run, eventually, shell

GPU = f"GPU-{os.getpid()}-docker"  # a name that no other test uses at the same time
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of the user's, which is the working directory."""
    monkeypatch.chdir(tmp_path)


def run(script: str, n: int = 2, **options: Any) -> muster.Cluster:
    Path("train.py").write_text(script)
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, **options}
    cluster: muster.Cluster = muster.run_cluster(n, worker_script="train.py", platform="containers", **options).cluster
    return cluster


def test_a_daemon_that_is_stopped_takes_its_containers_along(docker: Docker, caplog: pytest.LogCaptureFixture) -> None:
    running = run(ENDLESS, wait=False)
    started = "started\nstarted\n"
    eventually(lambda: running.logs("worker-0") + running.logs("worker-1") == started, "both have started", timeout=60)
    stopped_at = time.time()
    docker.stop()  # which closes its socket at once, and gives the containers some seconds
    try:
        with pytest.raises(WorkerLost, match=r"worker-(\d was|0 and worker-1 were) (lost|taken away)") as raised:
            running.wait()
        assert "the platform cannot be asked: Docker does not answer at unix://" in str(raised.value)
        said = [record for record in caplog.records if "Docker does not answer at unix://" in record.getMessage()]
        assert said[0].created - stopped_at <= NAMED_SECONDS
    finally:
        docker.start()
    eventually(lambda: docker.left_behind() == [], "the guard has removed what could not be removed before", timeout=60)


@pytest.fixture
def platform(docker: Docker, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[ContainersPlatform]:
    """A platform object with a container that runs, and another one's GPU, which Docker has no driver for here."""
    monkeypatch.setattr(machine, "gpus", lambda: [GPU])
    platform = ContainersPlatform()
    (handle,) = platform.submit([run.spec("worker-0", process=shell("sleep 600"))], "first")
    eventually(lambda: platform.poll([handle])[0].status is Status.RUNNING, "it runs", timeout=60)
    platform._gpus.claim("another", run.spec("worker-1", resources=Resources(1, 0.5, 1)), is_here=True)
    yield platform
    platform.close()


def is_free() -> bool:
    """Return whether nobody has the GPU."""
    free = claim([GPU], 1)
    if free is not None:
        free.close()
    return free is not None


def test_gpus_of_what_could_not_be_removed_are_free_once_the_guard_has_removed_it(
    docker: Docker, platform: ContainersPlatform, run: Run
) -> None:
    docker.stop()
    try:
        with pytest.raises(PlatformError, match="Docker does not answer"):
            platform.close()
        assert not is_free(), "its container may run for a while yet"
    finally:
        docker.start()
    later = platform.submit([run.spec("worker-0", generation=1, process=shell("sleep 600"))], "second")
    eventually(is_free, "the guard has removed the first container", timeout=30)
    eventually(lambda: platform.poll(later)[0].status is Status.RUNNING, "the guard leaves others alone", timeout=60)


def test_what_an_interrupt_leaves_is_removed_by_the_guard(
    docker: Docker, platform: ContainersPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(module, "remove_everything", interrupted)
        platform.close()
    eventually(lambda: docker.left_behind() == [], "nothing is left", timeout=30)
    eventually(is_free, "the guard has ended")
