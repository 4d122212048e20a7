"""What ends a script is reported and printed, whatever state the script has brought itself into."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from muster.failure.failures import Bearing, Failure, FailureKind
from muster.runner import runner


@dataclass
class Ended:
    """An ended script: its exit status, what it printed, and the exceptions, steps and warnings that it reported."""

    status: int
    output: str
    reports: list[dict[str, Any]]
    steps: list[int]
    warnings: list[str]


def run(folder: Path, text: str) -> Ended:
    """Run a script until it has ended."""
    (folder / "train.py").write_text(text)
    (folder / "report").unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(folder / "report"))
        agent.setblocking(False)
        done = subprocess.run(
            [sys.executable, runner.__file__, "program", "train.py"],
            cwd=folder,
            env={**os.environ, "MUSTER_REPORT": str(folder / "report"), "MUSTER_SCRATCH": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        reports = []
        with contextlib.suppress(BlockingIOError):
            while True:
                reports.append(json.loads(agent.recv(1 << 17)))
    exceptions = [report for report in reports if report["kind"] == "exception"]
    steps = [report["step"] for report in reports if report["kind"] == "progress"]
    warnings = [report["text"] for report in reports if report["kind"] == "warning"]
    return Ended(done.returncode, done.stdout, exceptions, steps, warnings)


def test_a_script_that_has_used_up_its_descriptors_can_say_so(tmp_path: Path) -> None:
    ended = run(tmp_path, "files = []\nwhile True:\n    files.append(open('/dev/null'))\n")
    (report,) = ended.reports
    assert (ended.status, report["type"]) == (1, "OSError")
    assert "Too many open files" in report["message"]
    assert str(Path(runner.__file__).parent) not in ended.output


@pytest.mark.parametrize("words", ["raise KeyError('no words')", "return 5"])
def test_an_exception_without_words_is_told_by_its_name(tmp_path: Path, words: str) -> None:
    ended = run(tmp_path, f"class Odd(Exception):\n    def __str__(self):\n        {words}\nraise Odd\n")
    (report,) = ended.reports
    assert (ended.status, report["type"], report["message"]) == (1, "Odd", "<exception str() failed>")
    assert 'train.py", line 4' in ended.output
    assert str(Path(runner.__file__).parent) not in ended.output


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise ValueError('of the child')", "os._exit(3)"])
def test_how_a_fork_of_the_script_ends_is_between_the_two(tmp_path: Path, end: str) -> None:
    text = f"import os, sys\nchild = os.fork()\nif child == 0:\n    {end}\nos.waitpid(child, 0)\n"
    ended = run(tmp_path, text)
    assert (ended.status, ended.reports) == (0, [])
    assert ("of the child" in ended.output) == ("of the child" in end)
    assert [text.partition(": ")[2] for text in ended.warnings] == (
        ["ValueError: of the child"] if "of the child" in end else []
    )
    ended = run(tmp_path, text + "raise KeyError('of the parent')\n")
    assert [report["type"] for report in ended.reports] == ["KeyError"]


def test_the_hook_of_a_script_is_called_with_what_has_ended_it(tmp_path: Path) -> None:
    hook = "import sys\ndef hook(kind, error, trace):\n    print('saved', kind.__name__, trace.tb_lineno)\n"
    ended = run(tmp_path, f"{hook}sys.excepthook = hook\nraise ValueError\n")
    assert (ended.status, ended.output) == (1, "saved ValueError 5\n")
    assert [report["type"] for report in ended.reports] == ["ValueError"]
    ended = run(tmp_path, f"{hook}    print(no_such_name)\nsys.excepthook = hook\nraise ValueError('first')\n")
    assert ended.status == 1
    assert "NameError" in ended.output
    assert "ValueError: first" in ended.output


def test_a_script_starts_again_in_its_own_place(tmp_path: Path) -> None:
    """As one does that has to set a variable before its interpreter starts, or one whose process id was another's."""
    again = "import os, sys\nif not os.environ.get('AGAIN'):\n    os.environ['AGAIN'] = '1'\n"
    ended = run(tmp_path, f"{again}    os.execv(sys.executable, sys.orig_argv)\nprint('started again')\n")
    assert (ended.status, ended.output) == (0, "started again\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older ones have no groups")
