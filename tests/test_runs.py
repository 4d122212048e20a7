"""Recorded runs. Those with something in them were really run; the others are folders of known content."""

from __future__ import annotations

import asyncio
import io
import json
import math
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from IPython.lib.pretty import pretty
from muster.commands.main import main
from muster.dashboard import follow as follow_module
from muster.dashboard.repeat import repeat_command
from muster.errors import JobError, MusterError, RunLost, RunNotFound, RunUnreachable, ScriptFailed, StillRunning
from muster.events import Event
from muster.job import Status
from muster.records import folders, lookup, runs, sessions
from muster.records import record as record_module
from muster.text import reading

from tests.dashboard.recording import record


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def succeeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[runs.Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_HOME", str(tmp_path_factory.mktemp("home")))
        yield record(tmp_path_factory.mktemp("scripts"))


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[runs.Run]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_HOME", str(tmp_path_factory.mktemp("home")))
        yield record(tmp_path_factory.mktemp("scripts"), "--fail", n_workers=1)


def test_nobody_else_may_put_a_run_in_the_place_of_another(home: Path) -> None:
    before = os.umask(0)
    try:
        path = folders.make_run_folder("x")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path, path.parent, home)] == [0o700, 0o755, 0o755]


def make(
    name: str, *, result: dict[str, Any] | None = None, session: dict[str, Any] | None = None, days_ago: float = 0,
    detached: bool = False, platform: str | None = None,
) -> runs.Run:  # fmt: skip
    """A run's folder as a cluster would leave it."""
    path = folders.make_run_folder(name)
    when = time.time() - days_ago * 86400
    asked: dict[str, Any] = {
        "job": {"name": name, "cwd": "/somewhere"}, "session": session or {}, "platform": platform
    }  # fmt: skip
    if detached:
        asked["detached_until"] = when + 3600
    request = Event("run_requested", data=asked, time=when)
    (path / "events.jsonl").write_text(request.to_json() + "\n")
    os.utime(path / "events.jsonl", (when, when))
    if result is not None:
        folders.write_json(path / "result.json", result)
    return runs.Run(path)


def a_process_that_is_gone() -> dict[str, Any]:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return {**sessions.this_session(), "pid": ended.pid}


SUCCEEDED = {"status": "succeeded", "seconds": 3.5}


