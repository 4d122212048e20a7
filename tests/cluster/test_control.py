"""Runs that other processes stop and ask, by the control socket of each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from muster.commands.main import main
from muster.dashboard.follow import follow
from muster.errors import RunUnreachable
from muster.events import Event
from muster.events.data import Usage
from muster.records import control, folders, lookup, runs
from muster.records.runs import Run

from tests.plain import Plain
from tests.support import IMPORT_PATH, TESTS, eventually

SESSION = """
import muster
from plain import Plain
muster.run_cluster(2, worker_script="sleeps.py", strategy=Plain(), dashboard=False)
"""
SLEEPS = """
import time
def somewhere_deep():
    print("here we are", flush=True)
    time.sleep(600)
somewhere_deep()
"""


@contextlib.contextmanager
def session(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs a cluster until it is stopped."""
    (folder / "sleeps.py").write_text(SLEEPS)
    environment = {**os.environ, "PYTHONPATH": f"{IMPORT_PATH}{os.pathsep}{TESTS}"}
    process = subprocess.Popen([sys.executable, "-c", SESSION], cwd=folder, env=environment, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Run]:
    """A run of another process whose workers all sleep."""
    with session(tmp_path):
        eventually(lambda: has_begun(), "the run trains")
        yield lookup.open_run()


def has_begun() -> bool:
    found = lookup.list_runs()
    logs = [found[0].run_dir / "logs" / f"worker-{number}.log" for number in range(2)] if found else []
    return bool(logs) and all(log.exists() and "here" in log.read_text() for log in logs)


