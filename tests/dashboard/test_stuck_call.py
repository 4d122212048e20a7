"""A terminal that nobody reads holds up no call of ``run_cluster``, whose dashboard hears on the engine's thread."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from muster.records import lookup

from tests.dashboard.test_stuck import TALKS, in_a_full_terminal
from tests.support import eventually

CALL = """
import os
import sys
import muster
from muster.dashboard import ticker
from muster.strategies import STRATEGIES
STRATEGIES["parameter_server"] = "plain:Plain"
ticker.SECONDS_TO_FINISH = 0.5
try:
    muster.run_cluster(2, worker_script="talks.py", run_timeout=float(sys.argv[1]) if sys.argv[1:] else None)
except BaseException as error:
    with open("beside", "w") as file:
        file.write(type(error).__name__)
    os.rename("beside", "raised")
"""
SHOWN = 100_000  # bytes that a worker has printed: each renderer has had much to show by then
SECONDS = 60.0  # what is stuck is so for good: this is for machines that are busy

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("renderer", ["rich", "plain"])]


@pytest.fixture(autouse=True)
def script(tmp_path: Path) -> Path:
    path = tmp_path / "talks.py"
    path.write_text(TALKS)
    return path


def has_much_to_show() -> bool:
    logs = [log for run in lookup.list_runs() for log in (run.run_dir / "logs").glob("worker-*.log")]
    return any(log.stat().st_size > SHOWN for log in logs)


def raised(folder: Path) -> str:
    """What the call has raised; waits for that."""
    eventually((folder / "raised").exists, "it has returned", SECONDS)
    return (folder / "raised").read_text()


def test_its_time_limit_ends_it(tmp_path: Path, renderer: str) -> None:
    with in_a_full_terminal(tmp_path, CALL, "3", MUSTER_DASHBOARD=renderer):
        assert raised(tmp_path) == "RunTimeout"


def test_an_interrupt_ends_it(tmp_path: Path, renderer: str) -> None:
    with in_a_full_terminal(tmp_path, CALL, MUSTER_DASHBOARD=renderer) as process:
        eventually(has_much_to_show, "its workers print", SECONDS)
        process.send_signal(signal.SIGINT)
        assert raised(tmp_path) == "RunInterrupted"
    assert lookup.list_runs()[0].status == "stopped"


def test_a_failure_ends_it(tmp_path: Path, renderer: str, script: Path) -> None:
    script.write_text(TALKS.replace("while True", "for _ in range(300)") + "raise ValueError('bad luck')\n")
    with in_a_full_terminal(tmp_path, CALL, MUSTER_DASHBOARD=renderer):
        assert raised(tmp_path) == "ScriptFailed"
