"""The platform of docs/write-a-platform.md keeps the contract of all platforms, and runs a cluster."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from muster.platforms import PLATFORMS
from muster.platforms.base import Platform

from tests.platforms import test_contract
from tests.support import Run, environment, eventually, guide_program, handles_of, program_of, shell

MODULE = "batch_of_the_guide"
# A process of its own knows the platforms of Muster's table only: here it is told by hand.
OTHER_PROCESS = "test_another_process_finds_and_stops_workers_by_their_handles"

globals().update(
    (name, test)
    for name, test in vars(test_contract).items()
    if name.startswith("test_") and name not in (OTHER_PROCESS, "test_no_platform_of_that_name")
)


@pytest.fixture
def platform(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    module = program_of("write-a-platform.md", "batch", MODULE)
    monkeypatch.setitem(PLATFORMS, "batch", f"{MODULE}:Batch")
    platform: Platform = module["Batch"](niceness=1)
    yield platform
    platform.close()


def test_another_process_stops_its_workers(platform: Platform, run: Run, tmp_path: Path) -> None:
    (tmp_path / "batch.py").write_text(guide_program("write-a-platform.md", "batch"))
    handles = platform.submit([run.spec(process=shell("sleep 600"))], run.id)
    eventually(lambda: platform.poll(handles)[0].status == "running", "it runs")
    program = (
        "import sys; from batch import Batch; print(Batch().poll(sys.argv[1:])[0].status); Batch().stop(sys.argv[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *handles], cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("running\n", "")
    assert eventually(lambda: handles_of([w for w in platform.list() if w.status == "stopped"]), "it ends") == handles


def test_a_cluster_runs_on_it(platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'], 'is as nice as', os.nice(0))")
    shown = muster.run_cluster(2, worker_script="train.py", strategy="processes", platform=platform, memory=0.5)
    assert [shown.cluster.logs(f"worker-{n}") for n in range(2)] == [f"rank {n} is as nice as 1\n" for n in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), [
    ("write-a-platform.md", "batch"), ("write-a-strategy.md", "chain"), ("write-a-strategy.md", "fanout"),
])  # fmt: skip
def test_the_types_of_the_guides_are_right(page: str, name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(guide_program(page, name))
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(root / ".mypy_cache"),
        str(tmp_path / f"{name}.py"),
    ]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
