"""A worker is lost on hosts, in a container or with its node: it is replaced, and nothing that was learnt is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest

from tests.platforms.container_engine import ContainerEngine
from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network
from tests.platforms.recovering import recovers, servers_recover, take_away
from tests.platforms.slurm_engine import Engine
from tests.support import QUICK_KERAS, eventually


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, which is the working directory."""
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


def test_a_host_that_starts_anew_gets_its_worker_again(hosts: Network, folder: Path) -> None:
    def restart(running: muster.Cluster) -> None:
        hosts.hosts["h2"].power_off()
        hosts.hosts["h2"].power_on()
        hosts.hosts["h2"].wait()

    recovers(restart, platform="hosts", hosts=["h1:1", "h2:1"], lease_seconds=3)


@pytest.fixture
def kept(folder: Path) -> Path:
    """A folder of this machine for checkpoints, which containers have as a volume."""
    made = folder.parent / "kept"
    made.mkdir()
    return made


def with_kept(kept: Path) -> dict[str, Any]:
    """Return options for containers that keep their checkpoints in a folder of this machine."""
    return {"platform": "containers", "volumes": [f"{kept}:/kept"], "env": {"KEPT": "/kept"}}


def kill_container(engine: ContainerEngine, worker: str) -> None:
    """Kill a worker's container."""
    engine.run("kill", next(name for name in engine.containers() if name.endswith(worker)))


def test_a_container_that_is_killed_is_replaced(either_engine: ContainerEngine, kept: Path) -> None:
    recovers(lambda running: kill_container(either_engine, "worker-0"), lost="worker-0", **with_kept(kept))
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.elsewhere
def test_a_run_goes_on_without_the_container_that_cannot_be_started_again(engine: Podman, kept: Path) -> None:
    def kill_for_good(running: muster.Cluster) -> None:
        kept.rename(kept.with_name("moved"))  # the volume of a new container; the other one has it mounted already
        kill_container(engine, "worker-1")

    recovers(kill_for_good, is_left_alone=True, min_workers=1, **with_kept(kept))
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


def test_a_run_on_hosts_goes_on_without_the_one_that_is_cut_off(hosts: Network, folder: Path) -> None:
    lost = hosts.hosts["h2"]
    try:
        recovers(
            lambda running: lost.power_off(), is_left_alone=True, min_workers=1, platform="hosts",
            hosts=["h1:1", "h2:1"], lease_seconds=3,
        )  # fmt: skip
    finally:
        lost.power_on()
        lost.wait()


