"""The doctor's findings on Horovod, in interpreters whose Horovod lacks something, and in this one."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import muster
import pytest
from muster.checks.script import make_script
from muster.checkup import Report, examine
from muster.checkup import horovod as horovod_checks
from muster.checkup.horovod import modules_of, traps, try_allreduce
from muster.checkup.report import Finding
from muster.errors import RunFailed
from muster.job import Job, Script
from muster.run.cluster import Cluster

from tests.support import needs_horovod

FAKE = """
import sys
class Hvd:
    Sum = 1
    def gloo_built(self): return {gloo}
    def init(self): pass
    def size(self): return 2
    def allreduce(self, tensor, op, name): return [{total}]
hvd = Hvd()
gloo_built, init, size, allreduce, Sum = hvd.gloo_built, hvd.init, hvd.size, hvd.allreduce, 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import horovod.tensorflow as hvd\n")
    return tmp_path


def examined(folder: Path, python: str | Path = sys.executable) -> Report:
    job = Job(make_script("train.py"), 1, python=str(python))
    return examine(Cluster(job, strategy="horovod"))


def python_with(folder: Path, **modules: str) -> Path:
    """An interpreter with this one's Horovod, but for these modules of it, and a TensorFlow that does nothing."""
    spec = importlib.util.find_spec("horovod")
    assert spec is not None
    assert spec.submodule_search_locations
    fake = folder / "site" / "horovod"
    fake.mkdir(parents=True)
    for entry in Path(spec.submodule_search_locations[0]).iterdir():
        if entry.stem not in modules and entry.suffix != ".so":
            (fake / entry.name).symlink_to(entry)
    for name, text in modules.items():
        (fake / f"{name}.py").write_text(text)
    (folder / "site" / "tensorflow.py").write_text("def ones(shape): return shape\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexport PYTHONPATH={folder / "site"}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


@needs_horovod
@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            "raise ImportError('Extension horovod.tensorflow has not been built')",
            "horovod.tensorflow cannot be imported",
        ),
        (FAKE.format(gloo=False, total=2), "built without gloo"),
        (FAKE.format(gloo=True, total=1), "gave 1.0 in place of 2"),
        ("import os; os.abort()", "ended with status -6"),
    ],
)
def test_a_horovod_that_lacks_something_is_an_error_with_how_to_build_it(folder: Path, module: str, words: str) -> None:
    report = examined(folder, python_with(folder, tensorflow=module))
    (finding,) = report.of("horovod")
    assert finding.level == "error"
    assert words in finding.text
    assert "HOROVOD_WITH_GLOO=1" in finding.fix
    assert not report.is_fine


@pytest.mark.slow
@needs_horovod
@pytest.mark.parametrize("launcher", ["horovodrun", "agents"])
def test_a_run_on_a_horovod_without_its_extension_gives_the_same_advice(folder: Path, launcher: str) -> None:
    python = python_with(folder)
    (folder / "site" / "tensorflow.py").unlink()
    (folder / "site" / "horovod" / "tensorflow").unlink()
    spec = importlib.util.find_spec("horovod.tensorflow")
    assert spec is not None
    assert spec.submodule_search_locations
    bare = shutil.ignore_patterns("*.so")
    shutil.copytree(spec.submodule_search_locations[0], folder / "site" / "horovod" / "tensorflow", ignore=bare)
    (finding,) = examined(folder, python).of("horovod")
    assert "Extension horovod.tensorflow has not been built" in finding.text

    with pytest.raises(RunFailed) as failed:
        muster.run_cluster(2, strategy="horovod", launcher=launcher, worker_script="train.py", python=python)

    assert failed.value.advice == finding.fix.replace(str(python), "python")


@pytest.mark.slow
def test_one_that_does_what_it_should_is_fine(folder: Path) -> None:
    (finding,) = examined(folder).of("horovod")
    assert (finding.level, finding.text) == (
        "ok",
        "two ranks import horovod.tensorflow and add up a number over gloo",
    )


@needs_horovod
@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        ("print('trains')\n", True),
        ("import helper\n", False),
        ("def train():\n    import horovod.tensorflow as hvd\n", False),
        ("from muster.training import horovod\n", False),
    ],
)
def test_a_script_that_never_joins_the_other_ranks_is_told_before_it_trains_apart(
    folder: Path, text: str, is_told: bool
) -> None:
    (folder / "helper.py").write_text("import horovod.tensorflow as hvd\n")
    (folder / "train.py").write_text(text)
    job = Job(Script("file", str(folder / "train.py")), n_workers=2)
    found = examine(Cluster(job, strategy="horovod"), launch=False).of("horovod")
    assert [(finding.level, "train apart" in finding.text) for finding in found] == [("warning", True)] * is_told


@needs_horovod
def test_horovods_own_keras_integration_is_named_with_what_takes_its_place(folder: Path) -> None:
    (folder / "train.py").write_text("from horovod.tensorflow import keras as hvd\n")
    (finding,) = examined(folder).of("horovod")
    assert finding.level == "error"
    assert "horovod.tensorflow.keras, which does not work with Keras 3" in finding.text
    assert "from muster.training import keras" in finding.fix


@pytest.mark.parametrize(
    ("imported", "keras", "env", "is_trap"),
    [
        (["horovod.keras"], "3.12.4", {}, True),
        (["horovod.tensorflow.keras.callbacks"], "3.0.0", {}, True),
        (["horovod.keras"], "2.15.0", {}, False),
        (["horovod.keras"], "3.12.4", {"TF_USE_LEGACY_KERAS": "1"}, False),
        (["horovod.tensorflow"], "3.12.4", {}, False),
        (["horovod.keras"], "", {}, False),
    ],
)
def test_which_integration_is_a_trap(imported: list[str], keras: str, env: dict[str, str], is_trap: bool) -> None:
    found: list[Finding] = list(traps(imported, keras, env))
    assert bool(found) == is_trap


def test_which_modules_are_tried() -> None:
    assert modules_of([]) == ["horovod.tensorflow"]
    assert modules_of(["horovod.torch"]) == ["horovod.torch"]
    assert modules_of(["horovod.keras"]) == ["horovod.tensorflow", "horovod.keras"]
    assert modules_of(["horovod.tensorflow.keras.callbacks"]) == ["horovod.tensorflow", "horovod.tensorflow.keras"]


@needs_horovod
def test_an_interpreter_that_is_gone_is_an_error(folder: Path) -> None:
    checked = Cluster(Job(make_script("train.py"), 1, python=sys.executable), strategy="horovod").check()
    checked = replace(checked, job=replace(checked.job, python=str(folder / "none")))
    (finding,) = try_allreduce(checked, [])
    assert (finding.level, finding.text) == ("error", f"{folder / 'none'} cannot be started: No such file or directory")


@needs_horovod
@pytest.mark.parametrize("program", ["print(1)", "print()", "print('[]')", "print('{')"])
def test_an_allreduce_that_tells_nothing_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    (folder / "allreduce.py").write_text(f"import sys\n{program}\nprint('a reason', file=sys.stderr)\n")
    monkeypatch.setattr(horovod_checks, "ALLREDUCE", folder / "allreduce.py")
    job = Job(make_script("train.py"), 1, python=sys.executable)
    (finding,) = try_allreduce(Cluster(job, strategy="horovod").check(), [])
    assert (finding.level, finding.details) == ("error", "a reason\n")
