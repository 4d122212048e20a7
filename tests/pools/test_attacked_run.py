"""A real run beside clients that have nothing but its port and the path of its control socket, or a token too many."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import psutil
import pytest
from muster.agent import frames, wire
from muster.pools.endpoint import Endpoint

from tests.support import eventually

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # what the whole process uses is looked at

SECONDS = 2.0  # of each attack
ODD: tuple[Any, ...] = (
    None, True, -1, 1 << 70, 1e308, "", "\ud800", "__proto__", "../..", [], {}, [[[[]]]], {"a": {"a": {}}}, "x" * 3000,
)  # fmt: skip
SCRIPT = """
import os, time
from muster.training.progress import report
print("ready", flush=True)
step = 0
while not os.path.exists("enough"):
    step += 1
    report(step=step, loss=1.0)
    time.sleep(0.02)
"""

Attack = Callable[["Target", random.Random], None]


class Target:
    """A run under way, as those see it who mean no good."""

    def __init__(self, cluster: muster.Cluster) -> None:
        orchestrator = cluster._execution.orchestrator
        assert orchestrator is not None, "it is up"
        self.endpoint: Endpoint = orchestrator.pool.endpoint
        control = json.loads((cluster.run_dir / "control.json").read_text())
        self.control, self.token = control["socket"], control["token"]

    def connect(self) -> socket.socket:
        return socket.create_connection(self.endpoint.listening, timeout=2)

    def dial(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(self.connect())

    def ask(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        try:
            client.settimeout(2)
            client.connect(self.control)
        except OSError:  # where too many have connected
            client.close()
            raise
        return client


def half_open(target: Target, dice: random.Random) -> None:
    """A handshake that stops in the middle, many times, each of them held for a while."""
    with contextlib.ExitStack() as held:
        for _ in range(100):
            client = held.enter_context(target.connect())
            client.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[: dice.randrange(1, 11)])


def mutated_hellos(target: Target, dice: random.Random) -> None:
    """A hello of which a field is another one: also with the right token, but another name or generation."""
    worker, other = dice.sample(["worker-0", "worker-1"], 2)
    address = target.endpoint.address_for(worker)
    hello = {"version": wire.VERSION, "token": address.token, "worker": other, "pid": 1, "host": "127.0.0.1"}
    hello |= dice.choice(
        [
            {},
            {"worker": worker, "generation": dice.choice([1, -1, 1 << 60])},
            {"worker": worker},
            {dice.choice([*hello, "ports", "gpus", "received"]): dice.choice(ODD)},
        ]
    )
    data = frames.encode("hello", **hello)
    data = dice.choice([data, data[: dice.randrange(len(data))], data * 3, dice.randbytes(2000) + b"\n", b"[" * 8000])
    with target.dial() as client:
        client.sendall(data)
        client.recv(100)


def odd_requests(target: Target, dice: random.Random) -> None:
    """A request that is none, or one with odd fields and the right token; its answer is not read, or slowly."""
    request: dict[str, Any] = {
        "token": target.token,
        "ask": dice.choice(["state", "stacks", "logs", "exec", "forward"]),
    }
    request |= {dice.choice(["worker", "name", "argv", "size", "port", "terminal", "ask", "token"]): dice.choice(ODD)}
    data = dice.choice([json.dumps(request).encode(), b"[" * 60_000, b"\xff" * 100, b"1", dice.randbytes(70_000)])
    with target.ask() as client:
        client.sendall(data + dice.choice([b"\n", b""]))
        if dice.random() < 0.5:
            client.recv(10)


def readers_that_stop(target: Target, dice: random.Random) -> None:
    """A command on a worker that prints without end, whose output nobody reads."""
    request = {"token": target.token, "ask": "exec", "worker": "worker-0", "argv": ["yes"]}
    with target.ask() as client:
        client.sendall(json.dumps(request).encode() + b"\n")
        client.recv(100)
        time.sleep(0.3)


@pytest.fixture
def attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[muster.Cluster]:
    """A run that trains until the test has it end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    cluster: muster.Cluster = muster.run_cluster(
        2, strategy="processes", worker_script="train.py", memory=0.5, dashboard=False, wait=False
    ).cluster
    eventually(lambda: all("ready" in cluster.logs(f"worker-{index}") for index in range(2)), "it trains")
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("attack", [half_open, mutated_hellos, odd_requests, readers_that_stop])
def test_a_run_ends_well_whoever_is_at_its_doors(
    attacked: muster.Cluster, attack: Attack, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    target, process = Target(attacked), psutil.Process()
    memory, descriptors = process.memory_info().rss, process.num_fds()
    until, made = time.monotonic() + SECONDS, []

    def go_on(seed: int) -> None:
        dice = random.Random(seed)
        while time.monotonic() < until:
            with contextlib.suppress(OSError):  # it was turned away
                made.append(1)
                attack(target, dice)

    clients = [threading.Thread(target=go_on, args=(seed,)) for seed in range(3)]
    for client in clients:
        client.start()
    for client in clients:
        client.join(30)
    assert len(made) > 3
    assert process.memory_info().rss - memory < 100e6
    eventually(lambda: process.num_fds() <= descriptors + 8, "what they have opened is closed", 30)
    assert os.path.exists(target.control)
    (tmp_path / "enough").touch()
    assert attacked.wait().status == "succeeded"
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(caplog.records) < 30
