"""The strategies of docs/write-a-strategy.md, run as they stand there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import ScriptFailed
from muster.strategies.base import Strategy

from tests.support import program_of

pytestmark = pytest.mark.slow

GUIDE = "write-a-strategy.md"


def strategy(name: str, **options: Any) -> Strategy:
    """The strategy of that name on the page."""
    made: Strategy = program_of(GUIDE, name)[name.capitalize()](**options)
    return made


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_without_a_launcher() -> None:
    def told() -> list[str]:
        import os

        return [os.environ[name] for name in ("RANK", "ROUNDS", "NEXT")]

    shown = muster.run_cluster(3, worker_script=told, strategy=strategy("chain", rounds=5), memory=0.5)
    values: Any = shown.cluster.result.values
    assert [value[:2] for value in values] == [["0", "5"], ["1", "5"], ["2", "5"]]
    assert len({value[2] for value in values}) == 3, "each has another one behind it"


@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="a launcher logs in to an sshd")
def test_one_with_a_launcher() -> None:
    def rank() -> int:
        import os

        return int(os.environ["MUSTER_RANK"])

    shown = muster.run_cluster(2, worker_script=rank, strategy=strategy("fanout"), memory=0.5)
    assert shown.cluster.result.values == [0, 1]


@pytest.mark.skipif(not shutil.which("sshd", path="/usr/sbin:/usr/bin"), reason="a launcher logs in to an sshd")
def test_whoever_fails_under_it_is_named(folder: Path) -> None:
    (folder / "fails.py").write_text(
        "import os, sys, time\nif os.environ['MUSTER_RANK'] == '1': sys.exit(3)\ntime.sleep(600)\n"
    )
    with pytest.raises(ScriptFailed) as failed:
        muster.run_cluster(2, worker_script="fails.py", strategy=strategy("fanout"), memory=0.5)
    assert failed.value.worker == "worker-1"