class TestCreate:
    def test_is_private_and_has_its_folders(self, home: Path) -> None:
        path = folders.make_run_folder("My model: MNIST!")

        assert path.parent == home / "runs"
        assert path.name[16:-5] == "my-model-mnist"
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert sorted(entry.name for entry in path.iterdir()) == ["logs", "results"]

    @pytest.mark.parametrize(("name", "slug"), [("Übung_ÄÖ", "ubung-ao"), ("café", "cafe"), ("обучение-2", "2")])
    def test_accents_are_dropped(self, name: str, slug: str) -> None:
        assert folders.make_run_folder(name).name[16:-5] == slug

    @pytest.mark.parametrize("name", ["", "***", "обучение"])
    def test_gives_a_name_to_what_has_none(self, name: str) -> None:
        assert folders.make_run_folder(name).name[16:-5] == "run"

    def test_two_in_the_same_instant_differ(self, monkeypatch: pytest.MonkeyPatch) -> None:
        digits = iter(["aaaa", "aaaa", "bbbb"])
        monkeypatch.setattr(secrets, "token_hex", lambda n: next(digits))
        monkeypatch.setattr(time, "strftime", lambda pattern: "20300101-000000")

        assert [folders.make_run_folder("x").name[-4:], folders.make_run_folder("x").name[-4:]] == ["aaaa", "bbbb"]

    def test_home_is_in_the_users_folder_by_default(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("MUSTER_HOME")
        monkeypatch.setenv("HOME", str(tmp_path))

        assert folders.muster_home() == tmp_path / ".muster"


class TestWriteJson:
    def test_replaces_the_file_and_leaves_nothing_beside_it(self, tmp_path: Path) -> None:
        folders.write_json(tmp_path / "a.json", {"a": 1})
        folders.write_json(tmp_path / "a.json", {"a": Path("b")})

        assert json.loads((tmp_path / "a.json").read_text()) == {"a": "b"}
        assert [path.name for path in tmp_path.iterdir()] == ["a.json"]

    def test_keeps_the_old_file_where_the_data_cannot_be_written(self, tmp_path: Path) -> None:
        folders.write_json(tmp_path / "a.json", 1)
        loop: list[Any] = []
        loop.append(loop)

        with pytest.raises(ValueError):
            folders.write_json(tmp_path / "a.json", loop)
        assert (tmp_path / "a.json").read_text() == "1\n"


class TestStatus:
    def test_a_run_whose_session_lives_is_running(self) -> None:
        run = make("x", session=sessions.this_session())

        assert run.status == "running"
        assert 0 <= run.seconds < 60

    def test_a_run_whose_session_is_gone_is_lost(self) -> None:
        assert make("x", session=a_process_that_is_gone()).status == "lost"

    def test_a_lost_run_lasted_until_its_workers_noticed(self) -> None:
        run = make("x", session=a_process_that_is_gone(), days_ago=1)
        log = run.run_dir / "logs" / "worker-0.log"
        log.write_text("the connection to the session is gone\n")
        os.utime(log, (run.started_at + 60, run.started_at + 60))

        assert run.seconds == pytest.approx(60)

    def test_another_process_of_the_same_pid_is_not_the_session(self) -> None:
        assert make("x", session={**sessions.this_session(), "started": 1}).status == "lost"

    def test_a_process_from_before_the_last_boot_is_not_the_session(self) -> None:
        assert make("x", session={**sessions.this_session(), "boot": "another"}).status == "lost"

    def test_a_run_of_another_machine_runs_as_long_as_it_gives_signs_of_life(self) -> None:
        elsewhere = {**sessions.this_session(), "boot": "another", "host": "login1"}
        run = make("x", session=elsewhere)
        assert run.status == "running"
        with pytest.raises(RunUnreachable, match="its session is on login1") as caught:
            run.stop()
        assert "ask it there" in str(caught.value)
        silent_since = time.time() - 600
        os.utime(run.run_dir / "events.jsonl", (silent_since, silent_since))
        assert run.status == "lost"

    def test_a_run_in_a_container_runs_though_its_process_is_not_seen(self) -> None:
        assert make("x", session={**sessions.this_session(), "pids": 1, "pid": 2**22}).status == "running"

    def test_a_zombie_is_not_the_session(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            session = {**sessions.this_session(), "pid": process.pid, "started": sessions.start_time(process.pid)}
            run = make("x", session=session)
            assert run.status == "running"
            assert process.stdin is not None
            process.stdin.close()
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has collected it
            assert run.status == "lost"

    def test_the_result_decides_where_there_is_one(self) -> None:
        assert (
            make("x", session=sessions.this_session(), result={"status": "stopped", "seconds": 1}).status == "stopped"
        )

    def test_a_run_that_has_only_just_been_made_is_running(self) -> None:
        run = runs.Run(folders.make_run_folder("x"))

        assert (run.status, run.name) == ("running", "x")

    def test_a_run_made_long_ago_without_any_event_is_lost(self, home: Path) -> None:
        path = home / "runs" / "20200101-000000-old-abcd"
        path.mkdir(parents=True)

        assert runs.Run(path).status == "lost"


class TestRun:
    def test_says_what_was_run(self, succeeded: runs.Run) -> None:
        assert (succeeded.name, succeeded.status, succeeded.strategy) == ("train", "succeeded", "plain")
        assert succeeded.worker_names == ["worker-0", "worker-1"]
        assert [(worker.name, worker.status) for worker in succeeded.workers] == [
            ("worker-0", Status.SUCCEEDED), ("worker-1", Status.SUCCEEDED)
        ]  # fmt: skip
        assert succeeded.result is not None
        assert succeeded.result["metrics"]["test_accuracy"] == 0.97
        assert succeeded.plan is not None
        assert set(succeeded.plan["processes"]) == {"worker-0", "worker-1"}
        assert 0 < succeeded.seconds < 60
        assert abs(succeeded.started_at - time.time()) < 300

    def test_has_its_events_in_order(self, succeeded: runs.Run) -> None:
        kinds = [event.kind for event in succeeded.events()]

        assert kinds[0] == "run_requested"
        assert kinds[-1] == "run_ended"
        assert {"worker_ready", "process_started", "progress", "process_exited"} <= set(kinds)

    def test_passes_over_torn_lines(self) -> None:
        run = make("x")
        with (run.run_dir / "events.jsonl").open("ab") as file:
            file.write(b'[1]\n\xff\n{"kind": "note", "time": 2.0, "text": "a"}\n{"kind": "no')

        assert [event.kind for event in run.events()] == ["run_requested", "note"]

    def test_reads_nothing_of_what_is_larger_than_any_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reading, "LARGEST_JSON", 1000)
        monkeypatch.setattr(record_module, "LONGEST_LINE", 1000)
        monkeypatch.setattr(follow_module, "LONGEST_LINE", 1000)
        run, seen = make("x", result={"status": "stopped", "reason": "x" * 2000}), list[Event]()
        with (run.run_dir / "events.jsonl").open("ab") as file:
            file.write(b"x" * 5000 + b'\n{"kind": "note", "time": 2.0, "text": "a"}\n')

        assert run.result is None
        assert [event.kind for event in run.events()] == ["run_requested"]
        follow_module.follow(run, seen.append)
        assert [event.kind for event in seen] == ["run_requested", "run_ended"]

    def test_without_a_journal_has_no_events(self) -> None:
        assert list(runs.Run(folders.make_run_folder("x")).events()) == []

    def test_log_takes_any_bytes(self, failed: runs.Run) -> None:
        assert "epoch 3 is done\nnot UTF-8: \ufffd\n" in failed.logs("worker-0")
        assert failed.logs("launcher") == ""
        assert failed.logs().startswith("--- worker-0\n")
        assert failed.logs("0") == failed.logs("worker-0")
        with pytest.raises(RunNotFound, match="worker-0"):
            failed.logs("7")

    def test_log_begins_with_the_older_part(self) -> None:
        run = make("x")
        (run.run_dir / "logs" / "worker-0.log.1").write_bytes(b"old\n\xe2\x82")
        (run.run_dir / "logs" / "worker-0.log").write_bytes(b"\xac new\n")

        assert run.logs("worker-0") == "old\n€ new\n"

    def test_of_logs_that_are_too_large_only_the_ends_are_returned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = make("verbose")
        logs = run.run_dir / "logs"
        (logs / "worker-0.log.1").write_text("older\n" * 1000)
        (logs / "worker-0.log").write_text("newer\n" * 10)
        (logs / "worker-1.log").write_text("short\n")
        monkeypatch.setattr(record_module, "LOGS_BYTES", 120)

        said = f"[muster] {{}} bytes before this are left out: {logs / 'worker-0.log.1'}\n"
        assert run.logs("worker-0") == said.format(5940) + "older\n" * 10 + "newer\n" * 10
        assert run.logs() == "--- worker-0\n" + said.format(6000) + "newer\n" * 10 + "--- worker-1\nshort\n"

    def test_has_its_workers_as_they_were_in_the_last_attempt(self) -> None:
        run = make("again", result={"status": "failed"})
        states: list[tuple[str, dict[str, Any]]] = [
            ("worker-0", {"status": "scheduling", "reason": "the queue is long"}),
            ("worker-1", {"status": "scheduling"}),
            ("../worker", {"status": "running"}),
            ("worker-0", {"status": "running", "address": "10.0.0.1"}),
            ("worker-1", {"status": "failed", "exit_code": 3}),
            ("worker-1", {"status": "scheduling"}),
            ("worker-1", {"status": "running", "address": "10.0.0.2"}),
            ("worker-1", {"status": "on the moon"}),
            ("worker-0", {"status": "failed", "signal": 9, "reason": "it was lost"}),
        ]
        with (run.run_dir / "events.jsonl").open("a") as file:
            for worker, state in states:
                file.write(Event("worker_state", worker, state, 7.0).to_json() + "\n")

        assert repr(run.workers).splitlines() == [
            "worker    status   address",
            "worker-0  failed   10.0.0.1  it was lost",
            "worker-1  stopped  10.0.0.2",
        ]
        (run.run_dir / "result.json").unlink()
        assert [worker.status for worker in run.workers] == [Status.FAILED, Status.FAILED], "its session is gone"

    @pytest.mark.parametrize("name", ["worker-7", "../events", ""])
    def test_log_of_no_worker(self, name: str, succeeded: runs.Run) -> None:
        with pytest.raises(RunNotFound, match="worker-0, worker-1"):
            succeeded.logs(name)

    def test_log_of_a_run_none_of_whose_workers_had_begun(self) -> None:
        run = make("x")
        with pytest.raises(RunNotFound) as caught:
            run.logs("worker-1")
        assert caught.value.advice == f"muster explain {run.run_id}: none of its workers had begun"

    def test_log_end_is_the_last_lines(self) -> None:
        run = make("x")
        (run.run_dir / "logs" / "worker-0.log").write_text("".join(f"{number}\n" for number in range(100_000)))

        assert run.log_end("worker-0", 2) == ["99998", "99999"]

    def test_the_first_of_the_last_lines_is_whole(self) -> None:
        run = make("x")
        log = run.run_dir / "logs" / "worker-0.log"
        log.write_text("".join(f"line {number}\n" for number in range(100_000)))
        assert run.log_end("worker-0", 100_000)[0].startswith("line ")
        log.write_text("x" * 100_000)
        assert set(run.log_end("worker-0")[0]) == {"x"}, "unless it is all there is"

    def test_a_progress_bar_is_one_line_at_the_end_of_a_log(self) -> None:
        run = make("a")
        bar = "".join(f"\r{part}/40" for part in range(41))
        (run.run_dir / "logs" / "worker-0.log").write_bytes(f"begin\n{bar}\nend\r\n".encode())
        assert run.log_end("worker-0") == ["begin", "40/40", "end"]

    def test_repr_is_one_line(self, failed: runs.Run) -> None:
        assert repr(failed) == f"<Run {failed.run_id} failed {failed.seconds:.1f} s>"

    def test_the_time_of_a_long_run_is_told_as_muster_runs_tells_it(self) -> None:
        run = make("long", result={"status": "succeeded", "seconds": 7265.4})
        assert repr(run) == f"<Run {run.run_id} succeeded 2:01:05>"
        assert run.explain().startswith(f"long ({run.run_id}) succeeded in 2:01:05.")
        assert repr(lookup.list_runs()).splitlines()[1].split()[:2] == ["succeeded", "2:01:05"]


class TestExplain:
    def test_a_run_that_succeeded(self, succeeded: runs.Run) -> None:
        text = succeeded.explain()

        assert text.startswith(f"train ({succeeded.run_id}) succeeded in ")
        assert "  test_accuracy: 0.97\n" in text

    def test_a_run_that_failed(self, failed: runs.Run) -> None:
        text = failed.explain()

        assert text.startswith(f"train ({failed.run_id}) failed after ")
        assert "ValueError: the shard is empty" in text
        assert 'raise ValueError("the shard is empty")' in text
        assert text.endswith(f"Log: {failed.run_dir / 'logs' / 'worker-0.log'}")

    def test_shows_the_end_of_the_log_where_there_is_no_traceback(self) -> None:
        result = {"status": "failed", "seconds": 1, "reason": "it broke", "worker": "worker-0", "advice": "fix it"}
        run = make("x", result=result)
        log = run.run_dir / "logs" / "worker-0.log"
        log.write_text("first\nlast\n")

        assert run.explain().splitlines()[1:] == [
            "Cause: it broke", "", "The end of worker-0.log:", "  first", "  last", "", "Try: fix it", f"Log: {log}",
        ]  # fmt: skip

    def test_shows_no_traceback_of_an_earlier_attempt(self) -> None:
        run = make("later", result={"status": "failed", "worker": "worker-0", "reason": "worker-0 was lost"})
        raised = {"type": "ValueError", "message": "bad data", "traceback": "Traceback: ValueError: bad data"}
        with (run.run_dir / "events.jsonl").open("a") as journal:
            for event in (Event("exception", "worker-0", raised), Event("run_attempt", data={"attempt": 2})):
                journal.write(event.to_json() + "\n")
        assert "worker-0 was lost" in run.explain()
        assert "bad data" not in run.explain()

    def test_a_lost_run(self) -> None:
        run = make("x", session=a_process_that_is_gone())
        failure = {"type": "ValueError", "message": "no data", "traceback": "Traceback ...\nValueError: no data"}
        with (run.run_dir / "events.jsonl").open("a") as file:
            file.write(Event("exception", "worker-0", failure).to_json() + "\n")

        text = run.explain()

        assert "was lost: its session is gone and left no result" in text
        assert "Cause: ValueError: no data" in text

    def test_a_run_that_is_running(self) -> None:
        run = make("x", session=sessions.this_session())
        told = [
            ("run_phase", None, {"phase": "connecting"}, 100),
            ("worker_state", "worker-0", {"status": "running"}, 100),
            ("worker_state", "worker-1", {"status": "scheduling", "reason": "Priority"}, 100),
        ]
        self.tell(run, told)
        text = run.explain()
        assert " has been running for " in text
        assert re.search(r"^Phase: connecting, for 1:4\d\.$", text, re.MULTILINE)
        assert "Waiting for worker-1 (Priority)." in text
        assert "To see where it is: run.stacks()\nTo end it: run.stop()" in text
        self.tell(run, [("run_phase", None, {"phase": "starting", "launcher": "mpiexec"}, 50)])
        assert "Phase: starting (mpiexec starts the ranks), for 5" in run.explain()
        typed = CliRunner().invoke(main, ["explain", run.run_id]).output
        assert f"To see where it is: muster stacks {run.run_id}\nTo end it: muster stop {run.run_id}" in typed
        assert "run.stacks" not in typed
        printed = json.loads(CliRunner().invoke(main, ["explain", run.run_id, "--json"]).output)
        assert f"muster stop {run.run_id}" in printed["explanation"]

    def test_a_run_that_trains_tells_who_is_behind_and_of_whom_nothing_comes(self) -> None:
        run = make("x", session=sessions.this_session())
        told: list[tuple[str, str | None, dict[str, Any], float]] = [("run_phase", None, {"phase": "training"}, 90)]
        told += [("process_started", f"worker-{rank}", {"pid": 7, "rank": rank}, 89) for rank in range(3)]
        told.append(("stage", "worker-2", {"rank": 2, "stage": "importing tensorflow"}, 5))
        told += [("progress", "worker-0", {"rank": 0, "step": step, "steps": 50}, 6) for step in (1, 12)]
        told.append(("progress", "worker-1", {"rank": 1, "step": 9, "steps": 50}, 70))
        self.tell(run, told)
        text = run.explain()
        assert "Step 12 of 50; rank 1 (worker-1) is at 9." in text
        assert "No step yet of rank 2 (worker-2): importing tensorflow." in text
        assert re.search(r"Nothing has come for up to 7\d s from rank 1 \(worker-1\)\.", text)
        (run.run_dir / "logs" / "worker-1.log").write_text("it prints, and reports nothing")
        assert "Nothing has come" not in run.explain()
        self.tell(run, [("process_started", "ps-0", {"pid": 8}, 89)])
        assert "ps-0" not in run.explain(), "they never say anything"
        self.tell(run, [("process_exited", "worker-1", {"rank": 1, "exit_code": 0}, 0)])
        assert "worker-1" not in run.explain()
        self.tell(run, [("run_attempt", None, {"attempt": 2, "reason": "killed"}, 0)])
        assert "Step 12" not in run.explain()

    def test_servers_without_a_script_serve_and_never_step(self) -> None:
        run = make("x", session=sessions.this_session())
        told: list[tuple[str, str | None, dict[str, Any], float]] = [
            ("run_requested", None, {"job": {"script": None}}, 100),
            ("run_phase", None, {"phase": "starting"}, 100),
            *[("process_started", name, {"pid": 7}, 100) for name in ("ps-0", "worker-0")],
            ("stage", "worker-0", {"stage": "importing tensorflow"}, 99),
        ]
        self.tell(run, told)
        assert "Phase: starting" in run.explain()
        assert "No step yet of worker-0: importing tensorflow." in run.explain()
        self.tell(run, [("listening", "worker-0", {"port": 1}, 50), ("run_phase", None, {"phase": "training"}, 50)])
        text = run.explain()
        assert re.search(r"^Phase: serving, for 5\d\.\d s\.$", text, re.MULTILINE)
        assert "step" not in text
        assert "Nothing has come" not in text

    def test_a_long_journal_is_never_in_memory_as_a_whole(self) -> None:
        run = make("x", session=sessions.this_session())
        told: list[tuple[str, str | None, dict[str, Any], float]] = [
            ("run_phase", None, {"phase": "training"}, 9),
            ("process_started", "worker-0", {"rank": 0, "pid": 7}, 9),
            *[("progress", "worker-0", {"rank": 0, "step": step}, 8) for step in range(3000)],
        ]
        self.tell(run, told)
        run.explain()  # all modules are imported
        tracemalloc.start()
        try:
            text = run.explain()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert "Step 2999." in text
        assert peak < (run.run_dir / "events.jsonl").stat().st_size

    @staticmethod
    def tell(run: runs.Run, told: Sequence[tuple[str, str | None, dict[str, Any], float]]) -> None:
        """Write events of so many seconds ago."""
        with (run.run_dir / "events.jsonl").open("a") as file:
            for kind, worker, data, ago in told:
                file.write(Event(kind, worker, data, time=time.time() - ago).to_json() + "\n")


class TestOutcome:
    """What a run has once it has ended, be it opened, listed or detached: the same as one of the session."""

    def test_of_one_that_succeeded(self) -> None:
        run = make("x", result={**SUCCEEDED, "metrics": {"loss": 0.5}})
        for rank, value in enumerate([4, None]):
            (run.run_dir / "results" / f"rank-{rank}.json").write_text(json.dumps(value))

        assert (run.values, run.value, run.metrics) == ([4, None], 4, {"loss": 0.5})
        assert run.result is not None
        assert run.result["status"] == "succeeded"

    def test_of_one_under_way(self) -> None:
        run = make("x", session=sessions.this_session())
        for ask in (lambda: run.values, lambda: run.value, lambda: run.metrics):
            with pytest.raises(JobError, match="has not ended") as caught:
                ask()
            assert "wait() for it first" in str(caught.value)

    def test_of_one_that_failed_or_was_lost(self) -> None:
        failure = {"status": "failed", "seconds": 1, "error": "ScriptFailed", "reason": "no data"}
        with pytest.raises(ScriptFailed, match="no data"):
            _ = make("x", result=failure).values
        with pytest.raises(RunLost, match="was lost"):
            _ = make("x", session=a_process_that_is_gone()).metrics

    def test_a_wait_that_is_over_too_soon_is_one_clean_error(self) -> None:
        run = make("x", session=sessions.this_session())
        with pytest.raises(StillRunning, match=f"Run {run.run_id} has not ended after 0.01 s, and goes on") as caught:
            run.wait(0.01)
        assert isinstance(caught.value, TimeoutError)
        ours = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if "/sdk/" in frame.filename]
        assert len(ours) == 1, "the one that strips the others"