def command(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


def test_a_run_of_another_process_is_asked_and_stopped(living: Run) -> None:
    told = control.control_file(living.run_dir)
    where = Path(json.loads(told.read_text())["socket"])
    assert [oct(path.stat().st_mode & 0o777) for path in (told, where)] == ["0o600", "0o600"]
    assert len(str(where)) < 100

    state = control.ask(living.run_dir, "state")
    assert state == {"is_up": True, "stop_reason": None, "workers": {"worker-0": "running", "worker-1": "running"}}
    assert control.ask(living.run_dir, "logs", name="worker-1") == {"lines": ["here we are"]}
    assert all("somewhere_deep" in text for text in living.stacks().values())
    code, text = command("stacks")
    assert code == 0
    assert text.count("somewhere_deep") == 2
    assert "worker-1:" in text
    for name in ("worker-1", "1"):
        code, text = command("stacks", "last", name)
        assert (code, text.count("somewhere_deep"), "worker-1:" in text) == (0, 1, True)
    code, text = command("stacks", "last", "2")
    assert (code, text.endswith("Try: its workers: worker-0, worker-1\n")) == (2, True)

    idle = hostile(where, json.loads(told.read_text())["token"])
    assert command("stop", living.run_id) == (0, f"{living.run_id} has ended: stopped.\n")

    for connection in idle:
        connection.close()
    assert living.result is not None
    assert "(by request)" in living.result["reason"]
    assert not told.exists()
    assert not where.exists()
    living.stop()
    assert living.stacks() == {}
    assert command("stop", "last") == (0, f"{living.run_id} has ended already: stopped.\n")


def test_whoever_follows_a_run_of_another_process_sees_what_its_workers_use(
    living: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Event] = []
    threading.Thread(target=follow, args=(living, seen.append), daemon=True).start()

    def used() -> dict[str | None, bool]:
        return {event.worker: (event.data.memory or 0) > 1 << 20 for event in seen if isinstance(event.data, Usage)}

    eventually(lambda: used() == {"worker-0": True, "worker-1": True}, "it is told of the memory of both")
    monkeypatch.setenv("COLUMNS", "120")
    assert "memory" in command("show")[1]
    living.stop()
    assert living.usage() == {}
    assert "memory" not in command("show")[1]


def hostile(where: Path, token: str) -> list[socket.socket]:
    """Try clients without the protocol or the token, which are refused. Returns connections that say nothing."""
    refused = {
        b"\0\xff\n": "not a request",
        b"[1]\n": "not a request",
        b'{"token": 7, "ask": {}}\n': "not the token of this run",
        json.dumps({"token": token, "ask": ["stop"]}).encode() + b"\n": "it can be asked for",
        json.dumps({"token": token, "ask": "logs", "name": "../events"}).encode() + b"\n": "no worker",
        b"[" * 4000 + b"\n": "not a request",
        b"x" * 100_000: "not a request",
        b"": "not a request",
    }
    for request, answer in refused.items():
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(5)
            connection.connect(str(where))
            with contextlib.suppress(OSError):
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
            assert answer in json.loads(connection.makefile().readline())["error"], request
    idle = [socket.socket(socket.AF_UNIX) for _ in range(20)]
    for connection in idle:
        connection.connect(str(where))
    assert idle[0].recv(1) == b"", "the oldest had to go"
    return idle


def test_a_session_that_hangs_or_is_gone_is_a_clear_error(tmp_path: Path, monkeypatch: Any) -> None:
    with session(tmp_path) as process:
        eventually(has_begun, "the run trains")
        run = lookup.open_run()
        process.send_signal(signal.SIGSTOP)
        eventually(lambda: "is suspended" in run.explain(), "it is suspended")
        with monkeypatch.context() as patch:
            patch.setattr(control, "SECONDS_TO_ANSWER", 0.5)
            with pytest.raises(RunUnreachable, match=f"its session, process {process.pid}, is suspended") as raised:
                run.stacks()
            assert f"kill -CONT {process.pid}" in (raised.value.advice or "")
            patch.setattr(runs, "suspended", lambda session: None)
            with pytest.raises(RunUnreachable, match=f"Run {run.run_id} does not answer: its session hangs"):
                run.stacks()
        process.send_signal(signal.SIGCONT)
        eventually(run.stacks, "it answers")
        process.kill()
        process.wait()
        began = time.monotonic()
        run.stop()  # it has ended, if not well
        assert (run.status, run.stacks()) == ("lost", {})
        assert time.monotonic() - began < control.SECONDS_TO_ANSWER


def test_a_run_whose_session_is_suspended_can_be_stopped(tmp_path: Path) -> None:
    with session(tmp_path) as process:
        eventually(has_begun, "the run trains")
        run = lookup.open_run()
        process.send_signal(signal.SIGSTOP)
        run.stop()
        assert run.status == "stopped"


def test_one_that_an_older_muster_started_cannot_be_asked(monkeypatch: Any) -> None:
    monkeypatch.setattr(control, "SECONDS_TO_APPEAR", 0.1)
    run = Run(folders.make_run_folder("old"))
    with pytest.raises(RunUnreachable, match="has no control socket"):
        run.stop()
    code, text = command("stop", run.run_id)
    assert (code, "end its session instead" in text) == (1, True)


def test_a_cell_that_is_run_twice_leaves_a_way_to_stop_the_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sleeps.py").write_text(SLEEPS)

    def cell() -> muster.Cluster:
        return muster.run_cluster(1, worker_script="sleeps.py", strategy=Plain(), wait=False, dashboard=False).cluster

    first, second = cell().run_id, cell()
    try:
        assert f"muster.open_run({first!r}).stop() ends it" in capsys.readouterr().err
        muster.open_run(first).stop()
        assert [run.status for run in lookup.list_runs()] == ["running", "stopped"]
    finally:
        second.stop()


def test_a_living_run_is_shown_with_the_step_that_it_has_come_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reports.py").write_text(
        "import time, muster.training as training\n"
        "for step in range(1, 61):\n"
        "    training.report(step=step, steps=60)\n"
        "time.sleep(600)\n"
    )

    def steps() -> list[int]:
        return [worker["step"] for worker in json.loads(command("show", "last", "--json")[1])["workers"]]

    asked = muster.run_cluster(2, worker_script="reports.py", strategy="processes", wait=False, dashboard=False)
    try:
        eventually(lambda: steps() == [60, 60], "both are shown at their last step")
    finally:
        asked.cluster.stop()


def test_a_command_in_a_rank_has_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(60)\n")
    running = muster.run_cluster(
        2, worker_script="sleeps.py", strategy="processes", slots=2, wait=False, dashboard=False
    ).cluster
    try:
        question = [sys.executable, "-m", "muster", "exec", running.run_id]
        for place, rank in (("rank-3", "3 4"), ("worker-1", "")):
            command = [*question, place, "--", "sh", "-c", "echo $RANK $WORLD_SIZE"]
            assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip() == rank
    finally:
        running.stop()
