"""TensorFlow's own allreduce among workers, for real."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import muster
import pytest
from muster.errors import WorkerKilled
from muster.training import stages

from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_anywhere")]

SCRIPT = Path(__file__).parents[2] / "worker_scripts" / "mnist_multi_worker.py"


def test_two_workers_learn_the_digits_and_end_with_the_same_weights() -> None:
    epochs = ("--epochs", "3")
    cluster = muster.run_cluster(2, worker_script=SCRIPT, args=epochs, strategy="multi_worker", run_timeout=180).cluster
    assert cluster.result.metrics["test_accuracy"] >= 0.9
    weights = [re.findall(r"^weights (\w+)$", cluster.logs(worker), re.MULTILINE) for worker in cluster.plan.processes]
    assert weights[0] == weights[1] != []
    assert "test accuracy" in cluster.logs("worker-0")
    assert "test accuracy" not in cluster.logs("worker-1")
    notes = [event.data["text"] for event in muster.open_run(cluster.run_id).events() if event.kind == "note"]
    alarms = (stages.ALONE, stages.APART, stages.NO_STRATEGY, "the same examples")
    assert not [note for note in notes if any(alarm in note for alarm in alarms)]


def test_the_worker_that_was_killed_is_named_while_the_other_one_waits_for_it() -> None:
    def train() -> None:
        import os

        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        step = tf.function(lambda: strategy.reduce("SUM", strategy.run(lambda: tf.ones(3)), axis=None))
        for number in range(10**9):
            step()
            if number == 3:
                print("ready", os.getpid(), flush=True)

    cluster = muster.run_cluster(2, worker_script=train, strategy="multi_worker", wait=False).cluster
    (pid,) = eventually(lambda: re.findall(r"^ready (\d+)", cluster.logs("worker-1"), re.MULTILINE), "it trains", 60)
    command = [sys.executable, "-m", "muster", "exec", "last", "worker-1", "--", "kill", "-9", pid]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    killed = time.monotonic()
    with pytest.raises(WorkerKilled, match="worker-1 was ended by signal 9"):
        cluster.wait(timeout=30)
    assert time.monotonic() - killed < 20