class TestFind:
    def test_newest_first(self) -> None:
        ids = [make("x", days_ago=days).run_id for days in (2, 3, 1)]

        assert [run.run_id for run in lookup.list_runs()] == [ids[2], ids[0], ids[1]]

    def test_some_of_them(self) -> None:
        make("old", result={"status": "failed", "seconds": 1}, days_ago=3)
        make("mnist-2", result=SUCCEEDED, days_ago=2)
        make("mnist", result={"status": "failed", "seconds": 1}, days_ago=1)

        assert [run.name for run in lookup.list_runs(2)] == ["mnist", "mnist-2"]
        assert [run.name for run in lookup.list_runs(status="failed")] == ["mnist", "old"]
        assert [run.name for run in lookup.list_runs(1, status=["failed", "lost"])] == ["mnist"]
        assert [run.name for run in lookup.list_runs(name="mnist*", status="succeeded")] == ["mnist-2"]
        with pytest.raises(JobError, match="no status 'broken'"):
            lookup.list_runs(status="broken")
        with pytest.raises(JobError, match="limit is 'mnist'"):
            lookup.list_runs("mnist")  # type: ignore[arg-type]

    def test_of_many_runs_that_are_meant_the_newest_are_named_and_the_others_counted(self) -> None:
        ids = [make("mnist", days_ago=days).run_id for days in range(8)]
        with pytest.raises(RunNotFound, match="8 runs are called 'mnist'") as caught:
            lookup.open_run("mnist")
        assert caught.value.advice == f"{', '.join(ids[:5])} or one of 3 more"

    def test_none_yet(self, home: Path) -> None:
        assert lookup.list_runs() == []
        assert not home.exists()
        with pytest.raises(RunNotFound, match="No run"):
            lookup.open_run("last")

    def test_other_folders_are_no_runs(self, home: Path) -> None:
        run = make("x")
        (home / "runs" / "notes").mkdir()

        assert [each.run_id for each in lookup.list_runs()] == [run.run_id]

    def test_by_id_by_prefix_and_the_last(self) -> None:
        older, newer = make("a", days_ago=1), make("b")
        assert lookup.open_run().run_id == newer.run_id
        assert lookup.open_run(older.run_id).run_id == older.run_id
        assert lookup.open_run(older.run_id[:-2]).run_id == older.run_id

    def test_the_last_one_is_of_this_session_where_it_has_begun_any(self) -> None:
        own, foreign = make("own", days_ago=1), make("foreign", session=sessions.this_session())
        assert lookup.open_run().run_id == foreign.run_id
        sessions.note_begun(own.run_id)
        assert lookup.open_run().run_id == lookup.open_run("last").run_id == own.run_id

    def test_whoever_attaches_gets_a_detached_run_that_lives(self, capsys: pytest.CaptureFixture[str]) -> None:
        alive = sessions.this_session()
        detached = make("detached", days_ago=3, session=alive, detached=True)
        make("ended", days_ago=2, result=SUCCEEDED, detached=True)
        own = make("own", days_ago=1, result=SUCCEEDED)
        newest = make("foreign", session=alive)
        sessions.note_begun(own.run_id)
        assert muster.attach(dashboard=False).run_id == detached.run_id
        line = capsys.readouterr().err
        assert line.startswith(f"Attached to run {detached.run_id}: started ")
        assert line.endswith(" in /somewhere, detached; running.\n")
        assert muster.attach(newest.run_id, dashboard=False).run_id == newest.run_id
        assert not capsys.readouterr().err, "it was named"
        folders.write_json(detached.run_dir / "result.json", SUCCEEDED)
        assert muster.attach(dashboard=False).run_id == own.run_id
        assert "by this session; succeeded." in capsys.readouterr().err

    def test_after_a_restart_nobody_is_attached_to_a_run_of_another_session(self) -> None:
        detached = make("detached", days_ago=2, result=SUCCEEDED, detached=True)
        make("foreign", days_ago=1)
        assert muster.attach(dashboard=False).run_id == detached.run_id
        shutil.rmtree(detached.run_dir)
        assert muster.attach(dashboard=False).name == "foreign", "where there is no other"

    def test_the_command_attaches_to_a_detached_run_that_lives_and_else_to_the_last(self) -> None:
        make("detached", days_ago=2, result=SUCCEEDED, detached=True)
        last = make("last", days_ago=1, result=SUCCEEDED)
        attached = CliRunner().invoke(main, ["attach"])
        assert f"Attached to run {last.run_id}: started " in attached.output
        assert "/somewhere, by another session; succeeded." in attached.output

    def test_an_ambiguous_prefix(self) -> None:
        ids = {make("a").run_id, make("b").run_id}
        with pytest.raises(RunNotFound, match="2 runs begin with '2'") as caught:
            lookup.open_run("2")
        assert set((caught.value.advice or "").split(", ")) == ids

    def test_names_what_is_near(self) -> None:
        run = make("mnist")
        with pytest.raises(RunNotFound) as caught:
            lookup.open_run("nist")
        assert caught.value.advice == run.run_id

    def test_who_is_near_nothing_is_told_what_lists_them_where_he_is(self) -> None:
        with pytest.raises(RunNotFound) as caught:
            lookup.open_run("nope")
        assert caught.value.advice == "muster.list_runs() lists them"
        assert "Try: `muster runs` lists them" in CliRunner().invoke(main, ["show", "nope"]).output

    @pytest.mark.parametrize("name", ["", "..", "../runs"])
    def test_a_path_is_no_name(self, name: str) -> None:
        make("x")
        with pytest.raises(RunNotFound):
            lookup.open_run(name)

    def test_hundreds_are_listed_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of each the first event and the result are read, once, however much there is in its journal."""
        for _ in range(5):
            path = make("x", result=SUCCEEDED).run_dir / "events.jsonl"
            path.write_bytes(path.read_bytes() + b"x" * (1 << 20))
        read: list[int] = []  # bytes, by file

        class Counted(io.FileIO):
            def readinto(self, buffer: Any) -> int | None:
                count = super().readinto(buffer)
                read[-1] += count or 0
                return count

            def readall(self) -> bytes:
                data = super().readall()
                read[-1] += len(data)
                return data

        def open_counted(descriptor: int, mode: str) -> io.BufferedReader:
            read.append(0)
            return io.BufferedReader(Counted(descriptor, mode))

        monkeypatch.setattr(reading, "open", open_counted, raising=False)
        listed = lookup.list_runs()
        assert {run.status for run in listed} == {"succeeded"}
        assert len(read) == 2 * len(listed) == 10
        assert 0 < sum(read) < 10 * (1 << 16)


class TestPrune:
    def test_keeps_the_newest(self) -> None:
        made = [make("x", result=SUCCEEDED, days_ago=days) for days in range(4)]

        assert lookup.prune(keep=2) == [made[2].run_id, made[3].run_id]
        assert [run.run_id for run in lookup.list_runs()] == [made[0].run_id, made[1].run_id]

    def test_keeps_those_that_are_not_old(self) -> None:
        made = [make("x", result=SUCCEEDED, days_ago=days) for days in range(4)]

        assert lookup.prune(keep=0, older_than_days=1.5) == [made[2].run_id, made[3].run_id]

    def test_never_deletes_one_that_is_running(self) -> None:
        make("x", session=sessions.this_session(), days_ago=9)
        folders.make_run_folder("y")

        assert lookup.prune(keep=0) == []

    def test_deletes_a_lost_one_only_after_a_day(self) -> None:
        gone = a_process_that_is_gone()
        make("x", session=gone)
        old = make("x", session=gone, days_ago=2)

        assert lookup.prune(keep=0) == [old.run_id]

    def test_what_vanishes_meanwhile_is_no_sign_of_life(self, monkeypatch: pytest.MonkeyPatch) -> None:
        old = make("x", session=a_process_that_is_gone(), days_ago=2)
        (old.run_dir / "logs" / "ranks").mkdir()
        vanishing = [old.run_dir / "logs" / "worker-0.log", old.run_dir / "logs" / "ranks" / "rank-0.log"]
        for path in vanishing:
            path.write_text("")
            os.utime(path, (old.started_at, old.started_at))
        ask = os.stat

        def vanish(path: Any, **options: Any) -> os.stat_result:
            """Answer, and let another process's removal come right then."""
            found = ask(path, **options)
            if isinstance(path, (str, Path)) and Path(path) in vanishing:
                os.unlink(path)
            return found

        monkeypatch.setattr(os, "stat", vanish)
        assert lookup.prune(keep=0) == [old.run_id]