def test_a_group_of_exceptions_tells_of_the_first_of_them(tmp_path: Path) -> None:
    """Else a connection that a task loses, as that to a failed peer, would count as the script's own failure."""
    ended = run(
        tmp_path,
        """
import asyncio

async def lose():
    raise ConnectionResetError("Connection reset by peer")

async def main():
    async with asyncio.TaskGroup() as outer:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(lose())

asyncio.run(main())
""",
    )
    (report,) = ended.reports
    assert report["message"].endswith("(1 sub-exception): ConnectionResetError: Connection reset by peer")
    told = Failure(FailureKind.EXCEPTION, 1.0, type=report["type"], message=report["message"], peer_was_gone=False)
    assert told.bearing is Bearing.BROKEN


@pytest.mark.parametrize("status", [0, 3])
def test_a_script_that_ends_itself_has_its_last_progress_told(tmp_path: Path, status: int) -> None:
    text = "import os\nfrom muster.training import report\nfor step in (1, 2, 3):\n    report(step, loss=1.0)\n"
    ended = run(tmp_path, f"{text}os._exit({status})\n")
    assert (ended.status, len(ended.reports), ended.steps) == (status, 1 if status else 0, [1, 3])


def test_a_script_ends_itself_while_one_of_its_threads_is_stuck_in_a_report(tmp_path: Path) -> None:
    """As one is that waits for a value from a GPU which hangs."""
    text = """
import os, threading, time
from muster.training import report

class Stuck:
    def __float__(self):
        print("stuck", flush=True)
        is_stuck.set()
        time.sleep(60)

is_stuck = threading.Event()
threading.Thread(target=report, args=(1,), kwargs={"loss": Stuck()}, daemon=True).start()
is_stuck.wait()
os._exit(3)
"""
    began = time.monotonic()
    ended = run(tmp_path, text)
    assert (ended.status, ended.output, len(ended.reports)) == (3, "stuck\n", 1)
    assert time.monotonic() - began < 20


LOSES_ITS_FOLDER = "os.rename(os.environ['MUSTER_REPORT'], os.environ['MUSTER_REPORT'] + '.gone')"


@pytest.mark.parametrize(
    "before",
    [
        "os.environ.clear()",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        LOSES_ITS_FOLDER,
        "os.closerange(3, 50)",
        "os.closerange(3, 50); files = [open('/dev/null') for _ in range(9)]",
        "os.closerange(3, 50); import socket; others = [socket.socketpair() for _ in range(9)]",
        "sys.stdout = None",
        "sys.stderr = None",
    ],
)
def test_an_exception_is_told_whatever_the_script_has_done_to_its_surroundings(tmp_path: Path, before: str) -> None:
    ended = run(tmp_path, f"import os, sys\n{before}\nraise ValueError('of the script')\n")
    (report,) = ended.reports
    assert (ended.status, report["type"], report["message"]) == (1, "ValueError", "of the script")
    assert 'train.py", line 3' in report["traceback"]
    assert str(Path(runner.__file__).parent) not in ended.output
    assert ("ValueError: of the script" in ended.output) == (before != "sys.stderr = None")


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "class Odd(Exception):\n    exceptions = property(lambda self: 1 / 0)\nraise Odd('of the script')",
            "Odd",
            "of the script",
        ),
        ("class Odd(Exception):\n    __notes__ = property(lambda self: 1 / 0)\nraise Odd('here')", "Odd", "here"),
        ("class Odd(Exception):\n    def __str__(self):\n        raise SystemExit(9)\nraise Odd", "Odd", "<exception"),
        ("raise SyntaxError('of the script', ('train.cfg', 1, 2, 5))", "SyntaxError", "of the script"),
        ("class Odd(KeyboardInterrupt):\n    pass\nraise Odd('of the script')", "Odd", "of the script"),
        ("class Odd:\n    def __bool__(self):\n        raise KeyError\nraise SystemExit(Odd())", "SystemExit", ""),
        ("raise SystemExit('')", "SystemExit", ""),
        ("raise SystemExit(0.0)", "SystemExit", "0.0"),
        (
            "class Odd(SystemExit):\n    code = property(lambda self: 1 / 0)\nraise Odd('of the script')",
            "Odd",
            "of the script",
        ),
        (
            "class Meta(type):\n    __name__ = property(lambda kind: 1 / 0)\n"
            "class Odd(Exception, metaclass=Meta):\n    pass\nraise Odd('of the script')",
            "Odd",
            "of the script",
        ),
        ("raise type(300_000 * 'x', (Exception,), {})('of the script')", 200 * "x", "of the script"),
    ],
)
def test_an_exception_that_is_odd_itself_is_told(tmp_path: Path, text: str, kind: str, message: str) -> None:
    ended = run(tmp_path, f"{text}\n")
    (report,) = ended.reports
    assert (ended.status, report["type"]) == (1, kind)
    assert report["message"].startswith(message)
    assert str(Path(runner.__file__).parent) not in ended.output


