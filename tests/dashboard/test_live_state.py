"""The state that live views share: diffs put together are the snapshot, and cost little."""

from __future__ import annotations

import json
import time
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from muster.dashboard.live import COLUMNS, MOST_ROWS, LiveState
from muster.dashboard.run import RunView

from tests.dashboard.scenes import START, at, failing, starting, training


class Browser:
    """A page's handling of the messages: the same as in ``store.js``."""

    def __init__(self) -> None:
        self.run: dict[str, Any] = {}
        self.names: list[str] = []
        self.columns: dict[str, list[Any]] = {title: [] for title in COLUMNS}
        self.curves: dict[str, list[Any]] = {}

    def take(self, diff: dict[str, Any] | None) -> None:
        if diff is None:
            return
        diff = json.loads(json.dumps(diff, allow_nan=False))
        if diff["kind"] == "snapshot":
            self.run, self.names = diff["run"], diff["names"]
            self.columns, self.curves = diff["columns"], diff["curves"]
            return
        self.run |= diff["run"]
        self.names += diff["names"]
        for title, values in diff["columns"].items():
            column = self.columns[title]
            column += [None] * (len(self.names) - len(column))
            for row, value in zip(diff["rows"], values, strict=True):
                column[row] = value
        for name in diff["anew"]:
            self.curves[name] = []
        for name, points in diff["points"].items():
            self.curves.setdefault(name, []).extend(points)

    def matches(self, state: LiveState) -> bool:
        snapshot = json.loads(json.dumps(state.snapshot(), allow_nan=False))
        seen = (self.names, self.columns, self.curves)
        return seen == (snapshot["names"], snapshot["columns"], snapshot["curves"])


@settings(max_examples=50)
@example(asked={136}, opened={145}, backwards=True)  # a value that has changed and changed back
@given(st.sets(st.integers(0, len(failing(4)))), st.sets(st.integers(0, len(failing(4))), max_size=3), st.booleans())
def test_diffs_taken_at_any_time_add_up_to_the_snapshot(asked: set[int], opened: set[int], backwards: bool) -> None:
    state, browser = LiveState(), Browser()
    events = failing(4)
    if backwards:  # rank 0, which the curves follow, is the last to tell of its steps
        events = sorted(events, key=lambda event: (event.time, event.kind, -int(event.data.get("rank", 0))))
    for number, event in enumerate(events):
        if number in asked:
            browser.take(state.take_diff())
        if number in opened:  # another view asks, and all are answered
            browser.take(state.snapshot())
        state(event)
    browser.take(state.take_diff())

    assert browser.matches(state)
    assert browser.run["status"] == "failed"
    assert state.take_diff() is None


def test_a_diff_has_only_what_has_changed() -> None:
    state = LiveState()
    for event in training(3):
        state(event)
    state.take_diff()
    state(at(40, "usage", "worker-1", cpu=0.5, memory=612_000_000))

    diff = state.take_diff()

    assert diff is not None
    assert (diff["rows"], diff["columns"], diff["points"], diff["names"]) == ([1], {"cpu": [0.5]}, {}, [])
    assert diff["number"] == 2


def test_a_diff_has_all_steps_since_the_one_before_it() -> None:
    state = LiveState()
    for event in starting(1):
        state(event)
    state.take_diff()
    for step in range(1, 12):  # more than one between two ticks
        state(at(3 + step / 100, "progress", "worker-0", rank=0, step=step, metrics={"loss": 1.0}))
    diff = state.take_diff()
    assert diff is not None
    assert [step for step, _ in diff["points"]["loss"]] == list(range(1, 12))

    for step in range(12, 5000):  # a history that is thinned out meanwhile
        state(at(4 + step / 100, "progress", "worker-0", rank=0, step=step, metrics={"loss": 1.0}))
        if step % 7 == 0:
            diff = state.take_diff()
            assert diff is not None
            assert len(diff["points"]["loss"]) <= 7
            assert diff["points"]["loss"][-1] == [step, 1.0]