def test_a_crafted_record_leads_to_no_file_outside_the_run_and_to_no_terminal(tmp_path: Path) -> None:
    run = make("crafted", result={"status": "failed", "reason": "it \x1b[2Jfailed", "worker": "../../secret"})
    (run.run_dir.parent.parent / "secret.log").write_text("secret")
    folders.write_json(
        run.run_dir / "plan.json",
        {"processes": {"../../secret": {}, "worker-0": {}}, "ranks": {"0": "../../secret", "1": 7}},
    )
    (run.run_dir / "logs" / "worker-0.log").write_text("said \x1b]0;title\x07this\n")

    assert run.worker_names == ["worker-0"]
    for name in ("../../secret", "rank-0", "rank-1"):
        with pytest.raises(RunNotFound):
            run.logs(name)
    assert "Cause: it failed" in run.explain()
    assert "secret" not in run.explain()
    assert "\x1b" not in run.explain()
    for broken in ({"processes": 7, "ranks": []}, {"processes": ["../x"]}):
        folders.write_json(run.run_dir / "plan.json", broken)
        assert run.worker_names == ["worker-0"]


ODD_PARTS: list[tuple[str, Any]] = [
    ("seconds", {}), ("seconds", "long"), ("status", "\x1b[31m"), ("status", None), ("metrics", 1.5),
    ("metrics", {"loss": []}), ("advice_parts", [[]]), ("worker", 7), ("exit_codes", []), ("timings", {"x": "x"}),
    ("reason", {}), ("details", 3), ("seconds", float("nan")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), ODD_PARTS)
