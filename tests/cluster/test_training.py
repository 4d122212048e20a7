"""TensorFlow and Horovod through run_cluster in every shape that it offers; demo and notebooks train to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import ScriptFailed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_anywhere")]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "worker_scripts"
TF1_PYTHON = ROOT / ".venv-tf1" / "bin" / "python"
GOOD = 0.95


@pytest.fixture(scope="session", autouse=True)
def digits() -> None:
    """The offline digits, in the cache before any worker asks for them."""
    import sys

    sys.path.insert(0, str(SCRIPTS))
    import mnist_data

    mnist_data.load()


@pytest.mark.skipif(not TF1_PYTHON.exists(), reason="set-up found no Python 3.7 to put TensorFlow 1.15 into")
@pytest.mark.usefixtures("only_here")
def test_tensorflow_1_15_on_python_3_7_trains_under_the_same_cluster() -> None:
    script = SCRIPTS / "mnist_ps_tf1.py"
    cluster = muster.run_cluster(
        2, 1, worker_script=script, args=["--epochs", 4], python=TF1_PYTHON, timeout_seconds=120, run_timeout=120
    ).cluster
    accuracy = cluster.result.metrics["test_accuracy"]
    assert accuracy >= 0.9
    assert f"test accuracy {accuracy:.4f}" in cluster.logs("worker-0")


def test_without_a_script_the_session_trains_through_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    import tensorflow as tf

    monkeypatch.setenv("no_grpc_proxy", "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which would answer for the servers, if it could

    spec, session = address = muster.run_cluster(2, n_ps=1)
    try:
        assert {role: len(addresses) for role, addresses in spec.items()} == {"ps": 1, "worker": 2}
        assert session == f"grpc://{spec['worker'][0]}"
        v1 = tf.compat.v1
        with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
            weight = v1.get_variable("weight", initializer=1.0)
            with tf.device("/job:worker/task:1"):
                step = v1.assign_add(weight, 2.0)
            with v1.Session(session) as connected:
                connected.run(v1.global_variables_initializer())
                connected.run(step)
                assert connected.run(weight) == 3.0
    finally:
        address.cluster.stop()
    assert address.cluster.wait().status == "stopped"


@pytest.mark.horovod
def test_a_function_of_the_notebook_runs_on_every_rank_and_its_values_come_back() -> None:
    def train() -> tuple[str, str, str]:
        import os

        return os.environ["HOROVOD_RANK"], os.environ["HOROVOD_LOCAL_RANK"], os.environ["HOROVOD_SIZE"]

    result = muster.run_cluster(2, worker_script=train, strategy="horovod", slots=2).cluster.result
    assert result.values == [("0", "0", "4"), ("1", "1", "4"), ("2", "0", "4"), ("3", "1", "4")]
    assert result.exit_codes == {f"rank {rank}": 0 for rank in range(4)}


def test_a_task_that_has_returned_serves_those_that_come_late_whatever_proxies_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("http_proxy", "https_proxy", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "10.0.0.0/8")  # of the cluster's API, where it runs on one
    monkeypatch.setenv("grpc_proxy", "")  # gRPC takes a blank one for a proxy without an address

    def run(cluster: Any, server: Any, task_index: int) -> tuple[float, list[str]]:
        import time

        import tensorflow as tf

        if task_index == 1:
            return 1.0, sorted(cluster.jobs)
        time.sleep(3)  # a session waits for every server, also for that of the other task, which is done by now
        with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
            variable = tf.compat.v1.get_variable("variable", initializer=2.0)
            with tf.compat.v1.Session(server.target) as session:
                session.run(tf.compat.v1.global_variables_initializer())
                return float(session.run(variable)), sorted(cluster.jobs)

    result = muster.run_cluster(2, 1, worker_script=run, run_timeout=60).cluster.result
    assert result.values == [(2.0, ["ps", "worker"]), (1.0, ["ps", "worker"])]
    assert result.exit_codes == {"ps-0": -15, "worker-0": 0, "worker-1": 0}


@pytest.mark.parametrize("launcher", ["horovodrun", "agents"])
def test_the_rank_that_raised_is_named_although_the_other_one_fails_too(launcher: str) -> None:
    def train() -> None:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        for step in range(100):
            if hvd.rank() == 1 and step == 3:
                raise ValueError("a bad batch")
            hvd.allreduce(tf.ones(10), name=f"step{step}")

    with pytest.raises(ScriptFailed) as caught:
        muster.run_cluster(2, worker_script=train, strategy="horovod", launcher=launcher)
    assert caught.value.rank == 1
    assert "ValueError: a bad batch" in str(caught.value)
    assert "Horovod has been shut down" in (muster.open_run("last").logs("worker-0"))
