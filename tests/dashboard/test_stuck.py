"""A terminal that stops reading (Ctrl-S, a hung ssh) holds up nothing: neither the run nor the end of the process."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from muster.dashboard.base import Controls
from muster.dashboard.notebook import NotebookDashboard
from muster.records import lookup
from muster.runtime.background import call_in_background
from muster.runtime.outlet import Outlet

from tests.dashboard.scenes import failing
from tests.support import IMPORT_PATH, TESTS, eventually

TALKS = "import time\nwhile True:\n    print('x' * 200, flush=True)\n    time.sleep(0.001)\n"
MUSTER = """
import sys
from muster.commands import main
from muster.dashboard import ticker
from muster.strategies import STRATEGIES
STRATEGIES["parameter_server"] = "plain:Plain"
ticker.SECONDS_TO_FINISH = main.SECONDS_TO_SAY = 0.5
main.main(["run", "-n", "2", "talks.py", *sys.argv[1:]])
"""


@contextmanager
def in_a_full_terminal(folder: Path, program: str, *args: str, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program whose terminal nobody reads, and takes nothing more."""
    here, there = pty.openpty()
    os.set_blocking(there, False)
    for size in (4096, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(there, b"." * size)
    os.set_blocking(there, True)
    environment = {**os.environ, "TERM": "xterm", **env, "PYTHONPATH": f"{IMPORT_PATH}{os.pathsep}{TESTS}"}
    process = subprocess.Popen(
        [sys.executable, "-c", program, *args], cwd=folder, stdin=there, stdout=there, stderr=there, env=environment
    )
    os.close(there)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        os.close(here)


def status() -> str:
    return lookup.list_runs()[0].status


@pytest.mark.slow
@pytest.mark.parametrize("renderer", ["rich", "plain"])
def test_the_limit_of_a_run_ends_it_and_the_process(tmp_path: Path, renderer: str) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    with in_a_full_terminal(tmp_path, MUSTER, "--run-timeout", "1", MUSTER_DASHBOARD=renderer) as process:
        assert process.wait(30) == 124
    result = lookup.list_runs()[0].result
    assert result is not None
    assert result["error"] == "RunTimeout"


@pytest.mark.slow
@pytest.mark.parametrize("renderer", ["rich", "plain"])
def test_an_interrupt_ends_it(tmp_path: Path, renderer: str) -> None:
    (tmp_path / "talks.py").write_text(TALKS)
    with in_a_full_terminal(tmp_path, MUSTER, MUSTER_DASHBOARD=renderer) as process:
        eventually(lambda: any(list((run.run_dir / "logs").glob("worker*")) for run in lookup.list_runs()), "workers")
        time.sleep(0.5)  # long enough to be stuck
        process.send_signal(signal.SIGINT)
        eventually(lambda: status() == "stopped", "stopped", timeout=10)
        assert process.wait(20) == 130


LOGS = """
import logging
from muster.runtime.background import call_in_background
for number in range(1000):
    call_in_background(lambda: logging.getLogger("muster").warning("x" * 100))
open("logged", "w").close()
"""


def test_what_the_engine_logs_holds_it_up_no_more(tmp_path: Path) -> None:
    with in_a_full_terminal(tmp_path, LOGS) as process:
        assert process.wait(20) == 0
    assert (tmp_path / "logged").exists()


def test_what_the_engine_logs_is_seen(tmp_path: Path) -> None:
    program = LOGS.replace("1000", "3")
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stderr == f"{'x' * 100}\n" * 3


NO_THREAD = """
import threading
start = threading.Thread.start

def start_or_refuse(thread):
    if thread.name == refusing:
        raise RuntimeError("can't start new thread")
    start(thread)

threading.Thread.start = start_or_refuse
"""


@pytest.mark.parametrize("thread", ["muster-log", "muster-outlet"])
def test_what_is_logged_when_no_thread_can_be_started_any_more_is_seen(tmp_path: Path, thread: str) -> None:
    program = f"refusing = {thread!r}\n{NO_THREAD}{LOGS.replace('1000', '1')}"
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, f"{'x' * 100}\n")


class StuckView:
    """A live view whose kernel takes nothing."""

    cover = remedy = ""
    seconds_per_picture = 5.0

    def __init__(self, released: threading.Event) -> None:
        self.released = released

    def tick(self) -> None:
        self.released.wait(30)

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return {"application/vnd.jupyter.widget-view+json": {}}


def seconds_in_the_background(function: Callable[[], object]) -> float:
    began = time.monotonic()
    call_in_background(function)
    return time.monotonic() - began


def test_a_notebook_that_takes_nothing_holds_up_the_engine_for_a_moment_at_most(monkeypatch: Any) -> None:
    handle = SimpleNamespace(update=lambda *args, **options: None)
    monkeypatch.setattr("IPython.display.display", lambda *args, **options: handle)
    released = threading.Event()
    dashboard = NotebookDashboard(lambda *_: StuckView(released), Path, Controls())
    dashboard.show()
    try:

        def events() -> None:
            for event in failing(8):
                dashboard(event)

        assert seconds_in_the_background(events) < 2
    finally:
        released.set()
        dashboard.close()  # or it would go on, and log, in the tests that follow


class StuckStream:
    """Takes nothing until it is released."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.released = threading.Event()
        self.text = ""

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.released.wait(30)

    def write(self, text: str) -> None:
        self.text += text


def test_what_waits_for_a_stuck_stream_is_bounded_and_written_when_it_goes_on() -> None:
    stream: Any = StuckStream()
    outlet = Outlet(stream)
    outlet.put("first\n")
    eventually(lambda: not outlet._texts, "the first is being written")
    for number in range(10_005):
        outlet.put(f"{number}\n")
    began = time.monotonic()
    outlet.close(0.1)
    assert time.monotonic() - began < 2
    stream.released.set()
    outlet.close(5)

    lines = stream.text.splitlines()
    assert lines[:3] == ["first", "[… 5 lines left out: nobody read them]", "5"]
    assert lines[-1] == "10004"
