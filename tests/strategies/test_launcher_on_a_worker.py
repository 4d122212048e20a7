"""Launchers that a worker's agent runs, because the session does not reach the workers by itself."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent import linux
from muster.errors import LauncherFailed, RunStopped, ScriptFailed

from tests.platforms.isolated import Isolated, has_namespaces
from tests.platforms.relayed import Relayed
from tests.support import Run, command_line, eventually

pytestmark = pytest.mark.slow

RANK = "import os\nprint('rank', os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])\n"


class Apart(Relayed, Isolated):
    """Workers that neither share files with the session nor are reached by it."""


@pytest.fixture
def run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., muster.Cluster]]:
    if not has_namespaces():
        pytest.skip("only root can give workers a view of the files of their own")
    monkeypatch.chdir(tmp_path)
    platform = Apart()
    options = {"platform": platform, "memory": 0.5, "timeout_seconds": 60}

    def started(script: Any, **more: Any) -> muster.Cluster:
        cluster: muster.Cluster = muster.run_cluster(2, worker_script=script, **{**options, **more}).cluster
        return cluster

    yield started
    platform.close()


@pytest.fixture
def mpich() -> dict[str, str]:
    path = shutil.which("mpiexec.mpich")
    if not path:
        pytest.skip("MPICH is not installed here")
    return {"strategy": "mpi", "mpiexec": path}


@pytest.mark.parametrize(("flavour", "tells"), [("mpich", "-verbose"), ("openmpi", "--display-map")])
def test_mpiexec_starts_every_rank_from_there(
    run: Callable[..., muster.Cluster], tmp_path: Path, flavour: str, tells: str
) -> None:
    mpiexec = shutil.which(f"mpiexec.{flavour}")
    if not mpiexec:
        pytest.skip(f"{flavour} is not installed here")
    (tmp_path / "rank.py").write_text(RANK)
    cluster = run("rank.py", strategy="mpi", mpiexec=mpiexec, slots=2, mpi_args=[tells])
    assert cluster.plan.launcher is not None
    assert cluster.plan.launcher.where == "worker-0"
    assert cluster.result.exit_codes == {f"rank {rank}": 0 for rank in range(4)}
    assert sorted(cluster.logs("worker-1").split("\n")) == ["", "rank 2", "rank 3"]
    assert "127." in cluster.logs("launcher"), "what it prints comes over the wire"


def test_the_rank_that_failed_is_named_and_its_launcher_does_not_outlive_it(
    run: Callable[..., muster.Cluster], mpich: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "rank.py").write_text(
        "import os, time\nif os.environ['PMI_RANK'] == '1': raise ValueError('a bad batch')\ntime.sleep(600)\n"
    )
    with pytest.raises(ScriptFailed, match=r"rank 1 \(worker-1\) failed first: ValueError: a bad batch"):
        run("rank.py", **mpich)
    assert linux.marked("MUSTER_RUN_ID", muster.open_run().run_id) == []


def test_its_own_failure_is_told_with_its_words(run: Callable[..., muster.Cluster], mpich: dict[str, str]) -> None:
    with pytest.raises(LauncherFailed, match="mpiexec.mpich on worker-0 itself failed") as raised:
        run("/bin/true", **mpich, mpi_args=["-no-such-option"])
    assert "no-such-option" in str(raised.value.details)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_it_can_be_stopped_and_killed(
    run: Callable[..., muster.Cluster], mpich: dict[str, str], tmp_path: Path, how: str
) -> None:
    (tmp_path / "wait.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(600)\n")
    cluster = run("wait.py", **mpich, wait=False)
    eventually(lambda: "ready" in cluster.logs("worker-1"), "it runs")
    marked = linux.marked("MUSTER_RUN_ID", cluster.run_id)
    (launcher,) = [pid for pid in marked if command_line(pid).startswith(mpich["mpiexec"])]
    if how == "killed":
        os.kill(launcher, signal.SIGKILL)
        with pytest.raises(LauncherFailed, match=r"on worker-0 itself failed: it ended with signal 9"):
            cluster.wait()
    else:
        cluster.stop()
        with pytest.raises(RunStopped):
            cluster.wait()
    assert linux.marked("MUSTER_RUN_ID", cluster.run_id) == []


@pytest.mark.slow
def test_horovodrun_trains_from_there(run: Callable[..., muster.Cluster]) -> None:
    def total() -> float:
        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        return float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))

    # Agents start ranks the same way wherever the launcher is.
    cluster = run(total, strategy="horovod", launcher="horovodrun", memory=2, timeout_seconds=120)
    assert cluster.result.values == [3.0, 3.0]
    assert cluster.plan.launcher is not None
    assert (cluster.plan.launcher.name, cluster.plan.launcher.where) == ("horovodrun", "worker-0")
