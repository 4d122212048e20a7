"""The parts of live views: the ticker, following a recorded run, the ends of logs, and the choice of a dashboard."""

from __future__ import annotations

import itertools
import json
import statistics
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from muster.checks.planning import describe_job
from muster.checks.script import make_script
from muster.dashboard import choose
from muster.dashboard.baseline import rate_of_one_worker
from muster.dashboard.fold import fold
from muster.dashboard.follow import follow
from muster.dashboard.logtail import LogTail
from muster.dashboard.logwindow import LogWindow
from muster.dashboard.notebook import NotebookDashboard
from muster.dashboard.plain import PlainDashboard
from muster.dashboard.repeat import repeat_command
from muster.dashboard.run import RunView
from muster.dashboard.ticker import SECONDS_PER_TICK, Ticker, pause_after
from muster.errors import JobError
from muster.events import Event
from muster.job import Job, Resources
from muster.records.sessions import this_session
from muster.strategies.horovod import Horovod

from tests.dashboard.scenes import at, failing, record, training, view_of
from tests.support import eventually


def test_the_ticker_ticks_four_times_a_second() -> None:
    ticks: list[float] = []
    ticker = Ticker(lambda: ticks.append(time.monotonic()))
    ticker.start()
    eventually(lambda: len(ticks) >= 6, "it ticks")
    ticker.close()
    between = [later - earlier for earlier, later in itertools.pairwise(ticks)]
    assert statistics.median(between) >= 0.8 * SECONDS_PER_TICK  # after a slow tick the next may come sooner


@pytest.mark.parametrize(
    ("took", "used", "pause"),
    [
        (0.0, 0.0, 0.25),
        (0.1, 0.01, 0.15),
        (0.05, 0.05, 0.5),
        (3.0, 0.01, 0.1),  # a busy machine, or a slow disk
        (3.0, 3.0, 1.0),  # heard of before the page takes its session for gone
    ],
)
def test_ticks_that_use_much_of_a_core_come_more_rarely(took: float, used: float, pause: float) -> None:
    assert pause_after(took, used) == pytest.approx(pause)


def test_a_ticker_may_be_closed_from_its_own_tick_or_before_it_began() -> None:
    Ticker(lambda: None).close()
    done = threading.Event()

    def tick() -> None:
        ticker.close()
        done.set()

    ticker = Ticker(tick)
    ticker.start()
    assert done.wait(5)


def test_a_log_is_read_from_near_its_end_and_then_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    tail = LogTail(log, at_most=10)
    assert tail.read() == ""
    log.write_bytes(b"0123456789abcdef\n")
    assert tail.read() == "789abcdef\n"
    with log.open("ab") as file:
        file.write(b"10%\r20%\r\n\x1b[31mred\x1b[0m \xe2\x82")
        file.flush()
        assert tail.read() == "10%\n20%\nred "
        file.write(b"\xac\n")
    assert tail.read() == "€\n", "a character that came in two parts"
    log.write_bytes(b"new\n")
    assert tail.read() == "new\n", "what was there before has been moved away"
    (tmp_path / "worker-0.log.1").write_bytes(b"new\nlast\n")
    log.write_bytes(b"newer and longer\n")
    assert tail.read() == "last\nnewer and longer\n", "the new one is longer than the old one was"


def test_a_window_on_a_log_shows_whole_lines_and_how_many_are_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.dashboard.logwindow.MOST_BYTES", 100)
    log = tmp_path / "worker-0.log"
    (tmp_path / "worker-0.log.1").write_text("".join(f"old {number}\n" for number in range(30)))
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    window = LogWindow(log)

    news = window.read()
    lines = news["text"].splitlines()
    assert (news["fresh"], lines[-1], lines[0]) == (True, "line 999", f"line {1000 - len(lines)}")
    assert news["before"] == 30 + 1000 - len(lines)
    seen, start = lines, news["start"]
    while (older := window.older(start))["text"]:
        seen, start = [*older["text"].splitlines(), *seen], older["start"]
    assert seen == [*(f"old {number}" for number in range(30)), *(f"line {number}" for number in range(1000))]

    with log.open("ab") as file:
        file.write(b"1%\r2%\ra\r")
        file.flush()
        news = window.read()
        assert news["text"] == "1%\r2%\ra", "the page has lines overwritten"
        assert news["line"] == news["start"]
        file.write("\nunfinished €".encode()[:-1])
        file.flush()
        news = window.read()
        assert (news["text"], news["before"], news["fresh"]) == ("\nunfinished ", 1030, False)
        assert (news["line"], window.older(news["line"])["text"][-5:]) == (log.read_bytes().index(b"unf"), "2%\ra\n")
        file.write(b"still")
        file.flush()
        assert window.read()["line"] is None, "no line begins in it"
        file.write("€".encode()[-1:] + b"".join(b"%d\n" % number for number in range(5000)))
    news = window.read()
    assert (news["fresh"], news["text"].splitlines()[-1]) == (True, "4999"), "it goes on with the newest"
    assert news["before"] + len(news["text"].splitlines()) == 1030 + 1 + 5000
    log.write_text("new\n")
    assert window.read() == {"text": "new\n", "start": 0, "line": 0, "before": 30, "fresh": True}
    log.write_text("newer and longer\n")
    assert window.read() == {"text": "newer and longer\n", "start": 0, "line": 0, "before": 30, "fresh": True}


