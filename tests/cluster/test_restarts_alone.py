"""Parameter servers: a killed worker is started again while the others go on; without a server all start again."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import muster
import pytest
from muster.dashboard.replay import replay
from muster.events import Listening, Note, ProcessStarted, Progress, RunAttempt
from muster.records import lookup
from muster.records.runs import Run

from tests.support import eventually

pytestmark = [pytest.mark.slow]

COORDINATOR = """
import os, time
import tensorflow as tf
from muster.training import report

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    weight, steps = tf.Variable(0.0), tf.Variable(0, dtype=tf.int64)
checkpoint = tf.train.Checkpoint(weight=weight, steps=steps)
manager = tf.train.CheckpointManager(checkpoint, "checkpoints", 2)
checkpoint.restore(manager.latest_checkpoint)
print(f"attempt {os.environ['MUSTER_ATTEMPT']} goes on after {int(steps.numpy())} steps", flush=True)


def examples():
    return tf.data.Dataset.from_tensor_slices(tf.random.uniform([1000])).repeat().batch(16)


@tf.function
def step(iterator):
    x = next(iterator)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((weight * x - 3 * x) ** 2)
    weight.assign_sub(0.05 * tape.gradient(loss, weight))
    return loss


iterator = iter(coordinator.create_per_worker_dataset(examples))
while int(steps.numpy()) < 200 or os.path.exists("waits"):
    results = [coordinator.schedule(step, args=(iterator,)) for _ in range(10)]
    coordinator.join()
    steps.assign_add(10)
    manager.save()
    report(int(steps.numpy()), loss=coordinator.fetch(results[-1]))
    if os.path.exists("waits"):
        time.sleep(0.3)
print("weight", float(weight.numpy()))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the script, which trains on until the file ``waits`` is removed."""
    (tmp_path / "train.py").write_text(COORDINATOR)
    (tmp_path / "waits").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def processes_of(run: Run, worker: str) -> list[int]:
    started = [event.data for event in run.events() if event.worker == worker and type(event.data) is ProcessStarted]
    return [data.pid for data in started if data.pid is not None]


def times_listening(run: Run, worker: str) -> int:
    return len([event for event in run.events() if event.worker == worker and type(event.data) is Listening])


def steps_of(run: Run) -> int:
    return max((event.data.step or 0 for event in run.events() if type(event.data) is Progress), default=0)


def weight_of(cluster: muster.Cluster) -> float:
    """The weight that was learned; below it TensorFlow may complain of what a worker has lost."""
    return float(cluster.logs("chief-0").rpartition("weight ")[2].split()[0])


def trained(killed: str) -> muster.Cluster:
    """Train with two workers and a server, of which one is killed after some steps."""

    def kill() -> None:
        eventually(lambda: lookup.list_runs() and steps_of(lookup.open_run()) >= 20, "the first steps", timeout=120)
        os.kill(processes_of(lookup.open_run(), killed)[0], signal.SIGKILL)
        eventually(lambda: times_listening(lookup.open_run(), killed) > 1, "it is back", timeout=120)
        Path("waits").unlink()

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        cluster: muster.Cluster = muster.run_cluster(
            2, n_ps=1, worker_script="train.py", dashboard=False, run_timeout=200, restarts=2
        ).cluster
        return cluster
    finally:
        killing.join()


def test_a_killed_worker_is_started_again_and_the_others_go_on() -> None:
    cluster = trained("worker-1")
    run = lookup.open_run()
    assert weight_of(cluster) == pytest.approx(3, abs=0.3)
    started = [len(processes_of(run, name)) for name in ("chief-0", "ps-0", "worker-0", "worker-1")]
    assert started == [1, 1, 1, 2]
    assert not [event for event in run.events() if type(event.data) is RunAttempt]
    notes = [event.data.text for event in run.events() if type(event.data) is Note]
    told = "worker-1 was ended by signal 9 (SIGKILL), and is started again; the others go on."
    assert told in notes
    assert [text for text in notes if text.startswith("worker-1 is back after ")]
    view = replay(run)
    assert told in view.notes
    assert {worker.status for worker in view.workers.values()} == {"succeeded", "ended"}
    assert "signal 9" not in view.workers["worker-1"].end
    assert told in run.explain()


def test_all_start_again_from_the_checkpoint_without_a_server() -> None:
    cluster = trained("ps-0")
    run = lookup.open_run()
    (reason,) = [event.data.reason for event in run.events() if type(event.data) is RunAttempt]
    assert "ps-0 was ended by signal 9" in reason
    assert [len(processes_of(run, name)) for name in ("chief-0", "ps-0", "worker-0", "worker-1")] == [2, 2, 2, 2]
    log = cluster.logs("chief-0")
    assert int(log.rpartition("attempt 2 goes on after ")[2].split()[0]) >= 20
    assert weight_of(cluster) == pytest.approx(3, abs=0.3)
