"""Kills under a real mpiexec, in the middle of collectives: named, noticed soon, and nothing is left."""

from __future__ import annotations

import os
import signal
from typing import Any

import muster
import pytest
from muster.errors import LauncherFailed, RunFailed, RunTimeout, WorkerKilled, WorkerLost
from muster.run.cluster import Cluster

from tests.faults.scene import PROMPT, Scene, anywhere_and_on_docker
from tests.mpi.conftest import Installed

pytestmark = pytest.mark.slow


def training(scene: Scene, mpi: Installed, **options: Any) -> Cluster:
    """Two ranks that add up for ever."""
    cluster: Cluster = muster.run_cluster(
        2, worker_script=mpi.program, strategy=mpi.strategy(), args=["on"], wait=False, **options
    ).cluster
    scene.wait_for_output()
    return cluster


@anywhere_and_on_docker
@pytest.mark.parametrize(
    ("victim", "error", "words"),
    [
        ("rank 1", WorkerKilled, "rank 1 (worker-1) was ended by signal 9 (SIGKILL)"),
        ("agent worker-1", WorkerLost, "worker-1 was lost"),
        ("sshd worker-1", WorkerLost, "worker-1 was lost"),
        ("daemon worker-1", LauncherFailed, "starts on worker-1 was ended by signal 9 (SIGKILL)"),
        ("mpiexec", LauncherFailed, "itself failed: it ended with signal 9 (SIGKILL)"),
    ],
)
def test_what_is_killed_is_named(scene: Scene, mpi: Installed, victim: str, error: type[RunFailed], words: str) -> None:
    cluster = training(scene, mpi)
    killed = scene.kill(victim)
    with pytest.raises(RunFailed) as raised:
        cluster.wait(timeout=30)
    assert type(raised.value) is error
    assert words in raised.value.message
    assert scene.noticed_after(killed) < PROMPT
    scene.assert_nothing_left()


def test_an_mpiexec_that_does_not_end_when_asked_is_ended_at_the_deadline(scene: Scene, mpi: Installed) -> None:
    with scene.timed_from_output_on():
        cluster = training(scene, mpi, run_timeout=2)
        os.kill(scene.pid("mpiexec"), signal.SIGSTOP)  # as deaf to SIGTERM as with its network cut
        scene.remember()
        with pytest.raises(RunTimeout):
            cluster.wait(timeout=30)
    scene.assert_nothing_left(within=0.5)


def test_an_interrupt_ends_everything(scene: Scene, mpi: Installed) -> None:
    cell = (
        "import muster\nfrom muster.strategies.mpi import MPI\n"
        f"muster.run_cluster(2, worker_script={str(mpi.program)!r}, strategy=MPI(mpiexec={mpi.mpiexec!r}), args=['on'])"
    )
    notebook = scene.notebook(cell)
    scene.wait_for_phase("training")
    scene.remember()
    notebook.interrupt()
    assert notebook.outcome()["raised"] == "RunInterrupted"
    scene.assert_nothing_left(within=0.5)
    assert scene.recorded.status == "stopped"
