"""``muster plan`` and ``muster run`` with the strategies whose options the command line has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from muster.commands.main import main


def muster(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("import os; print('rank', os.environ['RANK'])\n")
    return str(path)


def test_the_plan_of_mpi_shows_the_command_and_the_hostfile(script: str, mpiexecs: dict[str, str]) -> None:
    result = muster(
        "plan", "-s", "mpi", "-n", "2", "--slots", "2", "--mpiexec", mpiexecs["MPICH"], "--binding", "core",
        "--network-interface", "eth1", "--mpi-args", "-verbose -errfile-pattern 'a b'", script, "--epochs", "3",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "-iface eth1 -bind-to core -verbose -errfile-pattern 'a b'" in result.stdout
    assert "hostfile\n  <worker-0>:2\n  <worker-1>:2" in result.stdout
    assert "mpi_rank.py" in result.stdout
    assert result.stdout.count("train.py --epochs 3") == 3  # both workers, and mpiexec


def test_the_plan_of_processes_shows_each_ranks_place(script: str) -> None:
    result = muster("plan", "-s", "processes", "-n", "1", "--slots", "2", script)
    assert result.exit_code == 0
    assert "rank 1: MUSTER_RANK=1 MUSTER_LOCAL_RANK=1 MUSTER_WORLD_SIZE=2" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-s", "mpi", "--mpiexec", "no-such-mpiexec"], "install openmpi-bin or mpich"),
        (["-s", "mpi", "--mpi-args", "'unfinished"], "No closing quotation"),
        (["-s", "horovod", "--mpi-args", "-verbose"], "no such option"),
    ],
)
def test_what_cannot_be_is_said_at_once(script: str, arguments: Any, message: str) -> None:
    result = muster("plan", *arguments, script)
    assert result.exit_code != 0
    assert message in result.stderr


@pytest.mark.slow
def test_a_run_of_processes(script: str) -> None:
    result = muster("run", "-s", "processes", "--slots", "2", script)
    assert result.exit_code == 0, result.output
    assert sorted(muster("logs", "last", "worker-0").stdout.split("\n")) == ["", "rank 0", "rank 1"]
