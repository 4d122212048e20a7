"""The fold of events into a view."""

from __future__ import annotations

import io
import math
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from muster.dashboard.fold import MAX_METRICS, fold
from muster.dashboard.live import COLUMNS, aggregates_of, columns_of, head_of
from muster.dashboard.plain import PlainDashboard
from muster.dashboard.run import RunView
from muster.dashboard.worker import MAX_RANKS, WorkerView
from muster.events import Event, EventKind
from muster.events.data import read

from tests.dashboard.scenes import START, at, failing, starting, training, view_of
from tests.dashboard.screen import painted


def test_a_run_that_starts() -> None:
    view = view_of([*starting(), at(1, "worker_ready", "worker-1", host="10.0.0.1")], now=3)

    assert (view.name, view.strategy, view.status, view.phase) == ("mnist", "horovod", "running", "launching")
    assert view.elapsed == 3
    assert view.memory_limit == view.ps_memory_limit == 2_000_000_000
    assert view.counts() == {"starting": 3}
    worker = view.workers["worker-1"]
    assert (worker.role, worker.index, worker.address) == ("worker", 1, "10.0.0.1")
    assert (worker.phase, worker.phase_since) == ("connected", START + 1)


def test_only_what_workers_wait_for_now_is_shown() -> None:
    """A job may queue for hours, and its place in the queue changes all the time."""
    events = starting(2)
    for number, text in enumerate(("5 jobs come first", "2 jobs come first", "it is the next one")):
        events += [at(1 + number, "worker_state", f"worker-{index}", reason=text) for index in range(2)]
    waiting = view_of(events)
    assert head_of(waiting)["notes"] == ["it is the next one"]
    assert "it is the next one" in painted(waiting)[1]
    assert not any("come first" in line for line in painted(waiting))
    come = view_of([*events, *[at(9, "worker_ready", f"worker-{index}", host="10.0.0.1") for index in range(2)]])
    assert head_of(come)["notes"] == []


def test_a_run_that_trains() -> None:
    view = view_of(training())

    worker = view.workers["worker-2"]
    progress = worker.slowest
    assert (view.phase, worker.phase, worker.status, worker.ranks) == ("training", "training", "running", [2])
    assert (progress.epoch, progress.epochs, progress.step, progress.steps) == (2, 5, 10, 10)
    assert progress.fraction == pytest.approx(0.4)
    assert worker.rate == pytest.approx(100)
    assert (worker.cpu, worker.memory, worker.last_line) == (0.93, 612_000_000, "epoch 2")


def test_curves_follow_the_lowest_rank() -> None:
    events = training(n_workers=2, seconds=3)
    late = [event for event in events if event.worker != "worker-0"] + [
        event for event in events if event.worker == "worker-0"
    ]

    for order in (events, late):
        curve = view_of(order).curves["loss"]
        assert [point.value for point in curve.points] == [2, 1, 2 / 3]
        assert [point.step for point in curve.points] == [1, 2, 3]


def test_a_run_that_fails() -> None:
    view = view_of(failing(), now=99)

    assert (view.status, view.phase, view.error, view.culprit) == ("failed", "ended", "ScriptFailed", "worker-1")
    assert view.reason == "rank 1 (worker-1) failed first: ValueError: no data"
    assert view.advice == "look at the shard"
    assert view.exception == "Traceback: no data"
    assert view.elapsed == 25
    assert view.counts() == {"failed": 1, "stopped": 2}
    worker = view.workers["worker-1"]
    assert (worker.phase, worker.exit_code, worker.reason) == ("done", 1, "ValueError: no data")


def test_a_worker_that_raised_has_failed_even_if_it_is_stopped_before_it_exits() -> None:
    raised = at(2, "exception", "worker-0", rank=0, type="E", message="m", traceback="t")
    view = view_of([*starting(1), raised, at(3, "worker_state", "worker-0", status="stopped", signal=15)])

    assert view.workers["worker-0"].status == "failed"


