"""The guard of a login node without a login: when it removes what the session has left. By commands that stand in."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import frames, linux
from muster.agent.host_guard import READY

from tests.platforms.slurm_stand_in import StandIn
from tests.support import eventually

PROGRAM = """
import sys
from muster.agent import host_guard, slurm_guard, slurm_site

slurm_site.LATE_SECONDS = -1.0
host_guard.IDLE_SECONDS = float(sys.argv[2])
slurm_guard.main(sys.argv[1])
"""
DOWN = "scancel: error: Unable to contact slurm controller (connect failure)"


class GuardProcess:
    """A guard that watches a job and a folder."""

    def __init__(self, fake: StandIn, folder: Path, idle: float) -> None:
        self.fake, self.made = fake, folder / "made"
        self.made.mkdir()
        (self.made / "worker-0.launch").write_text("secret")
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(idle)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PATH": fake.path},
        )
        assert self.process.stdout is not None
        assert self.process.stdout.read(len(READY)) == READY
        self.says("hello", lease=15.0, word="word", python=sys.executable)
        self.says("watch", labels=["muster-a"], folders=[str(self.made)])

    def says(self, request: str, **fields: object) -> None:
        """Make a request, as a platform does."""
        assert self.process.stdin is not None
        self.process.stdin.write(frames.encode(request, **fields))
        self.process.stdin.flush()

    def answers(self, count: int) -> list[dict[str, Any]]:
        """Return its next answers."""
        assert self.process.stdout is not None
        decoder = frames.Decoder()
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += decoder.feed(os.read(self.process.stdout.fileno(), 1 << 16))
        return found

    def hangs_up(self) -> None:
        """End the login."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ends(self) -> None:
        """End it in any case."""
        with self.process:
            self.process.kill()

    def expect_clean(self) -> None:
        """Fail unless it ends after it has cancelled the job and removed the folder."""
        assert self.process.wait(20) == 0
        assert self.fake.asked("scancel")[-1] == "scancel --quiet --me --name=muster-a"
        assert not self.made.exists()


@pytest.fixture
def fake(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "slurm")


@pytest.fixture
def guard(fake: StandIn, tmp_path: Path) -> Iterator[GuardProcess]:
    made = GuardProcess(fake, tmp_path, 600.0)
    yield made
    made.ends()


def test_a_login_that_ends_is_cleaned_up_after(guard: GuardProcess) -> None:
    guard.hangs_up()
    guard.expect_clean()


def test_a_platform_that_closes_with_nothing_left_has_nothing_cancelled(guard: GuardProcess) -> None:
    guard.says("watch", labels=[], folders=[])
    guard.says("close")
    assert guard.process.wait(20) == 0
    assert guard.fake.asked("scancel") == []
    assert guard.made.exists()


def test_while_slurm_does_not_answer_the_guard_tries_again(guard: GuardProcess) -> None:
    guard.fake.says("scancel", "", complains=DOWN, status=1)
    guard.hangs_up()
    eventually(lambda: len(guard.fake.asked("scancel")) > 1, "it tries again")
    assert guard.made.exists()
    guard.fake.says("scancel", "")
    guard.expect_clean()


def test_a_session_of_which_nothing_is_heard_any_more_counts_as_gone(fake: StandIn, tmp_path: Path) -> None:
    guard = GuardProcess(fake, tmp_path, 0.5)
    guard.expect_clean()
    guard.ends()


@pytest.mark.slow
def test_a_session_that_sends_to_workers_is_not_taken_for_gone(fake: StandIn, tmp_path: Path) -> None:
    guard = GuardProcess(fake, tmp_path, 0.5)
    try:
        with socket.create_server(("127.0.0.1", 0)) as session:
            guard.says("relay", address="127.0.0.1", host="127.0.0.1", port=session.getsockname()[1], there=0)
            port = guard.answers(3)[-1]["port"]
            with socket.create_connection(("127.0.0.1", port), timeout=20), session.accept()[0] as far:
                for _ in range(30):
                    far.sendall(b"a piece of a file")
                    time.sleep(0.05)
                assert guard.process.poll() is None
        guard.expect_clean()
    finally:
        guard.ends()


def is_taken_over(guard: GuardProcess, around: Path) -> bool:
    """Have the guard of another login take over from a guard; return whether that one still watched, as it says."""
    (around / "other").mkdir()
    other = GuardProcess(guard.fake, around / "other", 600.0)
    try:
        pid = guard.process.pid
        other.says("take_over", guard=[pid, linux.start_of(pid)], labels=["muster-a"], folders=[str(guard.made)])
        return bool(other.answers(3)[-1]["done"])
    finally:
        other.ends()


def test_a_guard_gives_up_what_that_of_another_login_takes_over(guard: GuardProcess, tmp_path: Path) -> None:
    assert is_taken_over(guard, tmp_path)
    assert guard.process.wait(20) == 0
    assert guard.fake.asked("scancel") == []
    assert guard.made.exists()


def test_a_guard_that_cleans_up_already_is_not_taken_over_from(guard: GuardProcess, tmp_path: Path) -> None:
    scancel = guard.fake.folder / "bin" / "scancel"
    scancel.write_text(scancel.read_text().replace("case ", "sleep 1\ncase "))
    guard.hangs_up()
    eventually(lambda: guard.fake.asked("scancel"), "it cleans up")
    assert not is_taken_over(guard, tmp_path)
    guard.expect_clean()


def test_a_request_that_is_none_is_refused(guard: GuardProcess) -> None:
    guard.says("run", argv=["true"])  # of guards of hosts
    guard.says("poll")
    guard.says("slurm", call="system", fields={})
    guard.says("close")
    assert guard.process.stdout is not None
    answers = guard.process.stdout.read().splitlines()[2:]
    assert [b"error" in answer for answer in answers] == [True] * 3 + [False]
