"""Detached runs on other platforms: they live on when the session that has begun them is killed."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.records.runs import Run

from tests.cluster.test_restarts_alone import COORDINATOR
from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network
from tests.platforms.recovering import script_for, uninterrupted
from tests.platforms.slurm_engine import Engine
from tests.support import environment, eventually

TRAIN = """
import os, time
from pathlib import Path
print("trains on", os.uname().nodename, flush=True)
time.sleep(2)
Path(os.environ["MUSTER_RESULTS"], os.environ["MUSTER_RANK"]).write_text("learnt")
"""
PROGRAM = """
import json, sys, time, muster
options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, **json.loads(sys.argv[1])}
muster.run_cluster(2, worker_script="train.py", dashboard=False, detach="5m", **options)
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


def begun_by_a_session_that_is_killed(
    said: str = "trains on", workers: Sequence[str] = ("worker-0", "worker-1"), **options: Any
) -> Run:
    """Begin a detached run in a session, and kill that; the run, of which these workers have said that they train."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(options, default=str)]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True) as session:
        try:
            assert session.stdout is not None
            assert session.stdout.readline() == "begun\n"
        finally:
            session.send_signal(signal.SIGKILL)
    run = muster.attach()
    logs = [run.run_dir / "logs" / f"{worker}.log" for worker in workers]
    eventually(lambda: all(log.exists() and said in log.read_text() for log in logs), "they train", 120)
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


@pytest.mark.slow
@pytest.mark.elsewhere  # only because it takes long
@pytest.mark.parametrize("strategy", [pytest.param("horovod", marks=pytest.mark.horovod), "mpi"])
def test_a_detached_training_learns_the_same_when_its_session_is_killed(folder: Path, strategy: str) -> None:
    if strategy == "mpi" and shutil.which("mpiexec.openmpi") is None:
        pytest.skip("mpiexec.openmpi is not installed here")
    (folder / "train.py").write_text(script_for(strategy))
    options = {"mpiexec": "mpiexec.openmpi"} if strategy == "mpi" else {"memory": 1.5}
    run = begun_by_a_session_that_is_killed("waits", strategy=strategy, **options)
    try:
        (folder / "go").touch()
        assert run.wait().status == "succeeded"
    finally:
        run.stop()
    for worker in ("worker-0", "worker-1"):
        assert run.logs(worker).rpartition("weight ")[2].split()[0] == uninterrupted()


@pytest.mark.slow
@pytest.mark.elsewhere  # only because it takes long
def test_detached_parameter_servers_learn_when_their_session_is_killed(folder: Path) -> None:
    (folder / "train.py").write_text(COORDINATOR)
    (folder / "waits").touch()
    run = begun_by_a_session_that_is_killed(
        "goes on after 0 steps", ["chief-0"], strategy="parameter_server", n_ps=1, memory=1.5
    )
    try:
        (folder / "waits").unlink()
        assert run.wait().status == "succeeded"
    finally:
        run.stop()
    assert float(run.logs("chief-0").rpartition("weight ")[2].split()[0]) == pytest.approx(3, abs=0.3)


HOROVODRUN = {"strategy": "horovod", "launcher": "horovodrun"}
MPIEXEC = {"strategy": "mpi", "mpiexec": "mpiexec.mpich"}


@pytest.mark.parametrize(
    "options",
    [{}, pytest.param(HOROVODRUN, marks=pytest.mark.elsewhere)],
    ids=["processes", "horovod"],
)
def test_a_detached_run_on_hosts_outlives_its_session(hosts: Network, options: dict[str, Any]) -> None:
    outlives_its_session(platform="hosts", hosts=["h1:1", "h2:1"], **options)


OPTIONS: dict[str, dict[str, Any]] = {
    "processes": {},
    "horovod": {"strategy": "horovod"},
    "mpi": {"strategy": "mpi", "mpiexec": "mpiexec.openmpi"},
}
by_strategy = pytest.mark.parametrize(
    "strategy",
    [
        "processes",
        pytest.param("horovod", marks=[pytest.mark.elsewhere, pytest.mark.horovod]),
        pytest.param(
            "mpi",
            marks=[
                pytest.mark.elsewhere,
                pytest.mark.skipif(not shutil.which("mpiexec.openmpi"), reason="Open MPI is not installed here"),
            ],
        ),
    ],
)


@by_strategy
def test_a_detached_run_in_containers_outlives_its_session(engine: Podman, strategy: str) -> None:
    outlives_its_session(platform="containers", **OPTIONS[strategy])
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.elsewhere
def test_detached_parameter_servers_in_containers_learn_when_their_session_is_killed(
    engine: Podman, folder: Path
) -> None:
    (folder / "train.py").write_text(COORDINATOR)
    kept = folder.parent / "kept"
    kept.mkdir()
    options: dict[str, Any] = {"strategy": "parameter_server", "n_ps": 1, "memory": 1.5, "platform": "containers"}
    options.update(volumes=[f"{kept}:/kept"], env={"KEPT": "/kept"})  # chief and server write the checkpoint
    run = begun_by_a_session_that_is_killed("goes on after 0 steps", ["chief-0"], **options)
    try:
        assert run.wait().status == "succeeded"
    finally:
        run.stop()
    assert float(run.logs("chief-0").rpartition("weight ")[2].split()[0]) == pytest.approx(3, abs=0.3)
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            MPIEXEC,
            marks=[
                pytest.mark.elsewhere,
                pytest.mark.skipif(not shutil.which(MPIEXEC["mpiexec"]), reason="MPICH is not installed here"),
            ],
        ),
    ],
    ids=["processes", "mpi"],
)
def test_a_detached_run_on_slurm_outlives_its_session(
    slurm: Engine, muster_home: Path, options: dict[str, Any]
) -> None:
    outlives_its_session(platform="slurm", nodes="2", **options)
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