STOPPED = {"exit_code": None, "signal": 15, "reason": "stopped"}


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ([{"raised": "FileNotFoundError"}, STOPPED], "FileNotFoundError"),
        ([{"raised": "FileNotFoundError"}, {"exit_code": 1}], "FileNotFoundError"),  # the one word for it everywhere
        ([{"exit_code": 0}, {"raised": "FileNotFoundError"}, {"exit_code": 1}], "FileNotFoundError"),
        ([{"signal": 9, "reason": "memory"}, {"raised": "RuntimeError"}], "out of memory"),
        ([STOPPED], ""),  # nobody killed it: others had failed
        ([{"exit_code": 0}], "exit 0"),
        ([{"signal": 9}], "signal 9"),
        ([{"signal": 9, "reason": "memory"}], "out of memory"),
        ([{"exit_code": 3}, STOPPED], "exit 3"),  # of several ranks the one that failed
        ([{"exit_code": 3}, {"exit_code": 0}], "exit 3"),
        ([{"exit_code": 0}, {"signal": 11}], "signal 11"),
    ],
)
def test_a_row_says_how_its_worker_fared_and_not_how_muster_stopped_it(ends: list[dict[str, Any]], shown: str) -> None:
    events = starting(1)
    for rank, end in enumerate(ends):
        if "raised" in end:
            events.append(at(2, "exception", "worker-0", rank=rank, type=end["raised"], message="m", traceback="t"))
        else:
            events.append(at(3, "process_exited", "worker-0", pid=2, rank=rank, **end))
            codes = {name: end.get(name) for name in ("exit_code", "signal")}
            events.append(at(3, "worker_state", "worker-0", status="stopped", **codes))
    view = view_of(events)
    worker = view.workers["worker-0"]
    assert view.phase_of(worker) == shown
    assert COLUMNS["ending"](worker) == shown


def test_status_does_not_move_once_it_is_final() -> None:
    view = view_of([at(0, "worker_state", "w-0", status="succeeded"), at(1, "worker_state", "w-0", status="running")])

    assert view.workers["w-0"].status == "succeeded"


def test_a_server_that_listens_is_ready() -> None:
    assert view_of([at(0, "listening", "ps-0", port=1)]).workers["ps-0"].phase == "ready"


def test_the_last_line_comes_in_pieces() -> None:
    worker = WorkerView("worker-0")
    for text, shown in (("loss 0.", "loss 0."), ("5\n", "loss 0.5"), ("\r\n", "loss 0.5"), ("10%\r20%", "20%")):
        worker.print(text)
        assert worker.last_line == shown


def test_hostile_text_is_made_harmless() -> None:
    text = "\x1b[2J\x1b]0;owned\x07\x9b31m\x1bc\u202egnp.exe\x00\udcff <b>\n"
    view = view_of([at(0, "output", "w-0", text=text), at(1, "run_ended", status="failed", reason="\x1b]52;c;x\x07no")])

    assert view.workers["w-0"].last_line == "gnp.exe\ufffd <b>"
    assert view.reason == "no"


def test_fractions() -> None:
    def fraction(**data: int) -> float | None:
        return view_of([at(0, "progress", "w-0", rank=0, **data)]).workers["w-0"].slowest.fraction

    assert fraction(step=30, steps=120) == 0.25
    assert fraction(epoch=2, epochs=4) == 0.25
    assert fraction(step=5, steps=10, epoch=1, epochs=2) == 0.25
    assert fraction(step=30, steps=10) == 1
    assert fraction(epoch=9, epochs=4) == 1
    assert fraction(step=30, epochs=4) is None
    assert fraction(step=30) is None
    assert fraction(step=30, steps=0) is None


def test_who_has_told_how_far_it_is_is_said_where_others_have_not() -> None:
    def tellers(*told: str, **ended: str) -> str:
        steps = [at(20, "progress", name, rank=0, step=10, steps=10) for name in told]
        return view_of([*starting(3), *steps, *([at(30, "run_ended", **ended)] if ended else [])]).share_reporting

    assert tellers() == ""
    assert tellers("worker-0") == "told by 1 of 3 workers"
    assert tellers("worker-0", "worker-1", "worker-2") == ""
    assert tellers("worker-0", status="failed") == "told by 1 of 3 workers"
    assert tellers("worker-0", status="succeeded") == ""
    assert tellers("chief-0") == ""  # parameter servers and workers leave that to it