def test_a_window_may_begin_within_a_line_that_is_longer_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("muster.dashboard.logwindow.MOST_BYTES", 100)
    log = tmp_path / "worker-0.log"
    log.write_bytes(b"first\n" + b"." * 1000)
    window = LogWindow(log)
    assert window.read() == {"text": "." * 100, "start": 906, "line": None, "before": 1, "fresh": True}
    with log.open("ab") as file:
        file.write(b"end\nnext\n")
    assert window.read() == {"text": "end\nnext\n", "start": 1006, "line": 1010, "before": 1, "fresh": False}


def test_a_run_is_followed_to_its_end() -> None:
    events = failing()
    events[0] = Event("run_requested", None, {**events[0].data, "session": this_session()}, events[0].time)
    run = record(events[:-1])
    (run.run_dir / "logs" / "worker-0.log").write_text("first\n")
    seen: list[Event] = []
    thread = threading.Thread(target=follow, args=(run, seen.append))
    thread.start()
    eventually(lambda: any(event.kind == "output" for event in seen), "output from the log")

    with (run.run_dir / "events.jsonl").open("a") as journal:
        journal.write(events[-1].to_json() + "\n")
    thread.join(5)

    assert not thread.is_alive()
    assert [event.kind for event in seen if event.kind != "output"][-2:] == ["worker_state", "run_ended"]


