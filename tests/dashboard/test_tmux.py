"""The live view in tmux: what a person sees when the window has another size, and after Ctrl-C and its echo."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.records import folders

from tests.support import IMPORT_PATH, TESTS, eventually

pytestmark = pytest.mark.slow

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
        self("new-session", "-d", "-x", "80", "-y", "24", "-c", str(folder), "env -u COLUMNS -u LINES PS1='$ ' sh")

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


@pytest.fixture
def running(tmux: Tmux, tmp_path: Path) -> Tmux:
    """The terminal in which a run of four workers is shown."""
    (tmp_path / "sleeps.py").write_text("import time\nprint('here we are', flush=True)\ntime.sleep(600)\n")
    (tmp_path / "program.py").write_text(MUSTER)
    path = f"{IMPORT_PATH}{os.pathsep}{TESTS}"
    environment = (
        f"MUSTER_DASHBOARD= MUSTER_HOME={shlex.quote(str(folders.muster_home()))} PYTHONPATH={shlex.quote(path)}"
    )
    tmux.type(f"{environment} {shlex.quote(sys.executable)} program.py; echo ended: $?", "Enter")
    eventually(lambda: tmux.shows().count("here we are") == 4, "all workers print")
    return tmux


def test_after_keys_and_ctrl_c_the_last_picture_is_the_only_one(running: Tmux) -> None:
    running.type("x", "Enter", "Enter")
    eventually(lambda: "4 running" in running.shows(), "painted again")
    running.type("C-c")

    eventually(lambda: "ended: 130" in running.shows(), "ended")
    shown = running.shows()
    assert "● " not in shown
    assert shown.count("plain  stopped") == 1
    assert shown.count("■ stopped") == 4
    running.type("echo typed", "Enter")
    eventually(lambda: "$ echo typed\ntyped" in running.shows(), "keys are shown again")


def test_a_window_of_another_size_has_one_picture(running: Tmux) -> None:
    for width in (50, 110, 64):
        resized_after = max(seconds_shown(running))
        running("resize-window", "-x", str(width))
        eventually(lambda: max(seconds_shown(running)) > resized_after + 1, "painted again")  # noqa: B023
        shown = running("capture-pane", "-p")
        assert shown.count("● sleeps") == 1
        assert shown.count("status") == 1
    running.type("C-c")
    eventually(lambda: "ended: 130" in running.shows(), "ended")


def test_a_lower_window_that_is_made_higher_again_has_one_picture(running: Tmux) -> None:
    for height in (6, 24):
        resized_after = max(seconds_shown(running))
        running("resize-window", "-y", str(height))
        eventually(lambda: max(seconds_shown(running)) > resized_after + 1, "painted again")  # noqa: B023
    shown = running.shows()
    assert shown.count("● sleeps") == 1
    assert "program.py; echo" in shown.partition("● sleeps")[0].replace("\n", "")
    running.type("C-c")
    eventually(lambda: "ended: 130" in running.shows(), "ended")


def test_nothing_is_painted_over_what_others_print_while_it_is_in_the_background(running: Tmux) -> None:
    running.type("C-z")
    eventually(lambda: "Stopped" in running.shows(), "suspended")
    running.type("echo typed", "Enter")
    eventually(lambda: "\ntyped\n" in running.shows(), "keys are shown")
    assert running("display-message", "-p", "#{cursor_flag}").strip() == "1"
    running.type("bg", "Enter")
    time.sleep(1.5)
    for word in ("one", "two", "three"):
        running.type(f"echo {word}", "Enter")
        eventually(lambda: f"$ echo {word}\n{word}\n$" in running.shows(), "the prompt is back")  # noqa: B023
    time.sleep(1)
    shown = running.shows()
    assert "$ echo one\none\n$ echo two\ntwo\n$ echo three\nthree\n" in shown
    assert shown.count("● sleeps") == 1

    running.type("fg", "Enter")
    eventually(lambda: running.shows().count("● sleeps") == 2, "painted below")
    running.type("C-c")
    eventually(lambda: "plain  stopped" in running.shows(), "ended")
    shown = running.shows()
    assert "$ echo three\nthree\n" in shown
    assert shown.count("● sleeps") == 1
    assert shown.count("plain  stopped") == 1


def seconds_shown(tmux: Tmux) -> list[float]:
    """The elapsed time of the run, in every picture that is seen."""
    return [float(found) for found in re.findall(r"([\d.]+) s\s+4 running", tmux("capture-pane", "-p"))] or [0.0]
