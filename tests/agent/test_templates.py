"""The guard's template, where it does not become what it is to be."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from muster.agent import frames, templates
from muster.agent.loop import Loop
from muster.agent.templates import Templates

from tests.support import environment

# Ends as a fork of a template does, with work left: in a thread, an exit function that raises, an object, an open file.
ENDS = """
import atexit, os, sys, threading, time, types
from muster.agent import warm
from muster.runner import hooks

class Last:
    def __del__(self, write=os.write):
        write(1, b"object\\n")

def fail():
    print("exit function")
    raise ValueError("raised by it")

def finish():
    time.sleep(0.1)
    print("thread")

atexit.register(hooks.write_what_is_buffered)
atexit.register(fail)
threading.Thread(target=finish).start()
sys.modules["own"] = types.ModuleType("own")
sys.modules["own"].last = Last()
text = open("text", "w")
text.write("buffered")
text.itself = text
warm._finish(int(sys.argv[1]))
"""

# What a fork of an agent does with a command line (``processes.spawn``).
FORK = """
from muster.agent import warm

def main(path):
    try:
        status = warm._run_as_main(path)
    except BaseException:
        status = 127
    warm._finish(status)
"""


def test_imports_that_do_not_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "IMPORT_SECONDS", 0.05)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    loop = Loop()
    made = Templates(loop)
    made.note({"python": str(python), "env": {}, "imports": ["heavy"]})
    made.prepare()
    pid = made.pid
    assert made.state == "importing"
    loop.call_later(0.1, loop.stop)
    loop.run()
    loop.close()
    assert (made.state, made.pid) == ("unsafe", 0)
    assert "its imports take longer than" in made.why
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    made.prepare()
    assert made.pid == 0  # not again, until a run needs something else


def test_an_interpreter_that_ends_before_it_has_read_what_to_import() -> None:
    loop = Loop()
    made = Templates(loop)
    made.note({"python": "/bin/true", "env": {}, "imports": ["package.module"] * 100_000})
    made.prepare()  # more than fits into the socket
    pid = made.pid
    os.waitpid(pid, 0)
    assert made.ended(pid)
    loop.close()
    assert (made.state, made.pid) == ("unsafe", 0)
    assert "has ended" in made.why


def test_a_template_that_ends_with_its_answer_is_heard() -> None:
    """As one does whose imports have changed, before anything else is done here."""
    ours, theirs = socket.socketpair()

    class Channel(socket.socket):
        def sendmsg(self, *args: Any) -> int:
            sent = super().sendmsg(*args)
            theirs.recv(1 << 16)
            theirs.sendall(frames.encode("checked", changed="/a/package"))
            theirs.close()
            return sent

    loop = Loop()
    made = Templates(loop)
    made._made = {"python": "python3", "imports": ["heavy"]}
    made.state, made._channel = "ready", Channel(fileno=ours.detach())
    assert made.reason_against({"python": "python3", "modules": ["heavy"]}) == "/a/package has changed"
    loop.close()


@pytest.mark.parametrize("status", [0, 3, -signal.SIGINT])
def test_the_end_of_a_fork_is_a_whole_one_whatever_its_status(tmp_path: Path, status: int) -> None:
    command = [sys.executable, "-u", "-c", ENDS, str(int(status))]
    given = environment(PYTHONPATH=os.pathsep.join(sys.path))
    ended = subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (status, "thread\nexit function\nobject\n")
    assert "raised by it" in ended.stderr
    assert (tmp_path / "text").read_text() == "buffered"


@pytest.mark.parametrize(
    ("hook", "status", "told"),
    [
        ("print('hooked', kind.__name__)", 1, "hooked ValueError"),
        ("sys.exit(5)", 5, ""),
        (
            "raise KeyError('of the hook')",
            1,
            "Error in sys.excepthook:|KeyError: 'of the hook'|ValueError: of a script",
        ),
    ],
)
def test_a_fork_has_the_hook_of_its_script_called(tmp_path: Path, hook: str, status: int, told: str) -> None:
    script = tmp_path / "train.py"
    text = f"import sys\ndef hook(kind, error, trace):\n    {hook}\nsys.excepthook = hook\n"
    script.write_text(text + "raise ValueError('of a script')")
    (tmp_path / "fork.py").write_text(FORK)
    command = [sys.executable, "-uc", f"import fork; fork.main({str(script)!r})"]
    given = environment(PYTHONPATH=os.pathsep.join([*sys.path, str(tmp_path)]))
    ended = subprocess.run(command, env=given, capture_output=True, text=True, timeout=30)
    assert ended.returncode == status
    assert all(words in ended.stdout + ended.stderr for words in told.split("|"))
