"""A process of a worker has two sockets to its agent. Whatever it sends there, the agent serves on."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent.logfile import RankLog, RankLogs
from muster.platforms.local import LocalPlatform

from tests.agent.launched import Launched
from tests.support import Run, StubSession, eventually, fresh_identity, is_gone

FLOOD = """
import os, socket, time
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
print("up", flush=True)
while True:
    try:
        sender.sendto(b'{"kind": "progress", "step": 3}', os.environ["MUSTER_REPORT"])
    except OSError:
        pass
"""
FLAT_OUT = """
import os
block = (b"x" * 120 + b"\\n") * 8000
while True:
    os.write(1, block)
"""
SEND = """
import os, socket, sys, time
path = os.path.join(os.environ["MUSTER_SCRATCH"], "agent.sock")
connections = []
for _ in range(int(sys.argv[2])):
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(path)
    connection.settimeout(0.5)
    connections.append(connection)
    try:
        connection.sendall(eval(sys.argv[1]))
    except OSError:
        pass
print("sent", flush=True)
time.sleep(600)
"""


def used(folder: Path) -> int:
    """The size of all logs in a folder, in bytes."""
    sizes = 0
    for path in folder.rglob("*.log*"):
        with contextlib.suppress(FileNotFoundError):
            sizes += path.stat().st_size
    return sizes


@pytest.fixture
def worker(run: Run, stub_session: StubSession) -> Iterator[Launched]:
    """A worker that can be logged in to."""
    platform = LocalPlatform()
    try:
        yield Launched(run, stub_session, platform, ssh=fresh_identity())
    finally:
        platform.close()


def assert_serves(worker: Launched) -> None:
    """The agent starts a process, and tells of its end, soon."""
    before = len(worker.session.received("exited"))
    worker.send("start", argv=["/bin/true"], env={}, cwd=None)
    assert worker.session.wait_for("exited", count=before + 1)
    assert not is_gone(worker.hello["pid"])


def test_a_flood_of_reports_holds_up_nothing(worker: Launched) -> None:
    for _ in range(2):
        worker.python(FLOOD)
    worker.output_with("up\nup")
    assert_serves(worker)
    worker.send("stop", grace=0.1)
    assert len(worker.session.wait_for("exited", count=3)) == 3


@pytest.mark.slow
def test_a_flood_of_output_holds_up_nothing(worker: Launched) -> None:
    worker.sh("echo up; exec yes")
    worker.output_with("up")
    assert_serves(worker)
    worker.send("stop", grace=0.1)
    assert len(worker.session.wait_for("exited", count=2)) == 2


NO_REQUESTS = [
    {"type": "rank"},
    {"type": "rank", "argv": 5, "env": [], "rank": {}},
    {"type": "rank", "argv": [], "env": {}, "rank": 0},
    {"type": "rank", "argv": ["/bin/true"], "env": {"a": 1}, "rank": 0},
    {"type": "rank", "argv": ["/bin/true"], "env": {"a=b": "\0"}, "rank": 0},
    {"type": "rank", "argv": ["/bin/true"], "env": {}, "rank": -(10**30)},
    {"type": "rank", "argv": ["/bin/true"], "env": {}, "rank": 0, "cores": [100000]},
    {"type": "rank", "argv": ["/bin/true"], "env": {}, "rank": 0, "cores": "all"},
    {"type": "rank", "argv": ["/bin/true"], "env": {}, "rank": 0, "cores": [2**70]},
    {"type": "broken"},
    {"type": "broken", "code": {}},
    {"type": "broken", "code": float("inf")},
    {"type": "broken", "code": 300},
    {"type": "dance"},
]


def has_sent(worker: Launched, times: int) -> bool:
    return worker.output_with("sent").count("sent") == times


def test_requests_that_make_no_sense_are_refused(worker: Launched) -> None:
    worker.send("expect", argv=["/bin/true"], env={}, cwd=None, split=True)
    for count, message in enumerate(NO_REQUESTS, 1):
        worker.python(SEND, repr(json.dumps(message).encode() + b"\n"), "1")
        eventually(functools.partial(has_sent, worker, count), "it is sent")
        assert not is_gone(worker.hello["pid"]), message
    assert_serves(worker)
    assert "makes no sense" in worker.spec.log.read_text()
    assert not worker.session.received("broken")


ASK_FOR_A_RANK = """
import json, os, socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(os.path.join(os.environ["MUSTER_SCRATCH"], "agent.sock"))
    request = {"type": "rank", "rank": 0, "argv": ["/bin/sleep", "60"], "env": {}}
    connection.sendall(json.dumps(request).encode() + b"\\n")
    if %r:
        print(connection.makefile().readline(), flush=True)
    else:
        connection.recv(1)