def test_a_result_of_which_a_part_makes_no_sense_hides_neither_the_rest_nor_other_runs(name: str, value: Any) -> None:
    path = folders.make_run_folder("odd")
    result = {"status": "failed", "seconds": 3.0, "reason": "it went wrong", "error": "ScriptFailed", name: value}
    folders.write_json(path / "result.json", result)
    run = lookup.open_run(path.name)
    assert run.status == "failed"
    assert run.seconds == 3.0 or name == "seconds"
    assert ("it went wrong" in run.explain()) is (name != "reason")
    for arguments in (
        ["runs"],
        ["runs", "--json"],
        ["explain", run.run_id],
        ["explain", run.run_id, "--json"],
        ["show", run.run_id],
    ):
        shown = CliRunner().invoke(main, arguments)
        assert shown.exception is None or isinstance(shown.exception, SystemExit)
        assert "\x1b" not in shown.output
    with pytest.raises(MusterError):
        run.wait()


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        ({}, {"1": "worker-1", "worker-0": "worker-0"}),
        ({"0": "worker-0", "1": "worker-1"}, {"1": "rank-1", "rank 0": "rank-0", "worker-1": "worker-1"}),
        ({"0": "worker-0", "1": "worker-0", "2": "worker-1", "3": "worker-1"}, {"0": "rank-0", "3": "rank-3"}),
    ],
)
def test_workers_and_ranks_may_be_named_by_number(ranks: dict[str, str], names: dict[str, str]) -> None:
    run = make("train")
    plan = {"processes": {"worker-0": {}, "worker-1": {}}, "ranks": ranks}
    (run.run_dir / "plan.json").write_text(json.dumps(plan))
    assert {name: run.member(name) for name in names} == names


