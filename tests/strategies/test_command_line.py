"""``muster plan`` and ``muster run`` with the strategies whose options the command line has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from muster import run_cluster
from muster.commands.main import main
from muster.commands.run import run
from muster.errors import JobError
from muster.options.fields import option
from muster.platforms.local import LocalPlatform
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.request import RunRequest
from muster.strategies import STRATEGIES

from tests.plain import Plain
from tests.support import CLI

BAD_INPUT = 2  # exit status


def muster(*arguments: str) -> Result:
    return CLI.invoke(main, arguments)


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
    assert "-iface eth1 -wdir / -bind-to core -verbose -errfile-pattern 'a b'" in result.stdout
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
        (["-s", "mpi", "--mpiexec", "/no/such/mpiexec"], "There is no '/no/such/mpiexec' here"),
        (["-s", "mpi", "--mpi-args", "'unfinished"], "No closing quotation"),
        (["-s", "horovod", "--mpi-args", "-verbose"], "no such option"),
    ],
)
def test_what_cannot_be_is_said_at_once(script: str, arguments: Any, message: str) -> None:
    result = muster("plan", *arguments, script)
    assert result.exit_code == BAD_INPUT
    assert message in result.stderr


@dataclass(frozen=True)
class Leisurely(Plain):
    """A strategy of somebody else's."""

    tea_breaks: int = option(2, "Breaks of each worker", minimum=0)
    biscuits: tuple[str, ...] = option((), "What is served", metavar="WORDS")
    with_milk: bool = option(False, "Serve milk")
    kettle: object = None


class TestDeclaredOptions:
    @pytest.fixture(autouse=True)
    def leisurely(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(STRATEGIES, "leisurely", f"{__name__}:Leisurely")

    def test_of_a_new_strategy_are_flags(self, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
        text = " ".join(muster("run", "--help").stdout.split())
        assert "parameter_server|horovod|mpi|processes|multi_worker|leisurely]" in text
        assert "--tea-breaks N Breaks of each worker (leisurely). [default: 2] [x>=0]" in text
        assert "--biscuits WORDS What is served (leisurely)." in text
        assert "--kettle" not in text

        asked: list[RunRequest] = []

        def noted(request: RunRequest) -> CheckedRun:
            asked.append(request)
            return check(request)

        monkeypatch.setattr("muster.run.check.check", noted)
        flags = ["--tea-breaks", "3", "--biscuits", "plain 'with jam'", "--with-milk", "--log-cap", "5000"]
        result = muster("plan", "-s", "leisurely", "-p", "local", *flags, script)
        assert result.exit_code == 0, result.output
        checked = check(asked[0])
        assert checked.strategy == Leisurely(tea_breaks=3, biscuits=("plain", "with jam"), with_milk=True)
        assert isinstance(checked.platform, LocalPlatform)
        assert checked.platform.log_cap == 5000

    def test_are_arguments_of_run_cluster(self) -> None:
        with pytest.raises(JobError, match="'tea_braks'") as misspelt:
            run_cluster(1, strategy="leisurely", tea_braks=3)
        assert misspelt.value.advice == "tea_breaks="
        with pytest.raises(JobError, match="'log_capp'") as misspelt:
            run_cluster(1, log_capp=3)
        assert misspelt.value.advice == "log_cap="

    def test_of_another_strategy_or_platform_are_refused(self, script: str) -> None:
        refused = muster("run", "-s", "processes", "--tea-breaks", "1", script)
        assert refused.exit_code == 2
        assert (
            "Strategy 'processes' has no such option: --tea-breaks.\nTry: --tea-breaks is an option of leisurely"
            in (refused.stderr)
        )
        assert "Platform 'workbench' has no such option: --log-cap" in (
            muster("run", "-s", "processes", "-p", "workbench", "--log-cap", "1", script).stderr
        )
        with pytest.raises(JobError, match="A platform that is made already takes no options: log_cap"):
            run_cluster(1, strategy="leisurely", platform=LocalPlatform(), log_cap=1)


def test_no_two_options_have_one_flag() -> None:
    context = click.Context(run)
    flags = [flag for parameter in run.get_params(context) for flag in (*parameter.opts, *parameter.secondary_opts)]
    assert sorted(flags) == sorted(set(flags))


@pytest.mark.slow
def test_a_run_of_processes(script: str) -> None:
    result = muster("run", "-s", "processes", "--slots", "2", script)
    assert result.exit_code == 0, result.output
    assert sorted(muster("logs", "last", "worker-0").stdout.split("\n")) == ["", "rank 0", "rank 1"]