@pytest.mark.skipif(sys.version_info < (3, 11), reason="older ones have no groups")
def test_a_group_deep_in_others_is_told(tmp_path: Path) -> None:
    text = "error = ValueError('of the script')\nfor _ in range(3000):\n    error = ExceptionGroup('all', [error])\n"
    ended = run(tmp_path, f"{text}raise error\n")
    (report,) = ended.reports
    assert (ended.status, report["type"]) == (1, "ExceptionGroup")
    assert report["message"].startswith("all (1 sub-exception): ExceptionGroup: all (1 sub-exception)")


def test_a_status_that_no_long_holds_is_a_failure(tmp_path: Path) -> None:
    ended = run(tmp_path, "raise SystemExit(2 ** 64)\n")
    (report,) = ended.reports
    assert (ended.status, report["status"]) == (255, 255)


@pytest.mark.parametrize("text", ["", "raise ValueError('of the script')"])
def test_a_script_may_put_anything_in_place_of_its_output(tmp_path: Path, text: str) -> None:
    odd = "class Odd:\n    def __getattr__(self, name):\n        raise RuntimeError(name)\n"
    ended = run(tmp_path, f"import sys\n{odd}sys.stdout = Odd()\n{text}\n")
    assert [report["type"] for report in ended.reports] == (["ValueError"] if text else [])
    assert str(Path(runner.__file__).parent) not in ended.output


def test_a_script_that_clears_its_environment_is_heard_all_the_same(tmp_path: Path) -> None:
    text = """
import os, threading
from muster.training import report
os.environ.clear()
report(7, loss=0.5)
def lose():
    raise ValueError("of the thread")
thread = threading.Thread(target=lose, name="reader")
thread.start()
thread.join()
"""
    ended = run(tmp_path, text)
    assert ended.steps == [7]
    assert ended.warnings == ["has lost its thread reader: ValueError: of the thread"]


def test_a_status_that_the_kernel_takes_for_success_is_no_failure(tmp_path: Path) -> None:
    ended = run(tmp_path, "raise SystemExit(256)\n")
    assert (ended.status, ended.reports) == (0, [])


def test_a_thread_that_ends_by_an_exception_without_words_is_told(tmp_path: Path) -> None:
    text = "import threading\nclass Odd(Exception):\n    def __str__(self):\n        raise KeyError\n"
    ended = run(tmp_path, f"{text}def lose():\n    raise Odd\nthreading.Thread(target=lose, name='reader').start()\n")
    assert [words.partition("has lost ")[2] for words in ended.warnings] == [
        "its thread reader: Odd: <exception str() failed>"
    ]
    assert "threading.excepthook" not in ended.output