def test_a_number_of_a_rank_and_of_a_worker_elsewhere_is_refused_with_both() -> None:
    run = make("train")
    ranks = {"0": "worker-0", "1": "worker-0", "2": "worker-1", "3": "worker-1"}
    (run.run_dir / "plan.json").write_text(json.dumps({"processes": {"worker-0": {}, "worker-1": {}}, "ranks": ranks}))
    with pytest.raises(RunNotFound, match="may be worker-1 of run .*, or rank 1, which is on worker-0") as refused:
        run.member("1")
    assert refused.value.advice == "worker-1 or rank-1"
    for name in ("7", "rank-4", "worker-2"):
        with pytest.raises(RunNotFound) as unknown:
            run.member(name)
        assert unknown.value.advice == "its workers: worker-0, worker-1; its ranks: rank-0 to rank-3"


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def pipe(path: Path) -> None:
    os.mkfifo(path)  # to open it waits for somebody who writes


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("spoil", [deep, pipe, device, loop])
@pytest.mark.parametrize("name", ["result.json", "plan.json", "events.jsonl", "control.json", "logs/worker-0.log"])
def test_no_file_of_a_record_holds_up_or_hides_other_runs(name: str, spoil: Callable[[Path], None]) -> None:
    other, run = make("other", result={"status": "succeeded"}), make("spoiled")
    folders.write_json(run.run_dir / "plan.json", {"processes": {"worker-0": {}}})
    (run.run_dir / name).unlink(missing_ok=True)
    spoil(run.run_dir / name)
    of_one = [[word, run.run_id] for word in ("show", "logs", "explain", "stop")]
    for arguments in (["runs"], ["runs", "--json"], *of_one):
        shown = CliRunner().invoke(main, arguments)
        assert shown.exception is None or isinstance(shown.exception, SystemExit)
        assert (other.run_id in shown.output) is (arguments[0] == "runs")


