"""Every strategy on two and three containers that share nothing but the network between them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import pytest

from tests.mpi.conftest import Installed, adds_up
from tests.platforms.containers_podman import why_not
from tests.platforms.each_strategy import ADDS_UP
from tests.support import environment

REPOSITORY = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(params=["engine"])
def train(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., muster.Cluster]:
    """Trains in containers: of Podman's, unless a test asks for others."""
    request.getfixturevalue(request.param)
    monkeypatch.chdir(tmp_path)

    def run(n: int, script: Any, **options: Any) -> muster.Cluster:
        cluster: muster.Cluster = muster.run_cluster(
            n, worker_script=script, memory=2, timeout_seconds=240, platform="containers", **options
        ).cluster
        return cluster

    return run


@pytest.mark.parametrize(
    ("train", "workers", "launcher"),
    [
        ("engine", 3, "horovodrun"),
        ("engine", 2, "agents"),
        pytest.param("docker", 2, "horovodrun", marks=pytest.mark.elsewhere),
        pytest.param("docker", 3, "agents", marks=pytest.mark.elsewhere),
    ],
    indirect=["train"],
)
def test_horovod(train: Callable[..., muster.Cluster], workers: int, launcher: str) -> None:
    def total() -> tuple[str, float]:
        import os

        import horovod.tensorflow as hvd
        import tensorflow as tf

        hvd.init()
        return os.uname().nodename, float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))

    values = train(workers, total, strategy="horovod", launcher=launcher).result.values
    expected = workers * (workers + 1) / 2
    assert [tuple(value) for value in values] == [(f"worker-{index}", expected) for index in range(workers)]


@pytest.mark.parametrize(
    ("train", "workers", "servers"),
    [("engine", 2, 1), pytest.param("docker", 3, 1, marks=pytest.mark.elsewhere)],
    indirect=["train"],
)
def test_parameter_servers(train: Callable[..., muster.Cluster], tmp_path: Path, workers: int, servers: int) -> None:
    (tmp_path / "task.py").write_text(ADDS_UP)
    found = train(workers, "task.py", n_ps=servers, strategy="parameter_server")
    ends = [found.logs(f"worker-{index}").rstrip().rpartition("\n")[2] for index in range(workers)]
    assert ends == [f"all have added worker-{index} {servers}" for index in range(workers)]


@pytest.mark.parametrize(
    ("train", "workers"), [("engine", 2), pytest.param("docker", 3, marks=pytest.mark.elsewhere)], indirect=["train"]
)
def test_multi_worker_mirrored(train: Callable[..., muster.Cluster], workers: int) -> None:
    def total() -> float:
        import tensorflow as tf

        strategy = tf.distribute.MultiWorkerMirroredStrategy()

        def rank() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, context.replica_id_in_sync_group + 1)

        return float(strategy.run(rank))

    assert train(workers, total, strategy="multi_worker").result.values == [workers * (workers + 1) / 2] * workers


@pytest.mark.parametrize(
    ("train", "workers"), [("engine", 3), pytest.param("docker", 2, marks=pytest.mark.elsewhere)], indirect=["train"]
)
def test_mpi(train: Callable[..., muster.Cluster], workers: int, mpi: Installed) -> None:
    adds_up(train(workers, mpi.program, strategy=mpi.strategy(), wait=False), workers)


@pytest.mark.parametrize(
    ("train", "workers"), [("engine", 3), pytest.param("docker", 2, marks=pytest.mark.elsewhere)], indirect=["train"]
)
def test_processes(train: Callable[..., muster.Cluster], workers: int) -> None:
    def where() -> str:
        import os

        return os.uname().nodename

    values = train(workers, where, strategy="processes").result.values
    assert values == [f"worker-{index}" for index in range(workers)]


ELSEWHERE = """
import sys
import muster
from tests.mpi.conftest import Installed, adds_up
from tests.platforms.containers_podman import Podman

podman = Podman()
try:
    options = {"platform": "containers", "engine": podman.url, "memory": 2, "timeout_seconds": 240}
    for mpiexec in sys.argv[1:]:
        run = muster.run_cluster(2, strategy="mpi", mpiexec=mpiexec, worker_script="train.py", **options)
        print("trained:", *(run.cluster.logs(f"worker-{index}").split()[-1] for index in range(2)))
    run = muster.run_cluster(2, strategy="horovod", launcher="horovodrun", worker_script="train_horovod.py", **options)
    print("trained:", *(run.cluster.logs(f"worker-{index}").split()[-1] for index in range(2)))
finally:
    podman.remove()
"""


def test_launchers_on_a_machine_that_has_no_interface_of_the_containers_names(tmp_path: Path) -> None:
    """On one that has nothing but a loopback interface before the engine makes a bridge; containers have eth0."""
    if why_not():
        pytest.skip(why_not())
    (tmp_path / "train.py").write_text("import os\nprint(os.uname().nodename)\n")
    (tmp_path / "train_horovod.py").write_text(
        "import os, horovod.tensorflow as hvd\nhvd.init()\nprint(os.uname().nodename)\n"
    )
    launchers = [path for path in map(shutil.which, ("mpiexec.openmpi", "mpiexec.mpich")) if path]
    program = [sys.executable, "-c", ELSEWHERE, *launchers]
    command = ["unshare", "--net", "sh", "-c", f"ip link set lo up && exec {shlex.join(program)}"]
    path = f"{environment()['PYTHONPATH']}{os.pathsep}{REPOSITORY}"
    done = subprocess.run(command, cwd=tmp_path, env=environment(PYTHONPATH=path), capture_output=True, text=True)
    trained = [line for line in done.stdout.splitlines() if line.startswith("trained:")]
    assert trained == ["trained: worker-0 worker-1"] * (len(launchers) + 1), done.stdout + done.stderr
