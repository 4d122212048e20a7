"""The platform of docs/write-a-platform.md keeps the contract of all platforms, and runs a cluster."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import muster
import pytest
from muster.job import Resources, WorkerSpec

from tests.support import DOCS, environment, guide_program, program_of

GUIDE = "write-a-platform.md"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder outside Muster with the package of the guide, and the tests of it."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "batch.py").write_text(guide_program(GUIDE, "batch"))
    (tmp_path / "test_mine.py").write_text(guide_program(GUIDE, "mine"))
    return tmp_path


@pytest.mark.slow
def test_the_contract_holds_for_it_as_the_guide_says(outside: Path) -> None:
    said = re.search(
        r"^PYTHONPATH=CLONE:\. CLONE/\.venv/bin/(pytest \S+ \S+ test_mine\.py) ", (DOCS / GUIDE).read_text(), re.M
    )
    assert said, "the guide says how"
    env = environment(PYTHONPATH=f"{ROOT}{os.pathsep}.{os.pathsep}{environment()['PYTHONPATH']}")
    command = [sys.executable, "-m", *shlex.split(said[1]), "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=outside, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2\d passed", done.stdout), done.stdout


def test_a_cluster_runs_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import os; print('rank', os.environ['RANK'], 'is as nice as', os.nice(0))")
    platform = program_of(GUIDE, "batch", "batch_of_the_guide")["Batch"](niceness=1)
    shown = muster.run_cluster(2, worker_script="train.py", strategy="processes", platform=platform, memory=0.5)
    nice = os.nice(0) + 1  # the tests may be nice themselves
    assert [shown.cluster.logs(f"worker-{n}") for n in range(2)] == [
        f"rank {n} is as nice as {nice}\n" for n in range(2)
    ]
    platform.close()


@pytest.mark.parametrize("handed", [WorkerSpec, Resources])
def test_the_tables_of_what_it_is_handed_have_every_field(handed: type[WorkerSpec | Resources]) -> None:
    table = (DOCS / GUIDE).read_text().partition(f"<!-- fields of {handed.__name__} -->\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(field.name for field in fields(handed))


def test_it_is_written_as_this_repository_wants_it() -> None:
    program = '"""Each worker is a process of this machine."""\n\n' + guide_program(GUIDE, "batch")
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", "sdk/muster/platforms/batch.py", "-"]
        done = subprocess.run(ruff, cwd=ROOT, input=program, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("page", "name"), [
    (GUIDE, "batch"), ("write-a-strategy.md", "chain"), ("write-a-strategy.md", "fanout"),
])  # fmt: skip
def test_the_types_of_the_guides_are_right(page: str, name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text(guide_program(page, name))
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--cache-dir",
        str(ROOT / ".mypy_cache"),
        str(tmp_path / f"{name}.py"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
