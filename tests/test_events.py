"""Events in a record: how often, and metrics that are not finite as strict JSON."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import threading
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from muster import events
from muster.commands.main import main
from muster.events import Event, EventKind, Progress, Stage
from muster.events.data import DATA, EventData
from muster.events.observers import Observers
from muster.records.journal import PROGRESS_PER_SECOND, Journal
from muster.records.runs import Run

from tests.listening import eventually
from tests.plain import Plain

SCRIPT = """
import math
import re
from muster.training import report
report(1, loss=0.5)
report(2, loss=math.nan, norm=math.inf, low=-math.inf)
"""


def strict(text: str) -> Any:
    """The JSON, as readers take it that know no NaN."""
    return json.loads(text, parse_constant=pytest.fail)


@given(metrics=st.dictionaries(st.text(), st.one_of(st.floats(), st.integers())))
def test_an_event_comes_back_from_strict_json(metrics: dict[str, float]) -> None:
    event = Event("progress", "worker-0", {"step": 1, "metrics": metrics})
    strict(event.to_json())
    found = Event.from_json(event.to_json()).data["metrics"]
    assert [*map(repr, found.values())] == [*map(repr, metrics.values())]
    assert found.keys() == metrics.keys()


def test_a_run_whose_loss_is_not_a_number(tmp_path: Path) -> None:
    script = tmp_path / "diverges.py"
    script.write_text(SCRIPT)
    cluster = muster.run_cluster(1, worker_script=script, strategy=Plain()).cluster
    assert cluster is not None
    metrics = cluster.result.metrics
    assert math.isnan(metrics["loss"])
    assert (metrics["norm"], metrics["low"]) == (math.inf, -math.inf)

    folder = Path(cluster.run_dir)
    lines = [strict(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [line["metrics"] for line in lines if line["kind"] == "progress"][-1]["loss"] == "NaN"
    assert strict((folder / "result.json").read_text())["metrics"]["low"] == "-Infinity"

    explained = CliRunner().invoke(main, ["explain", "last"]).output
    assert "loss: nan" in explained
    assert "low: -inf" in explained
    assert "loss nan" in CliRunner().invoke(main, ["show", "last"]).output


@pytest.mark.parametrize("made", DATA.values())
def test_the_data_of_an_event_is_a_mapping_that_equals_another_with_the_same_items(made: type[EventData]) -> None:
    data = made()
    assert data == dict(data)


@pytest.mark.parametrize(("ranks", "seconds_between"), [(2, 1), (10 * PROGRESS_PER_SECOND, 10)])
def test_progress_of_many_ranks_is_journalled_less_often_and_the_last_always(
    tmp_path: Path, ranks: int, seconds_between: int
) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for second in range(25):
        for rank in range(ranks):
            journal(Event("progress", f"worker-{rank}", {"rank": rank, "step": second}, time=float(second)))
    journal.close()
    events = [Event.from_json(line) for line in journal.path.read_text().splitlines()]
    steps = [event.data["step"] for event in events if event.worker == "worker-1"]
    assert steps == [*range(0, 25, seconds_between), *([24] if seconds_between > 1 else [])]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steps", "seconds", "fewest", "most"), [(60, 1, 50, 60), (500, 10, 200, 400), (200_000, 2000, 2000, 3000)]
)
def test_the_course_of_a_short_run_is_journalled_as_closely_as_that_of_a_long_one(
    tmp_path: Path, steps: int, seconds: float, fewest: int, most: int
) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for step in range(steps):
        journal(Event("progress", "worker-0", {"rank": 0, "step": step}, time=step * seconds / steps))
    journal.close()
    events = [Event.from_json(line) for line in journal.path.read_text().splitlines()]
    kept = [event.data["step"] for event in events]
    assert fewest <= len(kept) <= most
    assert max(after - before for before, after in itertools.pairwise(kept)) <= max(steps / 50, 1)
    assert kept[-1] == steps - 1


@pytest.mark.parametrize("error", [ValueError("a defect"), SystemExit(3), asyncio.CancelledError()])
def test_an_observer_that_raises_is_dropped(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []

    def observer(event: Event) -> None:
        raise error

    observers = Observers([observer, told.append])
    observers.tell(Event("note"))
    observers.tell(Event("note"))
    assert len(told) == 2
    assert caplog.text.count("is dropped") == 1


def test_a_slow_observer_is_told_all_that_there_is_room_for_in_order_and_how_much_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("muster.events.observers.MOST_EVENTS", 3)
    goes_on, told = threading.Event(), []

    def slow(event: Event) -> None:
        goes_on.wait(30)
        told.append(event.data.get("text") or event.kind)

    observers = Observers()
    observers.add_queued(slow)
    observers.tell(Event("output", data={"text": "first"}))
    eventually(lambda: not observers._queued()[0]._waiting)  # it is busy with that
    for kind in ["output"] * 5 + ["note"] * 2 + ["output"] * 2 + ["note"] * 9 + ["run_ended"]:
        observers.tell(Event(kind, data={"text": f"{kind} {len(told)}"} if kind != "run_ended" else {}))
    goes_on.set()
    observers.close()
    eventually(observers.are_done)
    missing = "events are left out here: this observer is too slow."
    assert told == [
        "first", *["output 0"] * 3, f"2 {missing}", "note 0", "note 0", f"11 {missing}", "run_ended",
    ]  # fmt: skip


def test_a_queued_observer_that_raises_or_is_dropped_is_told_no_more(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []

    def raises(event: Event) -> None:
        told.append(event)
        raise SystemExit(3)

    observers = Observers()
    observers.add_queued(raises)
    observers.add_queued(told.append)
    observers.tell(Event("note"))
    eventually(lambda: len(told) == 2)
    eventually(lambda: "is dropped" in caplog.text)
    observers.drop(told.append)
    observers.tell(Event("note"))
    observers.close()
    eventually(observers.are_done)
    assert len(told) == 2


def test_an_interrupt_while_an_observer_runs_is_not_its_own() -> None:
    told: list[Event] = []

    def interrupted(event: Event) -> None:
        told.append(event)
        if len(told) == 1:
            raise KeyboardInterrupt

    observers = Observers([interrupted])
    with pytest.raises(KeyboardInterrupt):
        observers.tell(Event("note"))
    observers.tell(Event("note"))
    assert len(told) == 2


def test_kinds_are_those_of_the_table_and_no_others() -> None:
    told = set(re.findall(r"^``(\w+)`` ", str(events.__doc__), re.MULTILINE)) - {"worker"}
    assert {str(kind) for kind in EventKind} == told
    assert Event("note").kind is EventKind.NOTE
    with pytest.raises(ValueError, match="from_the_future"):
        Event("from_the_future")


def test_a_kind_of_a_later_version_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text(
        f'{Event("note", data={"text": "a"}).to_json()}\n{{"kind": "from_the_future", "time": 1}}\n'
    )
    assert [event.kind for event in Run(tmp_path).events()] == [EventKind.NOTE]


def test_an_event_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    line = {"time": 1.0, "kind": "stage", "worker": "w", "rank": 0, "stage": "reading", "weather": {"rain": [1]}}
    event = Event.from_json(json.dumps(line))
    assert event == Event.of(Stage(0, "reading"), "w", 1.0)


def test_what_of_a_record_does_not_fit_is_said_once_and_counts_as_not_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [{"time": second, "kind": "progress", "worker": "w", "rank": "first", "step": second} for second in (1, 2)]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [event.data for event in Run(tmp_path).events()] == [Progress(step=1), Progress(step=2)]
    assert caplog.messages == [f"{tmp_path / 'events.jsonl'}: rank of progress is str instead of a whole number"]
    caplog.clear()
    run = Run(tmp_path)
    assert len([*run.events(), *run.events()]) == 4
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("line", ["[1]", "{}", '{"kind": "note"}', '{"kind": "note", "time": "now"}', '{"kind": 1}',
                                  '{"kind": "note", "time": 1, "worker": {}}', "", "nul"])  # fmt: skip
def test_what_is_no_event(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  (json's own, too)
        Event.from_json(line)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("note", {"text": 7}),
        ("listening", {"port": True}),
        ("worker_ready", {"ports": ["80"]}),
        ("run_requested", {"job": {1: 2}}),
        ("progress", {"metrics": {"loss": "low"}}),
        ("usage", {"cpu": "1"}),
    ],
)
def test_data_that_does_not_fit_is_refused_where_an_event_is_made(kind: str, told: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"of {kind} is"):
        Event(kind, data=told)


def test_data_is_a_mapping_of_what_was_told() -> None:
    data = Event("process_exited", "w", {"pid": 7, "exit_code": 0, "unknown": 1}).data
    assert data == {"pid": 7, "exit_code": 0}
    assert len(data) == 2
    assert data["signal"] is None
    assert data.get("unknown") is None


def test_no_file_of_the_package_reads_data_by_name() -> None:
    """Type checkers see attributes only."""
    package = Path(muster.__file__).parent
    found = [
        f"{path.relative_to(package)}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"(event|request)\.data(\[|\.get\()", line) and path.parent.name != "events"
    ]
    assert found == []


def test_what_an_event_does_not_tell_is_not_in_its_data() -> None:
    told = Progress(step=3)
    assert ("step" in told, "epoch" in told, "nonsense" in told) == (True, False, False)
    assert {"step", "metrics"} == set(told)
