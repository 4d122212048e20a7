"""Answers of Slurm's that are late, lost or of another moment. By commands that stand in for its own."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from muster.errors import LaunchRefused
from muster.job import EndCause, Status, Worker
from muster.platforms.slurm import commands, queue
from muster.platforms.slurm.commands import SlurmGone
from muster.platforms.slurm.guard import clean_up
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.queue import Queue
from muster.platforms.slurm.states import state_of
from muster.platforms.slurm.submissions import Submission, Task

from tests.support import Run, eventually

COMMAND = """#!/bin/sh
echo "${0##*/} $*" >> "$FAKE/asked"
case "${0##*/} $*" in
    squeue*--me*) cat "$FAKE/mine" ;;
    squeue*) cat "$FAKE/all" ;;
    *) cat "$FAKE/${0##*/}.says"; cat "$FAKE/${0##*/}.complains" >&2; exit $(cat "$FAKE/${0##*/}.status") ;;
esac
"""


@dataclass
class Fake:
    """Commands on the search path that say what a test has written."""

    folder: Path

    def says(self, command: str, text: str, *, complains: str = "", status: int = 0) -> None:
        """Have a command print this, and end so."""
        for name, content in (("says", text), ("complains", complains), ("status", str(status))):
            (self.folder / f"{command}.{name}").write_text(content)

    def queue(self, *mine: str, everybody: str = "") -> None:
        """Have the queue be this."""
        (self.folder / "mine").write_text("".join(f"{line}\n" for line in mine))
        (self.folder / "all").write_text(everybody)

    def asked(self, command: str) -> list[str]:
        """Return the calls of a command."""
        path = self.folder / "asked"
        return [line for line in path.read_text().splitlines() if line.startswith(command)] if path.exists() else []


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake(tmp_path / "slurm")
    (made.folder / "bin").mkdir(parents=True)
    for name in (*commands.PROGRAMS, "sacct"):
        path = made.folder / "bin" / name
        path.write_text(COMMAND)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        made.says(name, "")
    made.queue()
    monkeypatch.setenv("FAKE", str(made.folder))
    monkeypatch.setenv("PATH", f"{made.folder}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(queue, "LOOK_SECONDS", 0.0)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return made


def test_a_look_at_everybody_s_jobs_says_nothing_new_of_one_s_own(fake: Fake) -> None:
    fake.queue("7|PENDING|Priority|N/A|main|none", everybody="5|main\n6|other\n7|main\n")
    looked = Queue()
    jobs, at = looked.jobs()
    again, still_at = looked.jobs()
    assert [len(fake.asked("squeue")), looked.before("7"), looked.before("6")] == [2, 1, 0]
    assert (again, still_at) == (jobs, at)
    assert looked.jobs()[1] > at


def test_a_job_that_the_queue_does_not_show_is_not_over(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.platforms.slurm.states.queue", looked := Queue())
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    worker = Worker("7.0@/nowhere", "worker-0", created_at=1.0)
    fake.says("scontrol", "JobId=7 JobState=RUNNING Reason=None\n")
    assert state_of(worker, made, None, None) == worker
    fake.says("scontrol", "", complains="Invalid job id specified", status=1)
    fake.says("sacct", "RUNNING|0:0|None\n")  # never told of the end
    assert "not known" in str(state_of(worker, made, None, None).reason)
    fake.says("sacct", "TIMEOUT|0:0|None\n")
    over = state_of(worker, made, None, None)
    assert (over.status, "TIMEOUT" in str(over.reason)) == (Status.FAILED, True)
    monkeypatch.setattr(queue, "LOOK_SECONDS", 60.0)
    before = len(fake.asked("scontrol"))
    assert looked.end_of("8") == looked.end_of("8")
    assert len(fake.asked("scontrol")) - before == 1


def test_a_job_whose_processes_end_as_slurm_asks_them_to_has_made_way(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its script has ended before Slurm ended it, so that Slurm never says PREEMPTED."""
    monkeypatch.setattr("muster.platforms.slurm.states.queue", Queue())
    made = Submission(Path("/nowhere"))
    made.job, made.names = "7", ["worker-0"]
    worker = Worker("7.0@/nowhere", "worker-0", created_at=1.0)
    task = Task(node="n1", at=1.0, outcome={"status": Status.STOPPED, "signal": signal.SIGTERM}, told_at=2.0)
    fake.queue("7|FAILED|NonZeroExitCode|N/A|main|none")
    fake.says("scontrol", "JobId=7 JobState=FAILED Reason=NonZeroExitCode PreemptTime=2026-11-22T20:00:00\n")
    assert state_of(worker, made, task, None).cause is EndCause.PREEMPTED
    monkeypatch.setattr("muster.platforms.slurm.states.queue", Queue())
    fake.says("scontrol", "JobId=7 JobState=FAILED Reason=NonZeroExitCode PreemptTime=None\n")
    assert state_of(worker, made, task, None).cause is not EndCause.PREEMPTED