"""


def test_a_rank_that_runs_is_not_started_again(worker: Launched) -> None:
    worker.send("expect", argv=["/bin/sleep", "60"], env={}, cwd=None, split=False)
    worker.python(ASK_FOR_A_RANK % False)

    def started() -> list[Any]:
        worker.session.listen(0.05)
        return [message for message in worker.session.received("started") if message["rank"] == 0]

    eventually(started, "rank 0 runs")
    worker.python(ASK_FOR_A_RANK % True)
    worker.output_with("runs already")
    assert len(started()) == 1


def test_asking_for_a_rank_again_keeps_no_descriptor(tmp_path: Path) -> None:
    log = RankLog(str(tmp_path / "log"), 1 << 20)
    ranks = RankLogs(log)
    ranks.are_wanted = True
    ranks.open(0)
    held = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        ranks.open(0)
    assert len(os.listdir("/proc/self/fd")) == held
    ranks.close(0)
    log.close()


@pytest.mark.parametrize(
    ("what", "count"),
    [
        ("b'not json' * 100 + b'\\n'", 1),
        ("b'[' * 200_000 + b'\\n'", 1),
        ("b'x' * 900_000", 50),
        ('b\'{"type": "environment"}\\n\' * 20_000', 3),
        ("b''", 1500),
    ],
)
def test_connections_that_ask_too_much_hold_up_nothing(worker: Launched, what: str, count: int) -> None:
    worker.python(SEND, what, str(count))
    worker.output_with("sent")
    assert_serves(worker)


def test_descriptors_that_nobody_needs_are_not_kept(worker: Launched) -> None:
    worker.python(
        """
        import array, os, socket, time
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(os.path.join(os.environ["MUSTER_SCRATCH"], "agent.sock"))
        for _ in range(2000):
            connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
        print("sent", flush=True)
        time.sleep(600)
        """
    )
    worker.output_with("sent")
    assert_serves(worker)


def test_of_output_that_comes_faster_than_it_is_moved_the_end_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RankLog(str(tmp_path / "worker.log"), cap=1 << 20)
    log.append(b"x" * (5 << 20))
    read = os.pread

    def read_while_it_grows(descriptor: int, length: int, offset: int) -> bytes:
        data = read(descriptor, length, offset)
        os.write(log.descriptor, b"y" * len(data))
        return data

    monkeypatch.setattr(os, "pread", read_while_it_grows)
    log.rotate_when_full(wait_for_reader=False)
    kept = (tmp_path / "worker.log.1").read_bytes()
    assert kept == b"y" * (1 << 20)
    (remark,) = (tmp_path / "worker.log").read_text().splitlines()
    assert "too fast" in remark
    assert int(remark.split()[1]) + len(kept) == 7 << 20, "what is not kept is counted"
    log.close()


def most_lost(folder: Path) -> int:
    """The most bytes of output that a log in a folder says are lost at one time; 0 if none are."""
    told = []
    for path in folder.rglob("*.log*"):
        with contextlib.suppress(FileNotFoundError):  # it has been rotated
            told += re.findall(rb"(\d+) bytes of output are lost", path.read_bytes())
    return max(map(int, told), default=0)


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True], ids=["one rank", "several ranks"])
def test_what_prints_as_fast_as_the_disk_takes_it_hardly_outgrows_the_cap(
    run: Run, stub_session: StubSession, split: bool
) -> None:
    cap = 32 << 20
    platform = LocalPlatform(log_cap=cap)
    try:
        worker = Launched(run, stub_session, platform)
        worker.send("start", env={}, argv=["python3", "-c", FLAT_OUT], rank=0, split=split)
        stub_session.wait_for("started")
        folder, largest = worker.spec.log.parent, 0

        def measure(seconds: float) -> int:
            nonlocal largest
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                stub_session.listen(0.01)
                largest = max(largest, used(folder))
            return most_lost(folder)

        measure(4)
        eventually(lambda: measure(0.5), "more was printed than is kept", timeout=60)
        worker.send("stop", grace=0.2)
        stub_session.wait_for("exited")
        lost = most_lost(folder)
        # What is printed until its agent has a turn depends on the machine, which the rest of the suite keeps busy.
        assert largest < max((16 if split else 8) * cap, lost / 3), "of both files, and of those of the rank"
    finally:
        platform.close()
