"""The dashboard of lines."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from muster.dashboard import NoDashboard, choose
from muster.dashboard.plain import PlainDashboard
from muster.dashboard.run import SERVING
from muster.dashboard.terminal import TerminalDashboard
from muster.errors import JobError
from muster.events import Event

from tests.dashboard.scenes import START, at, failing, starting, training, view_of
from tests.dashboard.screen import lines


def test_a_run_that_fails() -> None:
    assert lines(failing(n_workers=2)) == [
        "[  0.0 s] run mnist (horovod)",
        "[  0.0 s] launching",
        "[  0.1 s] worker-0 starting",
        "[  0.1 s] worker-1 starting",
        "[  1.0 s] connecting",
        "[  1.0 s] worker-0 running at 10.0.0.0",
        "[  1.0 s] worker-1 running at 10.0.0.1",
        "[  2.0 s] training",
        "[  3.0 s] epoch 1/5, step 1/10, loss 2, accuracy 0",
        "[  8.0 s] epoch 1/5, step 6/10, loss 0.3333, accuracy 0.8333, 200 examples/s",
        "[ 13.0 s] epoch 2/5, step 1/10, loss 0.1818, accuracy 0.9091, 200 examples/s",
        "[ 18.0 s] epoch 2/5, step 6/10, loss 0.125, accuracy 0.9375, 200 examples/s",
        "[ 23.0 s] worker-1 raised ValueError: no data",
        "[ 24.0 s] worker-0 stopped",
        "[ 25.0 s] failed after 25.0 s: rank 1 (worker-1) failed first: ValueError: no data",
        "[ 25.0 s] try: look at the shard",
    ]


def test_an_exception_that_tells_of_another_rank_is_no_news_of_its_own() -> None:
    echo = at(23, "exception", "worker-0", rank=0, type="UnknownError", message="Horovod has been shut down.")
    cause = at(23.1, "exception", "worker-1", rank=1, type="ValueError", message="no data", traceback="Traceback")
    assert lines([*starting(2), echo, cause])[-2:] == [
        "[ 23.0 s] worker-0 lost its peers: UnknownError: Horovod has been shut down.",
        "[ 23.1 s] worker-1 raised ValueError: no data",
    ]
    view = view_of([*starting(2), echo, cause])
    assert (view.culprit, view.exception) == ("worker-1", "Traceback")


def test_the_launcher_that_the_ranks_wait_for_is_named() -> None:
    phases = [at(2, "run_phase", phase="starting", launcher="horovodrun"), at(9, "run_phase", phase="training")]
    assert lines([*starting(1), *phases])[-2:] == [
        "[  2.0 s] starting: horovodrun starts the ranks",
        "[  9.0 s] training",
    ]


class QuietRun:
    """A dashboard of lines that is told of ``events``, and looks at the clock each second until ``end``."""

    def __init__(self, events: list[Event], end: int) -> None:
        self.now = 0.0
        stream = io.StringIO()
        dashboard = PlainDashboard(stream, clock=lambda: START + self.now)
        for second in range(end):
            self.now = second
            while events and events[0].time <= START + second:
                dashboard(events.pop(0))
            dashboard.remind()
        dashboard.close()
        self.lines = stream.getvalue().splitlines()


def test_what_takes_long_before_the_first_step_is_told_again_more_and_more_rarely() -> None:
    events = [
        at(0, "run_requested", job={"name": "mnist"}),
        at(1, "run_phase", phase="starting", launcher="horovodrun"),
        at(43, "run_phase", phase="training"),
        at(43, "stage", "worker-0", rank=0, stage="importing keras"),
        at(50, "progress", "worker-0", rank=0, step=1, metrics={}),
    ]
    assert QuietRun(events, end=200).lines == [
        "[  0.0 s] run mnist",
        "[  1.0 s] starting: horovodrun starts the ranks",
        "[  6.0 s] still: horovodrun starts the ranks",
        "[ 11.0 s] still: horovodrun starts the ranks",
        "[ 21.0 s] still: horovodrun starts the ranks",
        "[ 41.0 s] still: horovodrun starts the ranks",
        "[ 43.0 s] training",
        "[ 43.0 s] importing keras",
        "[ 48.0 s] still: importing keras",
        "[ 50.0 s] step 1",
    ]


def test_a_clock_that_is_set_back_leaves_the_counts_of_many_workers() -> None:
    many = [f"worker-{number}" for number in range(100)]
    before = [at(5000, "worker_state", name, status="running") for name in many[:50]]
    after = [at(1000 + number, "worker_state", name, status="running") for number, name in enumerate(many[50:])]
    counts = [line for line in lines([*starting(100), *before, *after]) if "running" in line]
    assert len(counts) > 5


def test_a_clock_that_is_set_back_silences_neither_progress_nor_what_takes_long() -> None:
    def step(seconds: float, number: int) -> Event:
        return at(seconds, "progress", "worker-0", rank=0, step=number, metrics={})

    before = [*starting(1), at(5000, "run_phase", phase="training"), step(5000, 1)]
    assert [line.split("] ")[1] for line in lines([*before, *(step(1000 + 2 * n, 2 + n) for n in range(4))])][-3:] == [
        "step 1",
        "step 2",
        "step 5",
    ]
    stream, now = io.StringIO(), START + 5000
    dashboard = PlainDashboard(stream, clock=lambda: now)
    dashboard(at(5000, "run_requested", job={"name": "mnist"}))
    for seconds in range(1000, 1020):
        now = START + seconds
        dashboard.remind()
    dashboard.close()
    assert 1 <= stream.getvalue().count("still") <= 3


def test_what_takes_long_is_told_with_how_far_it_is() -> None:
    queued = [*starting(2), at(1, "run_phase", phase="connecting")]
    queued += [at(1, "worker_state", "worker-1", status="running"), at(2, "run_phase", phase="starting")]
    assert QuietRun(queued[:-1], end=7).lines[-1] == "[  6.0 s] still: connecting (1 running, 1 starting)"
    part = at(2, "transfer", "worker-0", done=1, total=4)
    assert QuietRun([*queued, part], end=8).lines[-1] == "[  7.0 s] still: sending the project (25 %)"


@pytest.mark.parametrize("stage", ["", SERVING])
def test_a_run_of_which_nothing_is_to_be_told_is_quiet(stage: str) -> None:
    events = [at(0, "run_requested", job={"name": "mnist"}), *starting(1)[1:], at(1, "run_phase", phase="training")]
    if stage:
        events.append(at(1, "stage", "worker-0", stage=stage))
    assert not [line for line in QuietRun(events, end=200).lines if "still" in line]


def test_lines_of_what_takes_long_come_by_themselves() -> None:
    stream = io.StringIO()
    dashboard = PlainDashboard(stream, clock=lambda: START + 60.0)
    dashboard(at(0, "run_requested", job={"name": "mnist"}))
    deadline = time.monotonic() + 30
    while "still: launching" not in stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.05)
    dashboard.close()
    assert stream.getvalue().splitlines()[-1] == "[   1:00] still: launching"


def test_a_server_that_is_stopped_once_the_workers_have_succeeded_has_ended() -> None:
    server = [at(1, "worker_state", "ps-0", status="running"), at(2, "listening", "ps-0")]
    for status, words in (("succeeded", "ps-0 ended"), ("failed", "ps-0 stopped")):
        ends = [at(5, "worker_state", "worker-0", status=status), at(6, "worker_state", "ps-0", status="stopped")]
        assert lines([*starting(1), *server, *ends])[-1] == f"[  6.0 s] {words}"


def test_a_run_that_succeeds_ends_with_its_metrics() -> None:
    assert lines([*training(1, seconds=1), at(9, "run_ended", status="succeeded")])[-2:] == [
        "[  9.0 s] succeeded after 9.0 s",
        "[  9.0 s] loss 2, accuracy 0",
    ]


def test_the_end_says_where_to_read_what_the_workers_printed() -> None:
    ended = [*starting(1), at(9, "run_requested", job={}, run_id="the-run"), at(9, "run_ended", status="succeeded")]

    assert lines(ended)[-1] == "[  0.0 s] logs: muster logs the-run"


def test_says_nothing_after_the_end() -> None:
    ended = [at(1, "run_ended", status="stopped")]

    assert lines([*ended, at(2, "note", text="late")]) == lines(ended)


def test_what_workers_wait_for_is_told_once_and_again_where_it_changes() -> None:
    before = at(0.2, "worker_state", "worker-0", reason="5 jobs come first")
    same = at(0.2, "worker_state", "worker-1", reason="5 jobs come first")
    later = at(0.3, "worker_state", "worker-0", reason="2 jobs come first")
    assert lines([*starting(2), before, same, later])[-2:] == [
        "[  0.2 s] 5 jobs come first",
        "[  0.3 s] 2 jobs come first",
    ]


def test_what_some_workers_wait_for_and_others_do_not_is_told_once() -> None:
    texts = ["it pulls its image", "no node has the cores", "it pulls its image", "no node has the cores"]
    waits = [at(0.2, "worker_state", f"worker-{index}", reason=text) for index, text in enumerate(texts)]
    again = at(0.3, "worker_state", "worker-0", reason="no node has the cores")
    last = at(0.4, "worker_state", "worker-2", reason="no node has the cores")
    anew = at(0.5, "worker_state", "worker-1", reason="it pulls its image")
    told = lines([*starting(4), *waits, again, last, anew])
    assert [line for line in told if line.endswith(tuple(texts))] == [
        "[  0.2 s] it pulls its image",
        "[  0.2 s] no node has the cores",
        "[  0.5 s] it pulls its image",
    ]


def test_many_workers_are_counted_each_second_and_those_that_fail_are_named() -> None:
    told = lines(failing(n_workers=400))
    assert len([line for line in told if line.endswith("starting")]) == 16 + 2
    assert [line for line in told if line.endswith(("running", "stopped", " 400 starting"))] == [
        "[  1.0 s] connecting: 400 starting",
        "[  2.0 s] training: 400 running",
        "[ 24.0 s] 1 failed, 398 running, 1 stopped",
    ]
    assert "[ 23.0 s] worker-1 raised ValueError: no data" in told


def test_notes_are_cleaned() -> None:
    assert lines([at(0, "note", text="a\nb\x1b[2J")]) == ["[  0.0 s] a", "[  0.0 s] b"]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("progress", {"rank": 0, "step": 1, "metrics": {"a\n[  9.9 s] succeeded\tb": 1.0}}),
        ("stage", {"rank": 0, "stage": "a\n[  9.9 s] succeeded\tb"}),
    ],
)
def test_a_name_that_a_script_has_chosen_is_no_line_of_its_own(kind: str, told: dict[str, Any]) -> None:
    shown = lines([*training(1, seconds=0), at(3, kind, "worker-0", **told)])
    assert [line for line in shown if "succeeded" in line] == [shown[-1]]
    assert "a [ 9.9 s] succeeded b" in shown[-1]


def test_a_reader_that_has_gone_does_not_disturb_the_run() -> None:
    stream = io.StringIO()
    stream.close()
    dashboard = PlainDashboard(stream)

    dashboard(at(0, "note", text="a"))
    dashboard.close()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class TestChoose:
    @pytest.fixture(autouse=True)
    def environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("MUSTER_DASHBOARD", raising=False)
        monkeypatch.setenv("TERM", "xterm-256color")

    def test_by_the_stream(self) -> None:
        assert isinstance(choose(Terminal()), TerminalDashboard)
        assert isinstance(choose(io.StringIO()), PlainDashboard)

    def test_a_dumb_terminal_gets_lines(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TERM", "dumb")

        assert isinstance(choose(Terminal()), PlainDashboard)

    @pytest.mark.parametrize(
        ("value", "kind"), [("rich", TerminalDashboard), ("plain", PlainDashboard), ("off", NoDashboard)]
    )
    def test_by_the_environment(self, value: str, kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_DASHBOARD", value)

        assert isinstance(choose(Terminal()), kind)
        assert isinstance(choose(io.StringIO()), kind)

    def test_another_value_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MUSTER_DASHBOARD", "fancy")

        with pytest.raises(JobError, match="fancy"):
            choose()


def test_a_run_that_goes_on_leaves_the_prompt_alone(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import time\ntime.sleep(0.5)\n")
    typed = """import muster
c = muster.run_cluster(1, strategy="processes", worker_script="train.py", wait=False).cluster
c.wait().status
"""
    variables = {**os.environ, "MUSTER_DASHBOARD": "plain"}
    command = [sys.executable, "-q", "-i"]
    done = subprocess.run(command, input=typed, cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert "goes on: run.wait()" in done.stderr
    assert "'succeeded'" in done.stdout
    assert "succeeded in" not in done.stdout + done.stderr, "nothing is painted over what is typed"
