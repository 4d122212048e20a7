"""Whatever is killed: the error names it, the others are ended, nothing is left, and the record says what happened."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import Any

import pytest
from muster.errors import LauncherFailed, MusterError, RunFailed, WorkerKilled, WorkerLost, WorkerPreempted
from muster.run.cluster import Cluster
from muster.strategies.processes import Processes

from tests.faults.scene import PROMPT, Scene, anywhere_and_on_docker
from tests.support import SENDER, eventually, is_gone


def failure_of(cluster: Cluster) -> RunFailed:
    with pytest.raises(RunFailed) as raised:
        cluster.wait(timeout=30)
    return raised.value


def assert_recorded(scene: Scene, error: MusterError) -> None:
    """The run's folder tells the same story: its events, its result, and a log of each worker."""
    recorded = scene.recorded
    assert recorded.status == "failed"
    assert recorded.result is not None
    assert recorded.result["error"] == type(error).__name__
    assert recorded.result["worker"] == error.worker
    assert scene.events("run_ended")[0].data["status"] == "failed"
    assert all("ready" in recorded.logs(worker) for worker in recorded.worker_names)


@anywhere_and_on_docker
@pytest.mark.parametrize(
    ("victim", "error", "words"),
    [
        ("process worker-1", WorkerKilled, "worker-1 was ended by signal 9 (SIGKILL)"),
        ("process ps-0", WorkerKilled, "ps-0 was ended by signal 9 (SIGKILL)"),
        ("agent worker-0", WorkerLost, "worker-0 was lost: Its "),
        ("guard", WorkerLost, "guards the workers"),
    ],
)
def test_a_process_of_a_worker_is_killed(scene: Scene, victim: str, error: type[RunFailed], words: str) -> None:
    if victim == "guard" and not scene.is_here:
        pytest.skip("other platforms' guards have other duties, and tests of their own")
    cluster = scene.start(n_ps=1)
    scene.wait_for_phase("training")
    killed = scene.kill(victim)
    failure = failure_of(cluster)
    assert type(failure) is error
    assert words in failure.message
    if victim != "guard":
        assert "SIGKILL" in failure.message
        assert failure.worker == victim.split()[1]
    assert scene.noticed_after(killed) < PROMPT
    scene.assert_nothing_left()
    assert_recorded(scene, failure)


@anywhere_and_on_docker
def test_a_worker_whose_process_and_agent_are_told_to_end_was_preempted(scene: Scene) -> None:
    cluster = scene.start()
    scene.wait_for_phase("training")
    scene.kill("process worker-1", "agent worker-1", signum=signal.SIGTERM)
    for part in ("process worker-1", "agent worker-1"):  # so that the agent hears of both ends at once
        pid = scene.pid(part)
        os.kill(pid, signal.SIGCONT)
        eventually(functools.partial(is_gone, pid), f"the {part} has ended")
    failure = failure_of(cluster)
    assert type(failure) is WorkerPreempted
    assert failure.worker == "worker-1"
    scene.assert_nothing_left()
    assert_recorded(scene, failure)


@pytest.mark.parametrize(
    ("victim", "error", "reaction"),
    [
        ("process worker-1", WorkerKilled, "die"),
        ("process worker-1", WorkerKilled, "raise"),
        ("process worker-1", WorkerKilled, "abort"),
        ("agent worker-1", WorkerLost, "die"),
        ("agent worker-1", WorkerLost, "raise"),
        ("agent worker-1", WorkerLost, "abort"),
    ],
)
def test_one_that_fails_as_its_connection_to_the_victim_breaks_is_not_blamed(
    scene: Scene, victim: str, error: type[RunFailed], reaction: str
) -> None:
    os.mkfifo(scene.folder / "link")
    cluster = scene.start(SENDER, args=[reaction])
    scene.wait_for_phase("training")
    echo = scene.pid("process worker-0")
    with scene.session_held():  # which would otherwise sometimes stop the other before it has failed
        scene.kill(victim)
        eventually(lambda: is_gone(echo), "the other has failed as well")
    heard = time.time()
    failure = failure_of(cluster)
    assert (type(failure), failure.worker) == (error, "worker-1")
    (exited,) = scene.events("process_exited", "worker-0")
    assert exited.data["reason"] is None, "it failed by itself"
    assert scene.noticed_after(heard) < PROMPT
    scene.assert_nothing_left()


@anywhere_and_on_docker
def test_a_worker_is_lost_also_when_one_of_its_ranks_has_succeeded(scene: Scene) -> None:
    one_returns = """
        import os, time
        print("ready", flush=True)
        time.sleep(600 * int(os.environ["MUSTER_RANK"]))
    """
    cluster = scene.start(one_returns, n_workers=1, strategy=Processes(slots=2))
    eventually(lambda: scene.events("process_exited"), "rank 0 has ended")
    scene.kill("agent worker-0")
    failure = failure_of(cluster)
    assert (type(failure), failure.worker) == (WorkerLost, "worker-0")
    scene.assert_nothing_left()


@anywhere_and_on_docker
@pytest.mark.parametrize(
    ("victim", "error", "worker"),
    [
        pytest.param("rank 1", WorkerKilled, "worker-1", marks=pytest.mark.horovod),
        pytest.param("agent worker-0", WorkerLost, "worker-0", marks=pytest.mark.horovod),
        ("sshd worker-1", WorkerLost, "worker-1"),
        pytest.param("launcher", LauncherFailed, None, marks=pytest.mark.horovod),
        pytest.param("guard", WorkerLost, None, marks=pytest.mark.horovod),
    ],
)
@pytest.mark.slow
def test_a_process_of_horovod_is_killed(scene: Scene, victim: str, error: type[RunFailed], worker: str) -> None:
    if victim == "guard" and not scene.is_here:
        pytest.skip("other platforms' guards have other duties, and tests of their own")
    # Only what horovodrun starts needs a worker's sshd.
    options: dict[str, Any] = {"launcher": "horovodrun"} if victim.startswith("sshd") else {}
    cluster = scene.start(strategy="horovod", **options)
    scene.wait_for_phase("training")
    killed = scene.kill(victim)
    failure = failure_of(cluster)
    assert type(failure) is error
    assert "SIGKILL" in failure.message or victim == "guard"
    if victim != "guard":
        assert failure.worker == worker
    assert failure.rank == (1 if victim == "rank 1" else None)
    assert scene.noticed_after(killed) < PROMPT
    scene.assert_nothing_left()
    assert_recorded(scene, failure)