def test_the_rank_that_is_furthest_back_stands_for_its_worker_and_for_the_run() -> None:
    ranks = [at(0, "process_started", "worker-0", rank=rank) for rank in range(3)]
    told = [at(1 + rank, "progress", "worker-0", rank=rank, step=step, steps=60) for rank, step in [(0, 60), (1, 41)]]
    view = view_of([*ranks, *told])

    assert view.fraction == view.workers["worker-0"].fraction == pytest.approx(41 / 60)
    assert view.workers["worker-0"].slowest.position == "step 41/60"
    assert view.share_reporting == "told by 2 of 3 ranks"
    assert aggregates_of(view)["laggard"] == "worker-0"
    assert columns_of(list(view.workers.values()))["step"] == [41]
    assert view_of([*ranks, *told, at(5, "run_ended", status="failed")]).fraction == pytest.approx(41 / 60)


def test_the_rate_follows_a_change_of_speed_and_a_count_that_begins_anew() -> None:
    events = [at(second, "progress", "w-0", rank=0, examples=10 * second) for second in range(60)]
    events += [at(60 + second, "progress", "w-0", rank=0, examples=590 + 50 * second) for second in range(1, 20)]
    assert view_of(events).workers["w-0"].rate == pytest.approx(50)

    events += [at(80 + second, "progress", "w-0", rank=0, examples=5 * second) for second in range(4)]
    assert view_of(events).workers["w-0"].rate == pytest.approx(5)


def test_the_rate_and_the_time_left_are_known_soon_after_the_clock_was_set_back() -> None:
    events = [at(5000 + n, "progress", "w-0", rank=0, step=n, steps=100, examples=50 * n) for n in range(20)]
    events += [at(1000 + n, "progress", "w-0", rank=0, step=n, steps=100, examples=10 * n + 800) for n in range(20, 40)]
    view = view_of(events)
    assert view.workers["w-0"].rate == pytest.approx(10)
    assert view.time_left == pytest.approx(60, abs=2)


def test_a_metric_that_is_not_finite() -> None:
    metrics = {"loss": math.nan}
    view = view_of([at(0, "progress", "w-0", rank=0, metrics=metrics)])

    assert list(view.metrics) == ["loss"]
    assert math.isnan(view.metrics["loss"])


def test_a_script_cannot_make_the_view_grow() -> None:
    view = RunView()
    for number in range(2000):
        data = {"rank": number, "step": number, "examples": number, "metrics": {f"m{number}": 1.0, "loss": 1.0}}
        fold(view, at(number, "progress", "w-0", **data))
        fold(view, at(number, "note", text="n"))
        fold(view, at(number, "output", "w-0", text="x" * 10_000))

    worker = view.workers["w-0"]
    assert len(view.curves) == MAX_METRICS
    assert len(worker.progress) == MAX_RANKS
    assert len(view.notes) < 10
    assert len(worker.last_line) < 1000


@pytest.mark.slow
def test_a_thousand_workers_cost_as_much_an_event_as_ten() -> None:
    def seconds_for(n_workers: int) -> float:
        view = view_of(training(n_workers, seconds=1))
        news = [
            at(5, "progress", f"worker-{n % n_workers}", rank=0, step=1, metrics={"loss": 1.0}) for n in range(5000)
        ]
        began = time.process_time()
        for event in news:
            fold(view, event)
        return time.process_time() - began

    few, many = (min(seconds_for(n_workers) for _ in range(3)) for n_workers in (10, 1000))
    assert many < 5 * few


