"""Events in a record: how often, and metrics that are not finite as strict JSON."""

from __future__ import annotations

import asyncio
import json
import math
import re
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from muster import events
from muster.commands.main import main
from muster.events import Event, EventKind, Observers
from muster.records.journal import PROGRESS_PER_SECOND, Journal
from muster.records.runs import Run

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
