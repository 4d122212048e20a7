"""Whole clusters on the workbench: real ones over ``muster serve``, and those whose workers never come."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import LaunchRefused, MusterError, PlatformUnsupported, ScriptFailed, WorkerLost, WorkersMissing
from muster.job import WorkerSpec
from muster.platforms.workbench.platform import WorkbenchPlatform
from muster.records import lookup, runs
from muster.run.arrival import Arrival
from muster.run.cluster import Cluster

from tests.plain import Plain
from tests.platforms.recovering import recovers
from tests.serve.service import Service
from tests.support import environment, eventually
from tests.workbench.scripted import ScriptedWorkbench
from tests.workbench.session import WorkbenchSession

pytestmark = pytest.mark.slow

SLEEP = "import time; print('ready', flush=True); time.sleep(600)"
ALLREDUCE = """
import horovod.tensorflow as hvd
import tensorflow as tf
hvd.init()
print("sum", float(hvd.allreduce(tf.constant(1.0 + hvd.rank()), op=hvd.Sum)))
"""
TASK = """
import tensorflow as tf
def run(cluster, server, task_index):
    with tf.Graph().as_default(), tf.device("/job:ps/task:0"):
        total = tf.compat.v1.get_variable("total", initializer=1.0)
        with tf.compat.v1.Session(server.target) as session:
            session.run(total.initializer)
            print("total", session.run(total.assign_add(2.0)))
"""


def is_ready(run_dir: Path) -> bool:
    """Return whether both scripts have said so."""
    logs = [run_dir / "logs" / f"worker-{index}.log" for index in range(2)]
    return all(log.exists() and "ready" in log.read_text() for log in logs)


def start_sleeping(folder: Path) -> Cluster:
    """A cluster of two that does nothing, and does it already."""
    script = folder / "train.py"
    script.write_text(SLEEP)
    cluster: Cluster = muster.run_cluster(2, worker_script=script, strategy=Plain(), wait=False).cluster
    eventually(lambda: is_ready(cluster.run_dir), "the scripts run")
    return cluster


def assert_nothing_left(session: WorkbenchSession) -> None:
    """Fail where a worker lives, or something that ends with a run is still in its folder."""
    eventually(lambda: not session.living(), "no worker lives")
    for run in lookup.list_runs():
        kept = {"events.jsonl", "plan.json", "result.json", "logs", "results"}
        assert {path.name for path in run.run_dir.iterdir()} <= kept
        assert not [path for path in (run.run_dir / "logs").iterdir() if path.suffix != ".log"]


@pytest.mark.slow
def test_a_function_runs_on_every_worker_and_returns(workbench_session: WorkbenchSession, workbench: Service) -> None:
    def who() -> str:
        import os

        return f"{os.environ['MUSTER_WORKER']} {os.environ['SECRET']}"

    cluster = muster.run_cluster(2, worker_script=who, strategy=Plain(), env={"SECRET": "hunter2"}).cluster
    assert cluster.platform.name == "workbench"
    assert sorted(path.name for path in (cluster.run_dir / "results").iterdir()) == ["worker-0.json", "worker-1.json"]
    assert_nothing_left(workbench_session)
    kept = b"".join(path.read_bytes() for path in workbench.keys.parents[1].rglob("*.py"))
    assert b"become_worker" in kept
    assert b"hunter2" not in kept


@pytest.mark.slow
def test_a_script_that_fails_is_named_with_its_traceback(workbench_session: WorkbenchSession, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, time\nif os.environ['MUSTER_INDEX'] == '1': raise ValueError('no data')\ntime.sleep(600)"
    )
    with pytest.raises(ScriptFailed, match="worker-1 failed first: ValueError: no data"):
        muster.run_cluster(2, worker_script=script, strategy=Plain())
    assert_nothing_left(workbench_session)


@pytest.mark.slow
def test_horovodrun_starts_its_ranks_over_ssh(workbench_session: WorkbenchSession, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ALLREDUCE)
    options: dict[str, Any] = {"strategy": "horovod", "launcher": "horovodrun", "memory": 4, "timeout_seconds": 120}
    cluster = muster.run_cluster(2, worker_script=script, **options).cluster
    assert " -p 2222 " in cluster.command
    assert cluster.logs("worker-0") == cluster.logs("worker-1") == "sum 3.0\n"
    assert_nothing_left(workbench_session)


@pytest.mark.slow
def test_tensorflows_servers_listen_on_the_workers(workbench_session: WorkbenchSession, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TASK)
    cluster = muster.run_cluster(1, 1, worker_script=script, memory=4, timeout_seconds=120).cluster
    assert "total 3.0" in cluster.logs("worker-0")
    assert_nothing_left(workbench_session)


@pytest.mark.slow
def test_an_agent_that_is_killed_is_named(workbench_session: WorkbenchSession, tmp_path: Path) -> None:
    cluster = start_sleeping(tmp_path)
    ready = {event.worker: event for event in runs.Run(cluster.run_dir).events() if event.kind == "worker_ready"}
    os.kill(ready["worker-1"].data["pid"], signal.SIGKILL)
    with pytest.raises(WorkerLost, match="worker-1 was lost"):
        cluster.wait(30)
    assert_nothing_left(workbench_session)


@pytest.mark.slow
def test_a_worker_that_somebody_else_stops_is_named(workbench_session: WorkbenchSession, tmp_path: Path) -> None:
    cluster = start_sleeping(tmp_path)
    WorkbenchPlatform().stop([cluster.workers[1].id])
    with pytest.raises(WorkerLost, match="worker-1 was taken away: the platform says it has stopped"):
        cluster.wait(30)
    assert_nothing_left(workbench_session)


@pytest.mark.slow
def test_a_worker_that_somebody_else_stops_is_replaced(
    workbench_session: WorkbenchSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recovers(lambda running: WorkbenchPlatform().stop([running.workers[1].id]), platform="workbench")
    assert_nothing_left(workbench_session)


@pytest.mark.slow
def test_the_workers_of_a_session_that_is_killed_end(
    workbench_session: WorkbenchSession, workbench: Service, tmp_path: Path
) -> None:
    program = f"""