_NAMES = [
    "status", "address", "exit_code", "signal", "reason", "host", "rank", "step", "steps", "epoch", "epochs",
    "examples", "metrics", "text", "phase", "job", "cpu", "memory", "type", "message", "traceback",
    "error", "advice",
]  # fmt: skip
_KINDS = [
    "run_requested", "run_phase", "note", "worker_state", "worker_ready", "process_started", "process_exited",
    "listening", "usage", "output", "progress", "exception", "stacks", "run_ended",
]  # fmt: skip
_VALUES = [
    None, True, -1, 0, 3, 10**9, 0.5, math.nan, math.inf, "", "a\x1b[2J\nb", "running", "failed", [1], {},
    {"loss": 1.0}, {"loss": math.inf, "x": None}, {"resources": {"memory": "much"}},
    {"resources": {"memory": math.inf}},
]  # fmt: skip
_WORKERS = [None, "ps-0", "worker-0", "odd", ""]


def check(events: list[Event]) -> None:
    view = RunView(clock=lambda: 1e9)
    for event in events:
        fold(view, event)

    assert view.version == len(events)
    assert view.elapsed >= 0
    for worker in view.workers.values():
        fraction = worker.slowest.fraction
        assert fraction is None or 0 <= fraction <= 1
        assert all(character.isprintable() for character in worker.last_line)
    painted(view)
    dashboard = PlainDashboard(io.StringIO())
    for event in events:
        dashboard(event)
    dashboard.close()


def _event(kind: str, worker: str | None, told: dict[str, object], when: float) -> Event:
    """An event as a journal has it that anybody may have written: what of it does not fit is left out."""
    data, _ = read(EventKind(kind), told)
    return Event.of(data, worker, when)


@pytest.mark.parametrize("kind", _KINDS)
def test_no_value_is_too_strange(kind: str) -> None:
    for value in _VALUES:
        check([_event(kind, worker, dict.fromkeys(_NAMES, value), 1.0) for worker in _WORKERS])


_EVENTS = st.builds(
    _event,
    st.sampled_from(_KINDS),
    st.sampled_from(_WORKERS),
    st.dictionaries(st.sampled_from(_NAMES), st.sampled_from(_VALUES)),
    st.floats(0, 1e9),
)


@settings(max_examples=50)
@given(st.lists(_EVENTS, max_size=30))
def test_no_order_is_too_strange(events: list[Event]) -> None:
    check(events)


@pytest.mark.parametrize("first", [0, 1])
def test_a_script_may_count_its_steps_from_0_or_from_1(first: int) -> None:
    events = [*starting(1), *(at(step, "progress", "worker-0", step=first + step, steps=60) for step in range(60))]
    view = view_of(events)

    assert view.workers["worker-0"].slowest.position == "step 60/60"
    assert view.fraction == 1


@pytest.mark.parametrize("first", [0, 1])
def test_a_script_may_count_its_epochs_from_0_or_from_1(first: int) -> None:
    reports = [
        {"epoch": first + epoch, "epochs": 3, "step": step, "steps": 4} for epoch in range(3) for step in range(4)
    ]
    events = [*starting(1), *(at(when, "progress", "worker-0", **report) for when, report in enumerate(reports))]

    assert view_of(events[:-4]).workers["worker-0"].slowest.position == "epoch 2/3"
    assert view_of(events).workers["worker-0"].slowest.position == "epoch 3/3"
    assert view_of(events).fraction == 1


def test_what_most_workers_are_at_before_the_first_step_is_what_the_run_is_at() -> None:
    def stage(when: float, worker: int, name: str) -> Event:
        return at(when, "stage", f"worker-{worker}", rank=worker, stage=name)

    started = [at(9, "process_started", f"worker-{rank}", pid=1, rank=rank) for rank in range(3)]
    trains = at(10, "run_phase", phase="training")
    events = [*starting(3), *started, trains]
    assert (
        view_of([*events, at(2, "run_phase", phase="starting", launcher="mpiexec")]).doing == "mpiexec starts the ranks"
    )
    assert view_of(events).doing == "training"
    events += [stage(11, worker, "importing tensorflow") for worker in range(3)]
    events += [stage(12, 2, "building the first step")]
    view = view_of(events)
    assert view.doing == "importing tensorflow"
    assert view.phase_of(view.workers["worker-2"]).startswith("building the first step")
    events += [stage(13, 2, "training")]
    view = view_of(events)
    assert view.doing == "training"
    assert view.phase_of(view.workers["worker-2"]).startswith("training")
    assert view.phase_of(view.workers["worker-1"]).startswith("importing tensorflow")