def test_no_argument_in_a_recorded_advice_steers_a_terminal() -> None:
    told = {"status": "failed", "error": "ScriptFailed", "reason": "it failed"}
    parts = ["try ", ["n_workers\x1b[2J", "\x1b]0;title\x07two\u202e"]]
    run = make("crafted", result={**told, "advice_parts": parts})
    shown = [CliRunner().invoke(main, [word, run.run_id]).output for word in ("show", "explain", "attach")]
    with pytest.raises(MusterError) as raised:
        run.wait()
    for text in (*shown, str(raised.value), str(run.advice)):
        assert "two" in text
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_no_name_of_a_log_steers_a_terminal() -> None:
    run = make("crafted")
    for name in ("worker-0", "\x1b[31mred", "\u202ered", "\x9bred"):
        (run.run_dir / "logs" / f"{name}.log").write_text("said this\n")
    assert run.worker_names == ["worker-0"]
    assert "red" not in CliRunner().invoke(main, ["logs", run.run_id]).output


@pytest.mark.parametrize("when", ["1e300", "-5", "NaN"])
def test_an_event_at_no_time_is_none(when: str) -> None:
    path = folders.make_run_folder("odd")
    (path / "events.jsonl").write_text(f'{{"time": {when}, "kind": "note", "worker": null, "text": "x"}}\n')
    assert list(runs.Run(path).events()) == []
    assert CliRunner().invoke(main, ["runs"]).exit_code == 0


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("run_requested", '"job": {"resources": {"memory": 1e305}}'),
        ("run_requested", '"job": {"resources": {"memory": 1%s}}' % ("0" * 400)),
        ("run_requested", '"job": {"script": {"kind": []}}'),
        ("run_requested", '"job": {"script": {"kind": "file"}, "resources": {"cpu": NaN}}'),
        ("run_attempt", '"attempt": 2, "reason": "x"}\n{"time": 2, "kind": "note", "text": "x", "lost": NaN'),
        ("progress", '"metrics": {"loss": 1%s}' % ("0" * 400)),
        ("progress", '"step": 1%s, "steps": 3' % ("0" * 400)),
    ],
)
def test_a_number_that_is_none_hides_no_run(kind: str, told: str) -> None:
    path = folders.make_run_folder("odd")
    (path / "events.jsonl").write_text(f'{{"time": 1, "kind": "{kind}", "worker": "worker-0", {told}}}\n')
    for command in (["show"], ["show", "--html", str(path / "page.html")], ["explain", "--json"]):
        shown = CliRunner().invoke(main, [*command, path.name])
        assert isinstance(shown.exception, SystemExit | None), shown.exception


