"""Imports of large packages in the processes of scripts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from muster.runner import runner

from tests.support import environment

PACKAGE = """
import gc
is_collected = gc.isenabled()
class Large: pass
objects = [Large() for _ in range(1000)]
for one in objects:
    one.itself = one
if {fails}:
    raise ImportError("no such device")
"""
SCRIPT = """
import gc, json
import sys
if {is_off}:
    gc.disable()
first = open("first", "w")
first.write("before")
try:
    import jax
except ImportError as error:
    print(error)
second = open("second", "w")
second.write("after")
first.itself, second.itself = first, second  # neither is closed before the interpreter ends
known = {{id(found) for found in gc.get_objects()}}
print(json.dumps({{
    "collected": jax.is_collected, "enabled": gc.isenabled(), "known": id(jax.objects[0]) in known,
    "file": jax.__spec__.loader.get_filename("jax"),
}} if "jax" in sys.modules else gc.isenabled()))
"""


def run(folder: Path, *, is_off: bool = False, fails: bool = False) -> list[str]:
    (folder / "jax.py").write_text(PACKAGE.format(fails=fails))
    (folder / "train.py").write_text(SCRIPT.format(is_off=is_off))
    command = [sys.executable, runner.__file__, "program", "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("is_off", [False, True])
def test_the_collector_is_kept_away_from_them(tmp_path: Path, is_off: bool) -> None:
    (told,) = run(tmp_path, is_off=is_off)
    found: dict[str, Any] = json.loads(told)
    assert found == {
        "collected": False,
        "enabled": not is_off,  # as the script has it
        "known": False,
        "file": str(tmp_path / "jax.py"),
    }


def test_files_are_written_whether_they_were_opened_before_or_after(tmp_path: Path) -> None:
    run(tmp_path)
    assert [(tmp_path / name).read_text() for name in ("first", "second")] == ["before", "after"]


def test_the_collector_is_back_after_one_that_fails(tmp_path: Path) -> None:
    assert run(tmp_path, fails=True) == ["no such device", "true"]


SUMMARIES = """
import tensorflow as tf

class Trainer:
    def __init__(self, folder):
        self.writer = tf.summary.create_file_writer(folder)
        self.step = tf.function(self.add)  # refers to itself now

    def add(self, number):
        with self.writer.as_default():
            tf.summary.scalar("loss", 1.0, step=number)

trainer = Trainer("own")
trainer.step(tf.constant(1, tf.int64))
tf.summary.create_file_writer("default").set_as_default()
tf.summary.scalar("loss", 1.0, step=1)
"""


@pytest.mark.slow
def test_what_tensorflow_has_yet_to_write_is_written_at_the_end(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SUMMARIES)
    command = [sys.executable, runner.__file__, "program", "train.py"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=True)
    for folder in ("own", "default"):
        (file,) = (tmp_path / folder).iterdir()
        assert b"loss" in file.read_bytes()


IDLE = """
import tensorflow
from muster.runner import hooks
from tensorflow.python.eager import context

hooks.write_what_is_buffered()
print(context.context()._context_handle)
"""


@pytest.mark.slow
def test_the_end_of_a_process_that_has_only_imported_tensorflow_looks_for_no_devices(tmp_path: Path) -> None:
    command = [sys.executable, "-c", IDLE]
    found = subprocess.run(command, cwd=tmp_path, env=environment(), check=True, stdout=subprocess.PIPE, text=True)
    assert found.stdout == "None\n"