import sys; sys.path[:0] = {sys.path!r}
import muster
from plain import Plain
muster.run_cluster(2, worker_script="train.py", strategy=Plain(), platform="workbench", lease_seconds=1.5)
"""
    (tmp_path / "train.py").write_text(SLEEP)
    session = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, env=environment())
    try:
        eventually(lambda: lookup.list_runs() and is_ready(lookup.open_run().run_dir), "the scripts run", timeout=30)
    finally:
        session.kill()
        session.wait()
    eventually(lambda: not workbench_session.living(), "no worker lives")


class Firewalled(WorkbenchPlatform):
    """A workbench whose workers cannot reach the session's port."""

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Launch workers that dial a port where nobody listens."""
        unreachable = [replace(spec, session=spec.session and replace(spec.session, port=1)) for spec in specs]
        return super().submit(unreachable, run_key)


@pytest.mark.slow
def test_workers_that_cannot_reach_the_session_say_what_to_open(
    workbench_session: WorkbenchSession, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    with pytest.raises(
        LaunchRefused, match="worker-[01] did not come up: .*cannot reach the session at 127.0.0.1:1"
    ) as caught:
        muster.run_cluster(2, worker_script=script, strategy=Plain(), platform=Firewalled())
    assert "open that port" in str(caught.value)
    assert "session_address=" in str(caught.value)
    assert_nothing_left(workbench_session)


# -- workers that never come -------------------------------------------------------------------------------------------


def refused(**options: Any) -> MusterError:
    """Return the error of a cluster of two that must not come up."""
    with pytest.raises(MusterError) as caught:
        muster.run_cluster(2, worker_script=print_nothing, strategy=Plain(), **options)
    return caught.value


def print_nothing() -> None:
    """Return."""


def test_workers_that_are_not_scheduled_are_named_with_their_status(scripted: ScriptedWorkbench) -> None:
    def schedule(number: int) -> None:
        for worker in scripted.workers[:1]:
            if worker["status"] == "scheduling":
                worker["status"] = "starting"

    scripted.looks = schedule
    error = refused(timeout_seconds=4)  # by then it has been listed again, on the busiest machine, too
    assert isinstance(error, WorkersMissing)
    assert sorted(re.findall(r"worker-[01] is (\w+)", str(error))) == ["scheduling", "starting"]
    assert {worker["status"] for worker in scripted.workers} == {"stopped"}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"status": "failed"}, "The workbench says that it has failed"),
        ({"status": "timedout"}, "The workbench has ended it"),
        ({"status": "stopped"}, "the platform says it has stopped"),
        ({"status": "succeeded"}, "the platform says it has succeeded"),
    ],
)
def test_a_worker_that_ends_before_it_is_heard_of(
    scripted: ScriptedWorkbench, change: dict[str, Any], why: str
) -> None:
    scripted.looks = lambda number: [worker.update(change) for worker in scripted.workers[1:]]
    error = refused(timeout_seconds=60)
    assert isinstance(error, LaunchRefused)
    assert re.search(rf"worker-[01] did not come up: {why}", str(error))


def test_a_worker_that_vanishes(scripted: ScriptedWorkbench) -> None:
    scripted.looks = lambda number: scripted.workers.clear() if number > 1 else None
    assert "did not come up: It has vanished" in str(refused(timeout_seconds=60))


def test_a_platform_that_cannot_be_asked_is_in_the_error(
    scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expire(number: int) -> None:
        scripted.key = "another"

    # The start has taken too long once the workbench was asked in vain, whenever that is.
    monkeypatch.setattr(Arrival, "deadline", lambda arrival: arrival._watch.silent_since)
    scripted.looks = expire
    error = refused()
    assert isinstance(error, WorkersMissing)
    assert "does not accept the key in CDSW_API_KEY" in str(error)


def test_a_session_that_does_not_know_its_address(scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDSW_IP_ADDRESS")
    error = refused()
    assert isinstance(error, PlatformUnsupported)
    assert 'session_address="host:port"' in str(error)
    assert scripted.count("POST") == 0