@pytest.mark.parametrize("part", ["options", "env", "args", "resources"])
def test_a_job_of_which_a_part_makes_no_sense_is_shown_all_the_same(part: str) -> None:
    job = {"script": {"kind": "file", "target": "train.py"}, "strategy": "horovod", "n_workers": 2, part: 7}
    assert repeat_command(job) == "muster run -s horovod -n 2 train.py"


def test_metrics_are_numbers_in_python_and_names_in_json() -> None:
    run = make("x", result={**SUCCEEDED, "metrics": {"loss": "NaN", "best": "Infinity", "large": 1e305}})
    assert run.result is not None
    assert math.isnan(run.result["metrics"]["loss"])
    assert math.isnan(run.wait().metrics["loss"])
    printed = CliRunner().invoke(main, ["show", run.run_id, "--json"]).output
    assert json.loads(printed)["metrics"] == {"loss": "NaN", "best": "Infinity", "large": 1e305}


def test_runs_are_listed_as_a_table_and_told_of_line_by_line() -> None:
    older, newer = make("older", result=SUCCEEDED, days_ago=1), make("newer", result=SUCCEEDED)
    heading, *rows = repr(lookup.list_runs()).splitlines()
    assert heading.split() == ["status", "took", "strategy", "run"]
    assert [row.split() for row in rows] == [["succeeded", "3.5", "s", run.run_id] for run in (newer, older)]
    assert len(repr(lookup.list_runs()[:1]).splitlines()) == 2
    assert pretty(newer.explain()).splitlines() == str(newer.explain()).splitlines()


def test_what_lives_is_listed_with_where_and_until_when() -> None:
    here = sessions.this_session()
    make("a", session=here)
    make("b", session=here, detached=True, platform="local")
    make("c", session=here, platform="hosts")
    make("d", session=here, detached=True, platform="slurm")
    make("e", session=here, result=SUCCEEDED, platform="slurm")
    elsewhere = {**here, "boot": "another", "host": "login1"}
    make("f", session=elsewhere, platform="local")
    make("g", session=elsewhere, detached=True, platform="slurm")
    lines = CliRunner().invoke(main, ["runs"]).output.splitlines()
    told = sorted(re.sub(r".*-([a-g])-\w{4}( +|$)", r"\1 ", line) for line in lines)
    until = r"detached until \w{3} \d\d \w{3} \d{4} \d\d:\d\d"
    expected = [
        r"a \(here, ends with its session\)",
        rf"b \(here, {until}\)",
        r"c \(on hosts, ends with its session\)",
        rf"d \(on slurm, {until}\)",
        "e ",
        r"f \(on login1, ends with its session\)",
        rf"g \(on slurm, {until.replace('detached', 'detached on login1')}\)",
    ]
    assert all(re.fullmatch(pattern, line) for pattern, line in zip(expected, told, strict=True)), told
    listed = {run["name"]: run for run in json.loads(CliRunner().invoke(main, ["runs", "--json"]).output)}
    assert [listed[name]["platform"] for name in "abcd"] == [None, "local", "hosts", "slurm"]
    assert {listed[name]["host"] for name in "abcd"} == {here["host"]}


def test_a_recorded_run_can_be_awaited() -> None:
    async def main() -> str:
        return str((await make("x", result=SUCCEEDED)).status)

    assert asyncio.run(main()) == "succeeded"


@pytest.fixture
def unprivileged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home for records, and no rights beyond those of its owner."""
    uid = os.geteuid()
    for arguments in (["runs"], ["show", "absent"]):
        CliRunner().invoke(main, arguments)  # imports what they need, which others may be unable to read
    with tempfile.TemporaryDirectory() as around:
        monkeypatch.setenv("MUSTER_HOME", around)
        if uid == 0:
            os.chown(around, 65534, -1)
            os.seteuid(65534)
        try:
            yield Path(around)
        finally:
            os.seteuid(uid)


def test_folders_that_may_not_be_looked_into_hide_no_other_runs(unprivileged: Path) -> None:
    other, closed = make("other", result={"status": "succeeded"}), make("closed")
    closed.run_dir.chmod(0)
    shown = CliRunner().invoke(main, ["runs"])
    assert shown.exit_code == 0
    assert other.run_id in shown.stdout
    shown = CliRunner().invoke(main, ["show", closed.run_id])
    assert (shown.exit_code, "There is no run" in shown.output) == (2, True)
    (unprivileged / "runs").chmod(0)
    shown = CliRunner().invoke(main, ["runs"])
    (unprivileged / "runs").chmod(0o700)
    assert (shown.exit_code, "cannot be read: Permission denied" in shown.output) == (2, True)
