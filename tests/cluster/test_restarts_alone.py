"""Parameter servers: a killed worker is started again while the others go on; without a server all start again."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import muster
import pytest
from muster.dashboard.replay import replay
from muster.events import Listening, Note, ProcessStarted, Progress, RunAttempt, WorkerReady
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
manager = tf.train.CheckpointManager(checkpoint, os.environ.get("KEPT", "checkpoints"), 2)
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


def waits():
    return os.path.exists("waits") and os.environ["MUSTER_ATTEMPT"] <= os.environ.get("WAITS_UNTIL", "9")


iterator = iter(coordinator.create_per_worker_dataset(examples))
while int(steps.numpy()) < 200 or waits():
    results = [coordinator.schedule(step, args=(iterator,)) for _ in range(10)]
    coordinator.join()
    steps.assign_add(10)
    manager.save()
    report(int(steps.numpy()), loss=coordinator.fetch(results[-1]))
    if waits():
        time.sleep(0.3)
print("weight", float(weight.numpy()))
"""


TASK = """
import os, time
import tensorflow as tf
from muster.training import report


def run(cluster, server, task_index):
    place = tf.compat.v1.train.replica_device_setter(worker_device=f"/job:worker/task:{task_index}", cluster=cluster)
    with tf.Graph().as_default(), tf.compat.v1.device(place):
        weight = tf.compat.v1.get_variable("weight", initializer=0.0)
        steps = tf.compat.v1.train.get_or_create_global_step()
        x = tf.random.uniform([16])
        loss = tf.reduce_mean((weight * x - 3 * x) ** 2)
        train = tf.compat.v1.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=steps)
        checkpoint = tf.train.latest_checkpoint("checkpoints")
        kept = int(checkpoint.rpartition("-")[2]) if checkpoint else 0
        with tf.compat.v1.train.MonitoredTrainingSession(
            server.target, task_index == 0, "checkpoints", save_checkpoint_steps=10, save_summaries_steps=None,
            save_summaries_secs=None, log_step_count_steps=None,
        ) as session:
            reached, learnt = session.run([steps, weight])
            assert reached >= kept  # more once the other task has trained on, which does not wait for this one
            print(f"attempt {os.environ['MUSTER_ATTEMPT']} goes on after {kept} steps", flush=True)
            while reached < 200 or os.path.exists("waits"):
                reached, learnt, _ = session.run([steps, weight, train])
                report(int(reached))
                if os.path.exists("waits"):
                    time.sleep(0.1)
    print("weight", float(learnt), flush=True)
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


def kill_in_turn(victims: Sequence[str]) -> None:
    """Kill one in each attempt, once it has come further than the one before: a worker's process, or its ``agent``."""
    came_to = 0
    eventually(lookup.list_runs, "there is a run", timeout=60)
    run = lookup.open_run()
    for number, victim in enumerate(victims, 1):
        came_to = further_than(came_to, run, number)
        kind, _, worker = victim.rpartition(" ")
        pids = [event.data.pid for event in run.events() if event.worker == worker and type(event.data) is WorkerReady]
        os.kill(pids[-1] or 0 if kind else processes_of(run, worker)[-1], signal.SIGKILL)
    further_than(came_to, run, len(victims) + 1)
    Path("waits").unlink()


def further_than(steps: int, run: Run, number: int) -> int:
    """Wait until an attempt is 20 steps further, and return how far it is."""

    def found() -> int:
        time.sleep(0.2)  # as all of the journal is read
        attempts = replay(run).attempts
        now = attempts[-1].furthest if attempts and attempts[-1].number == number else None
        return now.step if now is not None and now.step >= steps + 20 else 0

    return int(eventually(found, f"attempt {number} trains", timeout=120))


@pytest.mark.elsewhere  # only because it takes long
@pytest.mark.parametrize(
    ("script", "victims"),
    [
        (COORDINATOR, ["agent worker-1", "chief-0", "agent ps-0"]),
        (TASK, ["worker-0", "agent ps-0"]),
    ],
    ids=["coordinator", "tasks"],
)
def test_all_start_again_without_any_other_role_or_a_whole_worker(here: Path, script: str, victims: list[str]) -> None:
    (here / "train.py").write_text(script)
    killing = threading.Thread(target=kill_in_turn, args=[victims])
    killing.start()
    try:
        with muster.pool(4) as pool:  # for its warm starts: what is killed is as anything else
            cluster = pool.run_cluster(
                2, n_ps=1, worker_script="train.py", dashboard=False, run_timeout=300, restarts=len(victims)
            ).cluster
    finally:
        Path("waits").unlink(missing_ok=True)
        killing.join()
    attempts = replay(lookup.open_run()).attempts
    assert len(attempts) == len(victims) + 1
    for victim, attempt in zip(victims, attempts, strict=False):
        kind, _, worker = victim.rpartition(" ")
        assert worker in attempt.ended_by
        assert ("was lost" if kind else "was ended by signal 9") in attempt.ended_by
    trains = "chief-0" if script == COORDINATOR else "worker-0"
    log = cluster.logs(trains)
    resumed = [int(steps) for steps in re.findall(r"attempt \d goes on after (\d+) steps", log)]
    assert len(resumed) == len(attempts)
    assert resumed[0] == 0
    assert resumed == sorted(set(resumed)), "each attempt goes on further than the one before"
    assert float(log.rpartition("weight ")[2].split()[0]) == pytest.approx(3, abs=0.3)
    lost = sum(attempt.lost or 0.0 for attempt in attempts)
    assert lost > 0
    assert cluster.result.timings["lost"] == pytest.approx(lost, abs=0.1)


@pytest.mark.elsewhere  # only because it takes long
def test_a_killed_task_is_started_again_and_the_first_goes_on(here: Path) -> None:
    (here / "train.py").write_text(TASK)
    trained("worker-1")
    run = lookup.open_run()
    assert [len(processes_of(run, name)) for name in ("ps-0", "worker-0", "worker-1")] == [1, 1, 2]
    assert not [event for event in run.events() if type(event.data) is RunAttempt]
    for worker in ("worker-0", "worker-1"):
        assert float(run.logs(worker).rpartition("weight ")[2].split()[0]) == pytest.approx(3, abs=0.3)
