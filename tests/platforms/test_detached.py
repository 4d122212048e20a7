"""Detached runs on other platforms: they live on when the session that has begun them is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.records.runs import Run

from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network
from tests.platforms.slurm_engine import Engine
from tests.support import environment, eventually

TRAIN = """
import os, time
from pathlib import Path
print("trains on", os.uname().nodename, flush=True)
time.sleep(2)
Path(os.environ["MUSTER_RESULTS"], os.environ["RANK"]).write_text("learnt")
"""
PROGRAM = """
import json, sys, time, muster
muster.run_cluster(2, strategy="processes", worker_script="train.py", memory=0.5, timeout_seconds=120, dashboard=False,
                   detach="5m", **json.loads(sys.argv[1]))
print("begun", flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, which is the working directory, with the script."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "train.py").write_text(TRAIN)
    monkeypatch.chdir(made)
    return made


def begun_by_a_session_that_is_killed(**options: Any) -> Run:
    """Begin a detached run in a session, and kill that; the run, whose workers train."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(options)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as session:
        try:
            assert session.stdout is not None
            assert session.stdout.readline() == "begun\n"
        finally:
            session.send_signal(signal.SIGKILL)
    run = muster.attach()
    logs = [run.run_dir / "logs" / f"worker-{index}.log" for index in range(2)]
    eventually(lambda: all(log.exists() and "trains on" in log.read_text() for log in logs), "both train", 60)
    return run


def outlives_its_session(**options: Any) -> None:
    """Begin a detached run in a session, kill that, and see the run to its end from here."""
    run = begun_by_a_session_that_is_killed(**options)
    try:
        assert run.wait().status == "succeeded"
    finally:
        run.stop()
    results = run.run_dir / "results"
    assert sorted(path.name for path in results.iterdir()) == ["0", "1"]


def test_a_detached_run_on_hosts_outlives_its_session(hosts: Network) -> None:
    outlives_its_session(platform="hosts", hosts=["h1:1", "h2:1"])


def test_a_detached_run_in_containers_outlives_its_session(engine: Podman) -> None:
    outlives_its_session(platform="containers")
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


def test_a_detached_run_on_slurm_outlives_its_session(slurm: Engine, muster_home: Path) -> None:
    outlives_its_session(platform="slurm", nodes="2")
    eventually(lambda: slurm.jobs() == [], "nothing is left", timeout=20)
    assert not any((muster_home / "slurm").iterdir())


def test_a_detached_run_on_slurm_is_asked_and_stopped_from_a_terminal(
    slurm: Engine, folder: Path, muster_home: Path
) -> None:
    (folder / "train.py").write_text(TRAIN.replace("sleep(2)", "sleep(600)"))
    run = begun_by_a_session_that_is_killed(platform="slurm", nodes="2")

    def say(*words: str) -> str:
        command = [sys.executable, "-m", "muster", *words]
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert run.run_id in say("runs", "--status", "running")
        assert "trains on n" in say("logs", run.run_id, "worker-0")
        assert "train.py" in say("stacks", run.run_id)
        assert len(slurm.jobs()) == 1
        attach = [sys.executable, "-m", "muster", "attach", run.run_id]
        watching = subprocess.Popen(
            attach, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    finally:
        say("stop", run.run_id)
    shown, _ = watching.communicate(timeout=60)
    assert watching.returncode == 130  # as that of a run which somebody has interrupted
    assert "stopped" in shown
    eventually(lambda: muster.open_run(run.run_id).status == "stopped", "it has stopped", timeout=20)
    eventually(lambda: slurm.jobs() == [], "nothing is left", timeout=20)
    assert not any((muster_home / "slurm").iterdir())