def test_the_first_picture_of_a_run_under_way_is_of_its_present_state(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("muster.dashboard.display")
    events = training()
    events[0] = Event("run_requested", None, {**events[0].data, "session": this_session()}, events[0].time)
    run, shown = record(events), []
    monkeypatch.setattr(NotebookDashboard, "show", lambda self: shown.append(self._static()["text/plain"]))
    display.show(run)
    (run.run_dir / "result.json").write_text('{"status": "stopped", "seconds": 25}')  # so that nobody follows it on
    assert "training" in shown[0]
    assert "launching" not in shown[0]


def test_the_picture_of_a_run_that_has_ended_meanwhile_is_that_of_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    display = pytest.importorskip("muster.dashboard.display")
    monkeypatch.setattr("muster.dashboard.follow.READ_SECONDS", 1.0)  # it ends long before the next reading
    events = training()
    events[0] = Event("run_requested", None, {**events[0].data, "session": this_session()}, events[0].time)
    run, shown = record(events), []
    monkeypatch.setattr(NotebookDashboard, "show", lambda self: shown.append(self._static()["text/plain"]))
    display.show(run)
    (run.run_dir / "result.json").write_text('{"status": "stopped", "seconds": 25}')
    display.show(run)
    assert "stopped" in shown[1]


def test_the_last_lines_of_a_run_are_told_before_its_end() -> None:
    """Logs are read more seldom than events."""
    events = failing()
    events[0] = Event("run_requested", None, {**events[0].data, "session": this_session()}, events[0].time)
    for end in (events[-1], None):
        run = record(events[:-1])
        view = RunView()
        told: list[str] = []

        def observe(event: Event, view: RunView = view, told: list[str] = told) -> None:
            fold(view, event)
            told.append(str(event.kind))

        log = run.run_dir / "logs" / "worker-0.log"
        log.write_text("step 140\n")
        thread = threading.Thread(target=follow, args=(run, observe))
        thread.start()
        eventually(partial(told.__contains__, "output"), "output from the log")
        with log.open("a") as file:
            file.write("step 150\n")
        if end is None:
            (run.run_dir / "result.json").write_text('{"status": "failed", "seconds": 25}')
        else:
            with (run.run_dir / "events.jsonl").open("a") as journal:
                journal.write(end.to_json() + "\n")
        thread.join(5)
        assert not thread.is_alive()
        assert told[-1] == "run_ended"
        assert view.workers["worker-0"].last_line == "step 150"


def test_a_run_whose_session_died_is_followed_to_where_it_was_lost() -> None:
    seen: list[Event] = []
    follow(record(training()), seen.append)

    assert (seen[-1].kind, seen[-1].data["status"]) == ("run_ended", "lost")


def test_the_command_that_would_repeat_a_run() -> None:
    job = Job(make_script(__file__), 2, args=("--name", "a b"), env={"KEY": "secret"}, resources=Resources(gpu=1))
    recorded = json.loads(json.dumps(describe_job(job, Horovod(slots=2, horovodrun_args=("--tcp-flag", "1")))))
    options = f"-s horovod -n 2 --gpus 1 --slots 2 --horovodrun-args '--tcp-flag 1' --env KEY {__file__}"

    assert repeat_command(recorded) == f"muster run {options} -- --name 'a b'"
    del recorded["options"]  # as older runs are recorded
    assert "--slots 2" in repeat_command(recorded)
    servers = {"n_ps": 1, "ps_resources": {**recorded["resources"], "gpu": 0, "memory": 4}}
    assert "--ps 1 --gpus 1 --ps-memory 4 --ps-gpus 0 " in repeat_command({**recorded, **servers})
    recorded["script"] = {"kind": "executable", "target": "./allreduce"}
    assert repeat_command({**recorded, "strategy": "mpi"}).startswith("muster run -s mpi -n 2 ")


def test_what_no_command_can_run_has_none() -> None:
    assert repeat_command({}) == ""
    assert repeat_command({"script": {"kind": "function", "target": "train"}}) == ""


@pytest.mark.parametrize("name", ["", "widget", "basic", "plain"])
def test_without_a_notebook_a_stream_that_is_no_terminal_gets_lines(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_DASHBOARD", name)
    cluster: Any = object()
    with (tmp_path / "out").open("w") as stream:
        assert isinstance(choose(stream, cluster), PlainDashboard)


def test_an_unknown_dashboard_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_DASHBOARD", "3d")
    with pytest.raises(JobError, match="3d"):
        choose()


def test_a_run_that_is_asked_for_the_time_left_knows_it_once_it_has_moved() -> None:
    assert view_of(training(seconds=1)).time_left is None
    assert view_of(training(seconds=26)).time_left == pytest.approx(24, abs=1)
    view = view_of(training(2))
    assert view.efficiency is None
    view.single_rate = 125
    assert view.efficiency == pytest.approx(0.8)


def test_a_run_that_is_ending_has_no_time_left() -> None:
    events = training(seconds=26)
    ending = replace(events[-1], kind="run_phase", worker=None, data={"phase": "ending"})
    assert view_of([*events, ending]).time_left is None, "its workers have been stopped"


def test_a_run_that_hangs_has_no_time_left() -> None:
    events = training(seconds=26)  # a step each second
    last = events[-1].time - events[0].time
    assert view_of(events, now=last + 10).time_left is not None
    assert view_of(events, now=last + 60).time_left is None
    slow = [replace(event, time=events[0].time + 100 * (event.time - events[0].time)) for event in events]
    assert view_of(slow, now=100 * last + 60).time_left is not None, "its steps take longer than that"


def test_a_run_is_measured_against_the_newest_one_of_one_worker() -> None:
    def job(n_workers: int, **changes: Any) -> dict[str, Any]:
        asked = {"script": {"target": "train.py"}, "strategy": "horovod", "n_workers": n_workers, "slots": 1}
        return {**asked, "resources": training()[0].data["job"]["resources"], **changes}

    for changes in ({}, {"args": ["--other"]}):
        events = training(1)
        events[0].data["job"].update(job(1, **changes))
        run = record([*events, at(60, "run_ended", status="succeeded")])
        (run.run_dir / "result.json").write_text('{"status": "succeeded", "seconds": 60}')

    assert rate_of_one_worker(job(4)) == pytest.approx(100)
    assert rate_of_one_worker(job(4, slots=4)) is None, "a worker of it has four ranks"
    assert rate_of_one_worker(job(4, strategy="parameter_server")) is None
    assert rate_of_one_worker(job(1)) is None