def test_a_run_that_has_succeeded_is_done_wherever_it_stopped_to_count() -> None:
    events = [*training(2, seconds=9), at(20, "worker_state", "worker-0", status="succeeded")]
    assert view_of(events).fraction == pytest.approx(0.18)
    view = view_of([*events, at(21, "run_ended", status="succeeded")])

    assert (view.fraction, view.workers["worker-0"].fraction) == (1, 1)
    assert "last told: epoch 1/5" in painted(view)[1]


def test_a_step_beyond_the_last_is_shown_as_it_was_told() -> None:
    for first in (0, 1):
        told = [at(when, "progress", "worker-0", step=step, steps=20) for when, step in enumerate((first, 33))]
        worker = view_of([*starting(1), *told]).workers["worker-0"]
        assert (worker.slowest.position, worker.fraction) == ("step 33/20", 1)
    told = [at(when, "progress", "worker-0", epoch=epoch, epochs=3) for when, epoch in enumerate((0, 7))]
    assert view_of([*starting(1), *told]).workers["worker-0"].slowest.position == "epoch 7/3"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("more", [{}, {"steps": 20}, {"epoch": None}])
def test_a_curve_goes_on_where_steps_begin_anew(first: int, more: dict[str, Any]) -> None:
    told = [(epoch, step) for epoch in range(3) for step in range(20)]
    events = [
        at(when, "progress", "worker-0", step=first + step, metrics={"loss": 1.0},
           **{**more, **({"epoch": epoch} if "epoch" in more else {})})
        for when, (epoch, step) in enumerate(told)
    ]  # fmt: skip
    steps = [point.step for point in view_of(events).curves["loss"].points]
    assert steps == list(range(first, first + 60))


def test_training_that_goes_back_to_a_checkpoint_draws_its_curve_anew_from_there() -> None:
    events = [at(step, "progress", "w-0", step=step, metrics={"loss": 1.0}) for step in range(1, 11)]
    events += [at(20 + step, "progress", "w-0", step=step, metrics={"loss": 0.5}) for step in range(8, 13)]
    points = view_of(events).curves["loss"].points
    assert [(point.step, point.value) for point in points] == [
        (step, 1.0 if step < 8 else 0.5) for step in range(1, 13)
    ]


def test_a_run_that_ended_early_is_not_said_to_have_done_all() -> None:
    end = at(30, "run_ended", status="succeeded")
    for counted, words in (
        ([{"step": 3, "steps": 100}], ["last told: step 3/100"]),
        ([{"epoch": 2, "epochs": 5}], ["last told: epoch 2/5"]),
        ([{"epoch": 5, "epochs": 5, "step": 90, "steps": 100}], ["100 %", "epoch 5/5"]),
        ([{"step": 100, "steps": 100}], ["100 %", "step 100/100"]),
        ([{"step": 0, "steps": 60}, {"step": 59, "steps": 60}], ["100 %", "step 60/60"]),
        ([{"epoch": 5, "epochs": 5}], ["100 %", "epoch 5/5"]),
    ):
        told = [at(9 + when, "progress", "worker-0", **data) for when, data in enumerate(counted)]
        view = view_of([*starting(1), *told, end])
        assert view.fraction == 1
        assert view.position == words
        assert head_line(view) == "  ".join(words)
    assert view_of([*starting(1), *told]).position == ["80 %", "epoch 5/5"]


def head_line(view: RunView) -> str:
    return painted(view)[1].lstrip("━╸─ ").strip()