def test_a_user_s_filters_hide_no_jobs(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "1")
    assert not [name for name in commands.environment() if name.startswith(("SQUEUE", "SCANCEL"))]


@pytest.fixture
def cluster(fake: Fake) -> Fake:
    """A cluster with a node that takes what fits."""
    fake.says("sinfo", "main*|infinite|n1|127.0.0.1|4|8000|idle|(null)\n")
    fake.says("sbatch", "Welcome to the cluster\n7;west\n")
    return fake


def test_a_job_whose_submission_was_not_answered_is_cancelled(
    cluster: Fake, muster_home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    asked = commands.ask

    def ask(*argv: str, **options: Any) -> str:
        if argv[:2] == ("sbatch", "--parsable"):
            cluster.says("sbatch", "", complains=lost, status=1)
        return asked(*argv, **options)

    monkeypatch.setattr(commands, "ask", ask)
    platform = SlurmPlatform()
    with pytest.raises(LaunchRefused, match="Socket timed out"):
        platform.submit([run.spec()], "key")
    (cancelled,) = cluster.asked("scancel")
    assert cancelled.startswith("scancel --quiet --me --name=muster-")
    guard = platform._guard
    assert guard is not None
    platform.close()
    eventually(lambda: len(cluster.asked("scancel")) > 1, "the guard goes on to cancel")
    os.kill(guard.pid, signal.SIGKILL)
    assert not any((muster_home / "slurm").iterdir())


def test_a_job_that_cannot_be_cancelled_is_left_to_the_guard(
    cluster: Fake, muster_home: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.platforms.slurm.platform.END_SECONDS", 0.1)
    platform = SlurmPlatform()
    (handle,) = platform.submit([run.spec()], "key")
    assert handle.startswith("7.0@/")
    guard = platform._guard
    assert guard is not None
    cluster.says("scancel", "", complains="Unable to contact slurm controller (connect failure)", status=1)
    ends: list[Callable[[], object]] = [lambda: platform.stop([handle]), platform.close]
    for end in ends:
        with pytest.raises(SlurmGone, match="The job could not be cancelled: Slurm's controller does not answer"):
            end()
    eventually(lambda: "--me" in cluster.asked("scancel")[-1], "the guard tries")
    assert any((muster_home / "slurm").iterdir())
    os.kill(guard.pid, signal.SIGKILL)
    ended = "scancel: error: Kill job error on job id 7: Invalid job id specified"
    cluster.says("scancel", "", complains=ended, status=1)
    platform.close()
    assert not any((muster_home / "slurm").iterdir())


def test_a_guard_removes_the_files_of_jobs_that_never_began(
    cluster: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.platforms.slurm.guard.LATE_SECONDS", -1.0)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "worker-0.launch").write_text("secret")
    clean_up({"labels": ["muster-a", "muster-b"], "folders": [str(tmp_path / "made")], "steps": []})
    assert cluster.asked("scancel") == ["scancel --quiet --me --name=muster-a,muster-b"]
    assert not (tmp_path / "made").exists()
