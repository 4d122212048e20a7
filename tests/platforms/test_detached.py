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

from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network
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


def outlives_its_session(**options: Any) -> None:
    """Begin a detached run in a session, kill that, and see the run to its end from here."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(options)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as session:
        try:
            assert session.stdout is not None
            assert session.stdout.readline() == "begun\n"
        finally:
            session.send_signal(signal.SIGKILL)
    run = muster.attach()
    try:
        logs = [run.path / "logs" / f"worker-{index}.log" for index in range(2)]
        eventually(lambda: all(log.exists() and "trains on" in log.read_text() for log in logs), "both train", 60)
        assert run.wait().status == "succeeded"
    finally:
        run.stop()
    results = run.path / "results"
    assert sorted(path.name for path in results.iterdir()) == ["0", "1"]


def test_a_detached_run_on_hosts_outlives_its_session(hosts: Network) -> None:
    outlives_its_session(platform="hosts", hosts=["h1:1", "h2:1"])


def test_a_detached_run_in_containers_outlives_its_session(engine: Podman) -> None:
    outlives_its_session(platform="containers")
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)
