"""The live view in tmux: what a person sees in the end, after Ctrl-C and its echo."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.records import runs

from tests.support import IMPORT_PATH, TESTS, eventually

TMUX = shutil.which("tmux")
MUSTER = """
import sys
from muster.commands import main
from muster.strategies import STRATEGIES
STRATEGIES["parameter_server"] = "plain:Plain"
main.main(["run", "-n", "4", "sleeps.py"])
"""


class Tmux:
    """A tmux server of its own with one window of 80 columns."""

    def __init__(self, folder: Path) -> None:
        self._server = ["tmux", "-f", "/dev/null", "-S", str(folder / "tmux")]
        self("new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), "env PS1='$ ' sh")

    def __call__(self, *command: str) -> str:
        done = subprocess.run([*self._server, *command], capture_output=True, text=True, check=True, timeout=10)
        return done.stdout

    def type(self, *keys: str) -> None:
        self("send-keys", *keys)

    def shows(self) -> str:
        return self("capture-pane", "-p", "-S", "-100")


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if TMUX is None:
        pytest.skip("tmux is not installed")
    terminal = Tmux(tmp_path)
    yield terminal
    terminal("kill-server")


def test_after_keys_and_ctrl_c_the_last_picture_is_the_only_one(tmux: Tmux, tmp_path: Path) -> None:
    (tmp_path / "sleeps.py").write_text("import time\nprint('here we are', flush=True)\ntime.sleep(600)\n")
    (tmp_path / "program.py").write_text(MUSTER)
    path = f"{IMPORT_PATH}{os.pathsep}{TESTS}"
    environment = f"MUSTER_DASHBOARD= MUSTER_HOME={shlex.quote(str(runs.muster_home()))} PYTHONPATH={shlex.quote(path)}"
    tmux.type(f"{environment} {shlex.quote(sys.executable)} program.py; echo ended: $?", "Enter")
    eventually(lambda: tmux.shows().count("here we are") == 4, "all workers print")

    tmux.type("x", "Enter", "Enter")
    eventually(lambda: "4 running" in tmux.shows(), "painted again")
    tmux.type("C-c")

    eventually(lambda: "ended: 130" in tmux.shows(), "ended")
    shown = tmux.shows()
    assert "● " not in shown
    assert shown.count("plain  stopped") == 1
    assert shown.count("■ stopped") == 4
    tmux.type("echo typed", "Enter")
    eventually(lambda: "$ echo typed\ntyped" in tmux.shows(), "keys are shown again")
