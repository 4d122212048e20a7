"""The runner in a library of its own, as workers get it, on every Python that is here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from muster.checks.script import make_script
from muster.platforms.base import Storage
from muster.run.preparation import ship_library

SCRIPT = """
import glob, json, os, socket, sys, time

def shown():
    (path,) = glob.glob("stacks-*.sock")
    question = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    question.sendto(b"?", path)
    while not os.stat(path[:-5]).st_size:  # nothing from the question on makes a frame of its own
        time.sleep(0.01)
    question.close()
    with open(path[:-5]) as file:
        return file.read()

print(json.dumps({"stack": shown(), "argv": sys.argv, "muster": sys.modules["muster"].__file__}))
raise ValueError("no data")
"""


@pytest.mark.parametrize("version", ["this", "3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13"])
@pytest.mark.parametrize("storage", [Storage.ALL, Storage.NOTHING], ids=["linked", "copied"])
def test_it_runs_a_script_and_tells_of_its_frames_alone(tmp_path: Path, version: str, storage: Storage) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found and version != "this":
        pytest.skip(f"there is no Python {version}")
    python = sys.executable if version == "this" else str(found[0])
    library = tmp_path / "lib"
    ship_library(library, [], storage)
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = {"PYTHONPATH": str(library), "MUSTER_SCRATCH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [python, "-u", str(library / "runner.py"), "program", "train.py", "--epochs", "3"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.count("  File ") == 1
    assert done.stderr.endswith("ValueError: no data\n")
    calls = [line.split()[-1] for line in told["stack"].splitlines() if line.startswith("  File ")]
    assert calls == ["shown", "<module>"]
    assert told["argv"] == ["train.py", "--epochs", "3"]
    assert told["muster"] == str(library / "muster" / "__init__.py")


@pytest.mark.parametrize(("flags", "env"), [(["-I"], {}), ([], {"PYTHONSAFEPATH": "1"})])
def test_an_interpreter_that_looks_into_no_programs_folder_runs_a_script(
    tmp_path: Path, flags: list[str], env: dict[str, str]
) -> None:
    """Such as one whose command is a script that starts Python so."""
    library = tmp_path / "lib"
    ship_library(library, [], Storage.NOTHING)
    (tmp_path / "beside.py").touch()
    (tmp_path / "train.py").write_text("import beside, json, muster\nprint(muster.__file__)\n")
    command = [sys.executable, *flags, "-u", str(library / "runner.py"), "program", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{library / 'muster' / '__init__.py'}\n", "")


def test_what_threads_end_with_is_loaded_before_a_script_may_use_up_its_descriptors(tmp_path: Path) -> None:
    """Else the C library aborts the process where a thread of Muster's has just woken at the interpreter's end."""
    library = tmp_path / "lib"
    ship_library(library, [], Storage.NOTHING)
    (tmp_path / "train.py").write_text("print('/libgcc_s' in open('/proc/self/maps').read())\n")
    command = [sys.executable, "-u", str(library / "runner.py"), "program", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_function_spawns_needs_nothing_of_the_library(tmp_path: Path, method: str) -> None:
    """A module of the user's comes first there: that of the name ``muster``, too."""

    def train() -> object:
        import multiprocessing
        import os
        from concurrent.futures import ProcessPoolExecutor

        with ProcessPoolExecutor(1, multiprocessing.get_context(method)) as pool:
            return pool.submit(os.getcwd).result()

    library, project = tmp_path / "lib", tmp_path / "project"
    ship_library(library, [], Storage.NOTHING)
    project.mkdir()
    (project / "muster.py").write_text("raise ValueError('of the user')\n")
    (tmp_path / "function").write_bytes(make_script(train).pickled)
    environment = {"PYTHONPATH": str(library), "MUSTER_RESULTS": str(tmp_path), "MUSTER_WORKER": "worker-0"}
    command = [sys.executable, "-u", str(library / "runner.py"), "function", str(tmp_path / "function")]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "worker-0.json").read_text()) == str(project)
