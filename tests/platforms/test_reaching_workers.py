"""Workers that share nothing with the session are reached all the same, with what they have and what they leave.

Each test runs on hosts, in containers of Podman's and in containers of Docker's.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import muster
import pytest
from muster.errors import ScriptFailed

from tests.engines import SHARING_NOTHING
from tests.platforms.in_a_terminal import use_a_shell
from tests.support import environment, eventually

pytestmark = [
    pytest.mark.usefixtures("workers_elsewhere"),
    pytest.mark.parametrize("workers_elsewhere", SHARING_NOTHING, indirect=True),
]

WORKERS = ("worker-0", "worker-1")
MUSTER = [sys.executable, "-m", "muster"]


@contextmanager
def waiting() -> Iterator[muster.Cluster]:
    """A run of two workers that wait for orders."""

    def wait_for_orders() -> str:
        """Answer on a port, until a file comes that says how to end."""
        import os
        import socket
        import threading
        import time
        from pathlib import Path

        worker = os.environ["MUSTER_WORKER"]
        folder = Path("checkpoints", "step-1")
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(worker.encode() * 100_000)
        Path("notes.txt").write_text("not asked for")
        listener = socket.create_server(("127.0.0.1", 0))

        def answer() -> None:
            while True:
                connection = listener.accept()[0]
                while data := connection.recv(1 << 16):
                    connection.sendall(data)
                connection.sendall(f"the end of {worker}".encode())
                connection.close()

        threading.Thread(target=answer, daemon=True).start()
        print("listening", listener.getsockname()[1], flush=True)
        orders = Path("orders.txt")
        while not orders.exists():
            time.sleep(0.05)
        last = orders.read_text()
        (folder / "last").write_text(last)
        print("ordered to", last, flush=True)
        if last == "fail":
            raise ValueError(f"as {worker} was told")
        return f"{worker}: {last}"

    running: muster.Cluster = muster.run_cluster(
        2, worker_script=wait_for_orders, strategy="processes", memory=0.5, timeout_seconds=120, wait=False,
        collect="checkpoints/**", env={"SECRET": "hunter2"}, dashboard=False,
    ).cluster  # fmt: skip
    try:
        for worker in WORKERS:
            eventually(lambda: "listening" in running.logs(worker), f"{worker} listens", timeout=60)  # noqa: B023
        yield running
    finally:
        running.stop()


def order(running: muster.Cluster, worker: str, what: str) -> None:
    """Put the orders onto a worker."""
    Path("orders of mine.txt").write_text(what)
    running.put("orders of mine.txt", worker, to="orders.txt")


def inside(worker: str, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a command in a worker."""
    command = [*MUSTER, "exec", "last", worker, *words]
    return subprocess.run(command, input=given, capture_output=True, env=environment(), timeout=60, check=False)


def test_commands_shells_ports_files_stacks_logs_and_values() -> None:
    with waiting() as running:
        for index, worker in enumerate(WORKERS):
            commands_run_there(worker)
            assert use_a_shell("last", f"rank-{index}") == 5
            a_port_is_reached(worker, int(running.logs(worker).split()[1]))
            got = running.get(worker, "checkpoints/step-1/weights")
            assert got == running.run_dir / "collected" / worker / "checkpoints" / "step-1" / "weights"
            assert got.read_bytes() == worker.encode() * 100_000
            assert "wait_for_orders" in running.stacks()[f"rank {index} ({worker})"]
        for worker in WORKERS:
            order(running, worker, f"end {worker}")
        result = running.wait(60)
    assert result.values == [f"{worker}: end {worker}" for worker in WORKERS]
    for worker in WORKERS:
        assert running.logs(worker).splitlines()[1:] == [f"ordered to end {worker}"]
        assert collected(running, worker) == {"weights": worker.encode() * 100_000, "last": f"end {worker}".encode()}


def test_what_is_to_be_collected_comes_although_the_run_fails() -> None:
    with waiting() as running:
        order(running, "worker-1", "fail")
        with pytest.raises(ScriptFailed, match=r"rank 1 \(worker-1\) failed first: ValueError: as worker-1 was told"):
            running.wait(60)
    assert "ordered to fail" in running.logs("worker-1")
    assert collected(running, "worker-0") == {"weights": b"worker-0" * 100_000}
    assert collected(running, "worker-1") == {"weights": b"worker-1" * 100_000, "last": b"fail"}


def collected(running: muster.Cluster, worker: str) -> dict[str, bytes]:
    """Everything that has come from a worker, by name; it lies where it lay there."""
    folder = running.run_dir / "collected" / worker
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.relative_to(folder).parent for path in files} == {Path("checkpoints", "step-1")}
    return {path.name: path.read_bytes() for path in files}


def commands_run_there(worker: str) -> None:
    """Run commands in a worker: with the script's environment and folder, their status and bytes as they are."""
    found = inside(worker, "--", "sh", "-c", 'cat notes.txt; echo " $SECRET of $MUSTER_WORKER" >&2; exit 7')
    assert (found.returncode, found.stdout) == (7, b"not asked for")
    assert found.stderr.decode() == f" hunter2 of {worker}\n"
    assert inside(worker, "sh", "-c", "kill -9 $$").returncode == 137
    missing = inside(worker, "no-such-program")
    assert missing.returncode == 127
    assert missing.stderr.startswith(b"Error: cannot start no-such-program")
    data = os.urandom(500_000) + b"\x04\x03\xff\n"
    assert inside(worker, "--", "cat", given=data).stdout == data
    piped = inside(worker, given=b"read word; echo $word of a shell; exit 3\ninput\n")
    assert (piped.returncode, piped.stdout) == (3, b"input of a shell\n")


def a_port_is_reached(worker: str, port: int) -> None:
    """Send bytes to a port at a worker's loopback address, and read them and what comes after their end."""
    command = [*MUSTER, "forward", "last", worker, f"{port}:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stderr is not None
        local = int(re.findall(rb"127\.0\.0\.1:(\d+) is port", process.stderr.readline())[0])
        data = os.urandom(100_000)
        with socket.create_connection(("127.0.0.1", local), 30) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            back = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        assert back == data + f"the end of {worker}".encode()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
