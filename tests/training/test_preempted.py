"""The notice that a worker is about to be taken away, as scripts get it: real agents, real signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent import linux
from muster.errors import WorkerLost
from muster.events import Note, RunAttempt, WorkerReady
from muster.records import runs
from muster.training import preempted

from tests.support import eventually

# Saves once it is told that a worker goes, and trains on; what comes after that is lost. Attempt 2 goes to the end.
TRAINS = """
import os, pathlib, time
from muster.training import preempted, report
rank, attempt = os.environ["RANK"], os.environ["MUSTER_ATTEMPT"]
checkpoint = pathlib.Path(f"checkpoint-{rank}")
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
print(f"attempt {attempt} goes on after {step} steps, told: {preempted()}", flush=True)
while attempt == "1" or step < int(checkpoint.read_text()) + 5:
    step += 1
    report(step=step)
    time.sleep(0.02)
    if preempted() and not checkpoint.exists():
        checkpoint.write_text(str(step))
        print("saved", flush=True)
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(TRAINS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextlib.contextmanager
def started(**options: Any) -> Iterator[muster.Cluster]:
    cluster: muster.Cluster = muster.run_cluster(
        2, strategy="processes", worker_script="train.py", memory=0.5, dashboard=False, wait=False, **options
    ).cluster
    try:
        eventually(lambda: all("goes on" in cluster.logs(f"worker-{index}") for index in range(2)), "both train")
        yield cluster
    finally:
        cluster.stop()


def agent_of(cluster: muster.Cluster, worker: str) -> int:
    """Return the process id of a worker's first agent."""
    ready = [event for event in runs.Run(cluster.run_dir).events() if isinstance(event.data, WorkerReady)]
    return next(int(event.data["pid"]) for event in ready if event.worker == worker)


def test_outside_a_run_nothing_is_taken_away() -> None:
    assert "MUSTER_SCRATCH" not in os.environ
    assert preempted() is False


def test_all_save_when_one_is_told_to_end_and_go_on_from_there(here: Path) -> None:
    with started(restarts=1) as cluster:
        agent = agent_of(cluster, "worker-1")
        os.kill(agent, signal.SIGTERM)
        eventually(lambda: all((here / f"checkpoint-{index}").exists() for index in range(2)), "both have saved")
        os.kill(agent, signal.SIGKILL)  # as its platform does when the time of the notice is over
        assert cluster.wait().status == "succeeded"
        recorded = runs.Run(cluster.run_dir)
    told = [event.data.text for event in recorded.events() if isinstance(event.data, Note)]
    assert any(re.match("worker-1 is about to be taken away", text) for text in told)
    (again,) = [event.data.reason for event in recorded.events() if isinstance(event.data, RunAttempt)]
    assert "worker-1" in again
    for index in range(2):
        saved = (here / f"checkpoint-{index}").read_text()
        assert f"attempt 2 goes on after {saved} steps, told: False" in recorded.logs(f"worker-{index}")


def test_a_second_signal_ends_it_at_once(here: Path) -> None:
    with started() as cluster:
        agent = agent_of(cluster, "worker-1")
        os.kill(agent, signal.SIGTERM)
        eventually(lambda: (here / "checkpoint-1").exists(), "it is told")
        os.kill(agent, signal.SIGTERM)
        with pytest.raises(WorkerLost, match="worker-1"):
            cluster.wait(timeout=15)
        assert linux.stat(agent) is None