def test_of_many_workers_with_news_all_have_their_turn() -> None:
    state, browser = LiveState(), Browser()
    for event in training(1000, seconds=1):
        state(event)
    browser.take(state.take_diff())
    assert browser.matches(state), "new ones go at once"

    for index in range(1000):
        state(at(50, "usage", f"worker-{index}", cpu=0.5, memory=612_000_000 + index))
    rows: list[int] = []
    while diff := state.take_diff():
        state(at(51, "usage", "worker-0", cpu=len(rows), memory=612_000_000))  # again and again
        rows.append(len(diff["rows"]))
        browser.take(diff)
        if len(rows) == 4:
            break
    assert max(rows) == MOST_ROWS
    assert browser.columns["memory"][1:] == [612_000_000 + index for index in range(1, 1000)]

    for index in range(1000):
        state(at(52, "worker_state", f"worker-{index}", status="succeeded"))
    state(at(53, "run_ended", status="succeeded"))
    browser.take(state.take_diff())
    assert browser.matches(state), "nothing is left for later when the run has ended"


def test_a_clock_that_is_set_back_does_not_hold_what_is_computed_over_many_workers() -> None:
    now = START + 5000
    state, browser = LiveState(RunView(clock=lambda: now)), Browser()
    for event in training(MOST_ROWS + 1, seconds=1):
        state(event)
    browser.take(state.take_diff())
    now = START + 1000
    for index in range(MOST_ROWS + 1):
        state(at(1000, "progress", f"worker-{index}", rank=index, step=9, steps=10, epoch=5, epochs=5))
    browser.take(state.take_diff())
    assert browser.run["fraction"] == state.view.fraction


def test_one_that_fails_among_a_thousand_is_told_at_once() -> None:
    state, browser = LiveState(), Browser()
    for index in range(1000):
        state(at(0, "worker_state", f"worker-{index}", status="running"))
    browser.take(state.take_diff())
    for index in range(1000):
        state(at(1, "progress", f"worker-{index}", step=1))
    state(at(2, "worker_state", "worker-700", status="failed"))
    browser.take(state.take_diff())
    assert browser.columns["status"][700] == "failed"


def test_numbers_that_json_does_not_know_are_left_out() -> None:
    state = LiveState()
    for event in starting(1):
        state(event)
    state(at(3, "progress", "worker-0", step=1, metrics={"loss": float("nan"), "accuracy": float("inf")}))

    assert json.dumps([state.take_diff(), state.snapshot()], allow_nan=False)


def test_a_thousand_workers_that_all_change_take_milliseconds() -> None:
    state = LiveState()
    for event in training(1000, seconds=1):
        state(event)
    state.take_diff()
    fastest = float("inf")
    for step in range(5):
        for index in range(1000):
            state(at(50 + step, "progress", f"worker-{index}", rank=index, step=step, examples=100 * step))
        started = time.perf_counter()
        state.take_diff()
        fastest = min(fastest, time.perf_counter() - started)

    assert fastest < 0.02, "2 ms on a machine that has nothing else to do"


def test_the_head_is_of_the_same_moment_as_the_row_that_it_tells_of() -> None:
    now = START
    state, browser = LiveState(RunView(clock=lambda: now)), Browser()
    for event in starting(2):
        state(event)
    browser.take(state.snapshot())
    for step in range(1, 61):
        now = START + 3 + step / 20
        for index in range(2):
            state(at(3 + step / 20, "progress", f"worker-{index}", rank=index, step=step, steps=60))
        browser.take(state.take_diff())
        assert browser.columns["step"] == [step, step]
        assert browser.run["fraction"] == step / 60
        assert browser.run["position"] == [f"{100 * step / 60:.0f} %", f"step {step}/60"]


def test_what_the_end_of_a_run_says_of_its_workers_is_told() -> None:
    for status, shown in (("succeeded", "ended"), ("lost", "lost")):
        state, browser = LiveState(), Browser()
        told = [at(8, "process_started", "worker-1", pid=1), at(9, "worker_state", "worker-1", status="stopped")]
        for event in [*starting(2), *(told if status == "succeeded" else [])]:
            state(event)
        browser.take(state.take_diff())
        state(at(10, "run_ended", status=status))
        browser.take(state.take_diff())
        assert browser.columns["status"][1] == shown
        assert browser.matches(state)
