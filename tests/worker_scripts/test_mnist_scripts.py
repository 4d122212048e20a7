"""The ready scripts with real processes: two workers learn the digits, and each script runs alone."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest
from training.listener import Listener
from training.processes import REPOSITORY, alone, end, environment, finish, horovodrun, start

pytestmark = pytest.mark.slow

SCRIPTS = REPOSITORY / "worker_scripts"
SERVE = Path(__file__).parent / "serve.py"


@pytest.fixture(autouse=True)
def offline_digits(tmp_path, monkeypatch):
    monkeypatch.delenv("MUSTER_MNIST", raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))


def free_addresses(n):
    """Addresses on this machine whose ports are free now."""
    sockets = [socket.socket() for _ in range(n)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


class Tasks:
    """The tasks of one TensorFlow cluster; those still running when the block is left are ended."""

    def __init__(self, **counts):
        addresses = iter(free_addresses(sum(counts.values())))
        self.cluster = {job: [next(addresses) for _ in range(count)] for job, count in counts.items()}
        self._running = []

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for process in self._running:
            if process.poll() is None:
                end(process)

    def start(self, job, index, *script, **variables):
        """Serve, or run a script's `run` beside the server."""
        command = [sys.executable, str(SERVE), json.dumps(self.cluster), job, str(index), *map(str, script)]
        return self._start(command, variables)

    def start_program(self, job, index, script, **variables):
        config = {"cluster": self.cluster, "task": {"type": job, "index": index}}
        return self._start([sys.executable, str(script)], {"TF_CONFIG": json.dumps(config), **variables})

    def _start(self, command, variables):
        process = start(command, environment(**variables))
        self._running.append(process)
        return process


def printed_accuracy(output):
    (accuracy,) = re.findall(r"test accuracy (0\.\d{4})$", output, re.MULTILINE)
    return float(accuracy)


def assert_reported(messages, accuracy):
    assert {"loss", "accuracy"} <= set(messages[0]["metrics"])
    assert messages[-1]["metrics"]["test_accuracy"] == pytest.approx(accuracy, abs=1e-4)
    steps = [message["step"] for message in messages if "epoch" not in message and "step" in message]
    assert steps == sorted(steps)


@pytest.mark.parametrize("arguments", [[], ["--sync"]], ids=["asynchronous", "synchronous"])
def test_parameter_servers_in_the_style_of_tensorflow_1(arguments):
    script = SCRIPTS / "mnist_ps_tf1.py"
    with Listener() as agent, Tasks(ps=1, worker=2) as tasks:
        tasks.start("ps", 0)
        workers = [
            tasks.start("worker", index, script, *arguments, MUSTER_REPORT=agent.path, MUSTER_RANK=str(index))
            for index in range(2)
        ]
        outputs = [finish(worker) for worker in workers]
    accuracy = printed_accuracy(outputs[0])
    assert accuracy >= 0.95
    assert "test accuracy" not in outputs[1]
    assert_reported(agent.of_rank(0), accuracy)
    other = agent.of_rank(1)[-1]
    assert 0 < other["examples"] < 32 * other["steps"] * (1 + bool(arguments))  # both of them worked


def test_parameter_servers_in_the_style_of_tensorflow_2():
    with Listener() as agent, Tasks(chief=1, ps=1, worker=2) as tasks:
        for job, index in [("ps", 0), ("worker", 0), ("worker", 1)]:
            tasks.start(job, index)
        chief = tasks.start_program("chief", 0, SCRIPTS / "mnist_ps_tf2.py", MUSTER_REPORT=agent.path)
        accuracy = printed_accuracy(finish(chief))
    assert accuracy >= 0.95
    assert_reported(agent.messages, accuracy)


def test_horovod(tmp_path):
    with Listener() as agent:
        checkpoint = tmp_path / "checkpoints" / "model.keras"
        output = horovodrun(
            SCRIPTS / "mnist_horovod.py", "--checkpoint", checkpoint,
            MUSTER_REPORT=agent.path, MUSTER_TENSORBOARD=str(tmp_path / "board"),
        )  # fmt: skip
    accuracy = printed_accuracy(output)
    assert accuracy >= 0.95
    assert_reported(agent.of_rank(0), accuracy)
    assert agent.of_rank(1)[-1]["examples"] == agent.of_rank(1)[-1]["epochs"] * 23 * 32
    assert [path.name for path in checkpoint.parent.iterdir()] == ["model.keras"]
    written = [path.parent.name for path in (tmp_path / "board").rglob("*tfevents*")]
    assert sorted(written) == ["train", "validation"], "by rank 0 alone"


@pytest.mark.parametrize(
    "command",
    [
        "mnist_ps_tf1.py --steps 3",
        "mnist_ps_tf1.py --steps 3 --sync",
        "mnist_ps_tf2.py --steps 3",
        "mnist_horovod.py",
        "mnist_multi_worker.py",
    ],
)
def test_alone_in_one_process(command):
    script, *arguments = command.split()
    epochs = [] if "--steps" in arguments else ["--epochs", "1"]
    output = alone(SCRIPTS / script, *arguments, *epochs, "--limit-train", "64", "--batch-size", "16")
    assert "64 to train, 359 to test" in output
    assert 0 <= printed_accuracy(output) < 1