@pytest.mark.parametrize(
    ("first", "second", "slowest"),
    [
        ({"step": 50, "steps": 100}, {"step": 51, "steps": 100}, ""),
        ({"step": 50, "steps": 100}, {"step": 53, "steps": 100}, "worker-0"),
        ({"step": 500, "steps": 1000}, {"step": 515, "steps": 1000}, ""),
        ({"step": 3, "steps": 10}, {"step": 4, "steps": 10}, ""),
        ({"epoch": 2, "epochs": 5}, {"epoch": 1, "epochs": 5}, "worker-1"),
        ({"step": 5}, {"step": 50}, "worker-0"),
        ({"step": 50}, {"step": 51}, ""),
    ],
)
def test_the_slowest_is_named_where_it_is_well_behind(
    first: dict[str, int], second: dict[str, int], slowest: str
) -> None:
    events = [at(9, "progress", "worker-0", **first), at(9, "progress", "worker-1", **second)]
    view = view_of([*starting(2), *events])
    assert (view.laggard.name if view.laggard else "") == slowest


def serving(*others: Event) -> RunView:
    job = {"name": "servers", "strategy": "parameter_server"}
    events = [at(0, "run_requested", job=job), at(2, "run_phase", phase="training")]
    for name in ("chief-0", "ps-0"):
        events += [
            at(2, "process_started", name, pid=1),
            at(3, "stage", name, stage="importing tensorflow"),
            at(5, "listening", name, port=1),
        ]
    return view_of([*events, *others], now=9)


def test_servers_that_listen_serve_and_the_run_with_them() -> None:
    view = serving()
    assert view.phase_of(view.workers["ps-0"]) == "serving 4.0 s"
    assert view.doing == "serving"


def test_a_process_that_listens_and_then_tells_of_a_stage_is_at_that() -> None:
    view = serving(at(6, "stage", "chief-0", stage="building the first step"))
    assert view.doing == "building the first step"
    assert view.phase_of(view.workers["ps-0"]) == "serving 4.0 s"
    view = serving(at(6, "progress", "chief-0", step=1))
    assert view.doing == "training"


def test_a_process_that_listens_serves_where_nothing_else_is_known_of_it() -> None:
    running = at(6, "stage", "ps-0", stage="running the script")
    view = serving(running)
    assert view.doing == "serving"
    assert view.phase_of(view.workers["ps-0"]).startswith("serving")
    view = serving(at(6, "stage", "ps-0", stage="importing keras"), at(7, "stage", "ps-0", stage="running the script"))
    assert view.phase_of(view.workers["ps-0"]) == "serving 2.0 s"


def test_servers_that_are_up_do_not_hide_what_the_others_wait_for() -> None:
    for count in (0, 1):
        started = [at(2, "process_started", "worker-0", pid=1)]
        stages = [at(6, "stage", "worker-0", stage="importing tensorflow")] * count
        assert serving(*started, *stages).doing == ("importing tensorflow" if stages else "training")


def test_a_server_that_was_stopped_as_the_run_succeeded_has_ended_well() -> None:
    stopped = [at(9, "worker_state", "ps-0", status="stopped", signal=15)]
    for status, shown in (("succeeded", "ended"), ("failed", "stopped"), ("stopped", "stopped")):
        view = serving(*stopped, at(9, "run_ended", status=status))
        assert view.workers["ps-0"].status == shown


def test_no_worker_waits_for_a_place_once_the_run_has_ended() -> None:
    for status, shown in (("stopped", "stopped"), ("failed", "stopped"), ("lost", "lost")):
        view = view_of([at(0, "worker_state", "worker-0", status="scheduling"), at(9, "run_ended", status=status)])
        assert (view.workers["worker-0"].status, view.workers["worker-0"].phase) == (shown, "done")


def test_the_last_line_is_one_that_says_something() -> None:
    worker = WorkerView("ps-0")
    worker.print('config {\n  protocol: "grpc"\n}\n\n----\n')
    assert worker.last_line == 'protocol: "grpc"'
    worker.print("été\n…\n")
    assert worker.last_line == "été"
