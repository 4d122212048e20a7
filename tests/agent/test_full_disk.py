"""A disk that is full costs output, and says so once; it ends no worker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from muster.platforms.local import LocalPlatform

from tests.agent.launched import Launched
from tests.support import Run, StubSession, eventually, is_gone

PRINTER = """
import os, sys, time
number, rest = 0, b""
while True:
    try:
        rest = rest or b"%s %06d %s\\n" % (sys.argv[1].encode(), number, b"x" * 500)
        rest = rest[os.write(1, rest):]
        number += not rest
    except OSError:
        pass
    time.sleep(0.002)
"""
Disk = Callable[[int], Path]


def fill(folder: Path) -> None:
    """Leave no room on a disk."""
    with (folder / "ballast").open("ab", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2


def test_a_worker_of_several_ranks_survives_it(run: Run, stub_session: StubSession, small_disk: Disk) -> None:
    disk = small_disk(1024)
    (disk / "ballast").write_bytes(bytes(500 << 10))
    platform = LocalPlatform(log_cap=16 << 20)
    try:
        worker = Launched(run, stub_session, platform, log=disk / "worker-0.log")
        for rank in (0, 1):
            worker.send("start", env={}, argv=["python3", "-uc", PRINTER, f"rank{rank}"], rank=rank, split=True)
        pids = [message["pid"] for message in stub_session.wait_for("started", count=2)]
        worker.output_with("cannot be written: No space left on device")
        stub_session.listen(1)
        assert not any(is_gone(pid) for pid in (*pids, worker.hello["pid"]))
        written = worker.spec.log.stat().st_size
        (disk / "ballast").unlink()
        eventually(lambda: worker.spec.log.stat().st_size > written + 10_000, "it goes on where there is room")
        worker.send("stop", grace=0.2)
        stub_session.wait_for("exited", count=2)
        lines = worker.spec.log.read_bytes().splitlines()
        assert all(len(line) == 513 for line in lines if line.startswith(b"rank")), "no line is torn"
        told = [line for line in stub_session.output().splitlines() if "No space left" in line]
        assert len(told) <= 2
    finally:
        platform.close()


@pytest.mark.parametrize("split", [False, True], ids=["one rank", "several ranks"])
def test_a_full_log_is_emptied_where_there_is_no_room_to_keep_it(
    run: Run, stub_session: StubSession, small_disk: Disk, split: bool
) -> None:
    disk = small_disk(330 if split else 200)  # room for what is printed, and for half of a copy
    platform = LocalPlatform(log_cap=128 << 10)
    try:
        worker = Launched(run, stub_session, platform, log=disk / "worker-0.log")
        worker.send("start", env={}, argv=["python3", "-uc", PRINTER, "rank0"], rank=0, split=split)
        pid = stub_session.wait_for("started")["pid"]
        worker.output_with("bytes of output are lost")

        def goes_on() -> bool:
            stub_session.listen(0.05)
            numbers = re.findall(r"^rank0 (\d{6}) x+$", stub_session.output(), re.MULTILINE)
            return bool(numbers) and int(numbers[-1]) > int(numbers[0]) + 400

        eventually(goes_on, "it goes on printing")
        assert not is_gone(pid)
        assert not is_gone(worker.hello["pid"])
    finally:
        platform.close()


def test_remarks_are_shown_where_they_cannot_be_written(run: Run, stub_session: StubSession, small_disk: Disk) -> None:
    disk = small_disk(64)
    platform = LocalPlatform()
    try:
        worker = Launched(run, stub_session, platform, log=disk / "worker-0.log")
        fill(disk)
        worker.send("dance")
        assert "dance" in stub_session.wait_for("error")["text"]
        worker.output_with("cannot do what the session says")
        worker.send("start", env={}, argv=["python3", "-c", "pass"], rank=0, split=True)
        assert stub_session.wait_for("exited")["exit_code"] == 0
    finally:
        platform.close()


def test_an_agent_ends_with_its_session_all_the_same(run: Run, stub_session: StubSession, small_disk: Disk) -> None:
    disk = small_disk(64)
    platform = LocalPlatform()
    try:
        worker = Launched(run, stub_session, platform, log=disk / "worker-0.log")
        pid = worker.sh("sleep 60")
        fill(disk)
        stub_session.hang_up("worker-0")
        eventually(lambda: is_gone(pid) and is_gone(worker.hello["pid"]), "agent and process are gone")
    finally:
        platform.close()
