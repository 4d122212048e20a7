"""A worker is lost on hosts, in a container or with its node: it is replaced, and nothing that was learnt is lost."""

from __future__ import annotations

from pathlib import Path

import muster
import pytest

from tests.platforms.container_engine import ContainerEngine
from tests.platforms.hosts_network import Network
from tests.platforms.recovering import recovers, take_away
from tests.platforms.slurm_engine import Engine
from tests.support import eventually


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


def test_a_container_that_is_killed_is_replaced(either_engine: ContainerEngine, folder: Path) -> None:
    def kill(running: muster.Cluster) -> None:
        names = either_engine.containers()
        either_engine.run("kill", next(name for name in names if name.endswith("worker-1")))

    recovers(kill, platform="containers")
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=30)


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


def test_a_task_of_slurms_that_is_told_to_end_is_replaced(slurm: Engine, folder: Path) -> None:
    recovers(take_away, platform="slurm", nodes="2", env={"KEPT": str(folder.parent)})