@pytest.fixture
def hosts_with_tensorflow(hosts: Network, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """The hosts; what TensorFlow's own imports leave there for the user is removed."""
    quick = shutil.copytree(QUICK_KERAS, folder.parent / QUICK_KERAS.name)  # the hosts see nothing of this project
    monkeypatch.setenv("PYTHONPATH", f"{quick}{os.pathsep}{os.environ['PYTHONPATH']}")
    yield hosts
    hosts.remove_what_tensorflow_leaves()


OPEN_MPI = "mpiexec.openmpi"
needs_open_mpi = pytest.mark.skipif(shutil.which(OPEN_MPI) is None, reason=f"{OPEN_MPI} is not installed here")
WITH_TENSORFLOW: dict[str, Any] = {"memory": 1.5, "timeout_seconds": 240, "run_timeout": 240}


def take_away_the_first(running: muster.Cluster) -> None:
    """Have the worker of rank 0 lost."""
    take_away(running, "worker-0")


@pytest.mark.elsewhere
@pytest.mark.horovod
def test_horovods_ranks_on_hosts_go_on_with_the_worker_that_replaces_the_first(
    hosts_with_tensorflow: Network, folder: Path
) -> None:
    where: dict[str, Any] = {"platform": "hosts", "hosts": ["h1:1", "h2:1"], "lease_seconds": 3}
    where["env"] = {"KEPT": "/home"}
    recovers(take_away_the_first, lost="worker-0", strategy="horovod", **where, **WITH_TENSORFLOW)


@pytest.mark.elsewhere
@pytest.mark.horovod
def test_horovods_ranks_in_containers_go_on_with_the_container_that_replaces_the_first(
    engine: Podman, kept: Path
) -> None:
    lose = lambda running: kill_container(engine, "worker-0")  # noqa: E731
    recovers(lose, lost="worker-0", strategy="horovod", **with_kept(kept), **WITH_TENSORFLOW)
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.elsewhere
@needs_open_mpi
def test_with_the_first_container_of_mpi_killed_all_are_launched_anew(engine: Podman, kept: Path) -> None:
    lose = lambda running: kill_container(engine, "worker-0")  # noqa: E731
    recovers(lose, are_all_new=True, strategy="mpi", mpiexec=OPEN_MPI, **with_kept(kept))
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.elsewhere
@needs_open_mpi
def test_with_the_first_worker_of_mpi_on_hosts_lost_all_are_launched_anew(hosts: Network, folder: Path) -> None:
    recovers(
        take_away_the_first, are_all_new=True, strategy="mpi", mpiexec=OPEN_MPI, env={"KEPT": "/home"},
        platform="hosts", hosts=["h1:1", "h2:1"], lease_seconds=3,
    )  # fmt: skip


@pytest.mark.elsewhere
def test_all_start_again_without_a_server_that_is_lost_on_a_host(hosts_with_tensorflow: Network, folder: Path) -> None:
    servers_recover(
        lambda running: take_away(running, "ps-0"), platform="hosts", hosts=["h1:2", "h2:1"],
        env={"KEPT": "/home/checkpoints"}, **WITH_TENSORFLOW,
    )  # fmt: skip


@pytest.mark.elsewhere
def test_all_start_again_without_a_server_whose_container_is_killed(engine: Podman, kept: Path) -> None:
    servers_recover(lambda running: kill_container(engine, "ps-0"), **with_kept(kept), **WITH_TENSORFLOW)
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.elsewhere
def test_all_start_again_without_a_server_whose_task_of_slurms_is_told_to_end(slurm: Engine, folder: Path) -> None:
    servers_recover(
        lambda running: take_away(running, "ps-0"), platform="slurm", nodes="2", env={"KEPT": str(folder.parent)},
        **WITH_TENSORFLOW,
    )  # fmt: skip


def test_with_a_node_of_slurms_that_is_lost_all_of_its_job_is_launched_anew(slurm: Engine, folder: Path) -> None:
    """Slurm ends the job of a lost node, with the workers on its other nodes, only once it has noticed the loss."""

    def lose(running: muster.Cluster) -> None:
        (before,) = slurm.left_behind()
        slurm.power_off("n2")
        # The engine notices it in seconds, clusters in minutes: what was submitted must go by itself.
        eventually(lambda: before not in slurm.left_behind() and slurm.left_behind(), "another job", timeout=60)
        slurm.power_on("n2")

    try:
        recovers(lose, are_all_new=True, platform="slurm", nodes="2", env={"KEPT": str(folder.parent)})
    finally:
        if slurm.is_off("n2"):
            slurm.power_on("n2")


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"strategy": "horovod", **WITH_TENSORFLOW}, marks=[pytest.mark.elsewhere, pytest.mark.horovod]),
        *(
            pytest.param(
                {"strategy": "mpi", "mpiexec": name, "are_all_new": True},
                marks=[pytest.mark.elsewhere, pytest.mark.skipif(not shutil.which(name), reason=f"no {name} here")],
            )
            for name in (OPEN_MPI, "mpiexec.mpich")
        ),
    ],
    ids=["processes", "horovod", "mpi by openmpi", "mpi by mpich"],
)
def test_a_task_of_slurms_that_is_told_to_end_is_replaced(slurm: Engine, folder: Path, options: dict[str, Any]) -> None:
    recovers(take_away, platform="slurm", nodes="2", env={"KEPT": str(folder.parent)}, **options)


@pytest.mark.elsewhere  # only because it waits long
def test_a_run_on_slurm_goes_on_without_the_task_whose_node_is_drained(slurm: Engine, folder: Path) -> None:
    """The job for the replacement waits in the queue, as the other node has no core left for it."""

    def drain(running: muster.Cluster) -> None:
        slurm.run("scontrol", "update", "nodename=n2", "state=drain", "reason=tests")
        take_away(running)

    try:
        recovers(
            drain, is_left_alone=True, min_workers=1, platform="slurm", nodes="2", cpu=3, timeout_seconds=15,
            env={"KEPT": str(folder.parent)},
        )  # fmt: skip
    finally:
        slurm.run("scontrol", "update", "nodename=n2", "state=resume")
