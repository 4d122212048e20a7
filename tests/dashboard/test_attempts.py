"""The table of attempts: in pictures, in terminals and in live views, and nowhere else than in runs with several."""

from __future__ import annotations

import io
from typing import Any

import pytest
from muster.dashboard.attempts import as_data
from muster.dashboard.live import LiveState
from muster.dashboard.run import RunView
from muster.dashboard.screen import NOTES, Screen, attempts_table, heading
from muster.dashboard.snapshot import to_html, to_text
from muster.events import Event
from rich.console import Console, Group

from tests.dashboard.scenes import at, starting, training, view_of

KILLED = "rank 1 (worker-1) was ended by signal 9 (SIGKILL)"
TITLES = ["attempt", "began after", "took", "from", "to", "lost", "ended by"]


def again(*, is_told_apart: bool = True) -> list[Event]:
    """A training whose second rank is killed; the second attempt is under way."""

    def step(seconds: float, epoch: int, number: int) -> Event:
        return at(seconds, "progress", "worker-1", rank=1, step=number, steps=10, epoch=epoch, epochs=5, metrics={})

    reason: dict[str, Any] = {"reason": f"{KILLED}. Attempt 2 of at most 3 begins."}
    if is_told_apart:
        reason["cause"] = KILLED
    return [
        *training(2),
        at(24, "run_attempt", "worker-1", attempt=2, **reason),
        at(26, "note", text="Attempt 2 runs, 2.0 s after the failure. 2 workers have stayed."),
        step(30, 2, 6),
        step(33, 2, 10),
        at(33, "note", text="Attempt 2 is at step 10 of epoch 2: 11.0 s were lost.", lost=11.0),
    ]  # fmt: skip


FIRST = ["1", "0.0 s", "24.0 s", "step 1 of epoch 1", "step 10 of epoch 2", "", KILLED]
SECOND = ["2", "24.0 s", "", "step 6 of epoch 2", "", "11.0 s", "running"]


def rows_of(view: RunView) -> Any:
    return LiveState(view).snapshot()["run"]["attempts"]


def test_a_run_under_way_has_a_row_for_each_attempt() -> None:
    assert rows_of(view_of(again())) == [TITLES, FIRST, SECOND]


def test_the_last_attempt_ends_as_the_run() -> None:
    view = view_of([*again(), at(60, "run_ended", status="succeeded")])
    assert rows_of(view)[2] == [*SECOND[:2], "36.0 s", SECOND[3], "step 10 of epoch 2", "11.0 s", "succeeded"]


def test_records_of_older_versions_say_what_ended_an_attempt_with_how_it_went_on() -> None:
    first = rows_of(view_of(again(is_told_apart=False)))[1]
    assert first == [*FIRST[:-1], f"{KILLED}. Attempt 2 of at most 3 begins."]


def test_attempts_are_data_in_what_commands_print_as_json() -> None:
    view = view_of([*again(), at(60, "run_ended", status="succeeded")])
    first, second = (as_data(attempt) for attempt in view.attempts)
    began = first["began_at"]
    assert first == {
        "attempt": 1, "began_at": began, "seconds": 24.0, "from": {"step": 1, "epoch": 1},
        "to": {"step": 10, "epoch": 2}, "lost": None, "ended_by": KILLED,
    }  # fmt: skip
    assert second == {
        "attempt": 2, "began_at": began + 24, "seconds": 36.0, "from": {"step": 6, "epoch": 2},
        "to": {"step": 10, "epoch": 2}, "lost": 11.0, "ended_by": "succeeded",
    }  # fmt: skip
    running = as_data(view_of(again()).attempts[-1])
    assert (running["seconds"], running["ended_by"], running["to"]) == (None, None, {"step": 10, "epoch": 2})
    assert as_data(view_of(starting()).attempts[0])["from"] is None


@pytest.mark.parametrize("notes", [None, NOTES], ids=["recorded", "live"])
@pytest.mark.parametrize(("width", "titles"), [(70, ["attempt", "lost", "ended by"]), (130, TITLES)])
def test_a_terminal_says_what_ended_an_attempt_on_one_line(width: int, titles: list[str], notes: int | None) -> None:
    printed = io.StringIO()
    Console(width=width, file=printed).print(Group(*heading(view_of(again()), width, notes=notes)))
    lines = [line.rstrip() for line in printed.getvalue().splitlines()]
    assert "  attempt 2" in lines[0]
    (at,) = [number for number, line in enumerate(lines) if line.endswith("ended by")]
    assert lines[at].split("  ")[0] == "attempt"
    assert " ".join(lines[at].split()) == " ".join(titles)
    assert lines[at + 1].endswith(KILLED)
    assert lines[at + 2].endswith("running")


def test_a_live_view_has_the_newest_attempts_each_on_one_line() -> None:
    events = training(2)
    for number in range(2, 7):
        events.append(
            at(24 + number, "run_attempt", "worker-1", attempt=number, reason="x", cause=f"{number - 1} " * 99)
        )
    printed = io.StringIO()
    Console(width=80, file=printed).print(*attempts_table(view_of(events), 80, is_whole=False))
    lines = printed.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["attempt", "4", "5", "6"]


def test_nothing_is_said_of_attempts_where_there_is_but_one() -> None:
    for events in (starting(), training()):
        view = view_of(events)
        assert rows_of(view) == []
        assert "attempt" not in to_html(view) + to_text(view)


def test_pictures_have_the_table_in_place_of_the_notes_that_it_makes_superfluous() -> None:
    view = view_of(again())
    text, html = to_text(view), to_html(view)
    words = " ".join(text.split())
    for row in (TITLES, FIRST, SECOND):
        assert " ".join(filter(None, row)) in words
        assert all(f">{cell}<" in html for cell in row)
    for picture in (text, html):
        assert "Attempt 2 of at most 3 begins" not in picture
        assert "2 workers have stayed" in picture
        assert picture.count("SIGKILL") == 1


@pytest.mark.parametrize(("height", "is_there"), [(30, True), (10, False)])
def test_a_terminal_has_the_table_where_there_is_room(height: int, is_there: bool) -> None:
    console = Console(width=120, height=height, record=True, file=io.StringIO())
    console.print(Screen(view_of([*again(), at(60, "run_ended", status="succeeded")])))
    text = console.export_text()
    assert ("ended by" in text, "worker-1" in text) == (is_there, True)
    assert len(text.splitlines()) <= height


def test_a_reason_is_no_html() -> None:
    events = again()
    events[-5] = at(24, "run_attempt", "worker-1", attempt=2, reason="x", cause="<b>gone</b>")
    assert "&lt;b&gt;gone" in to_html(view_of(events))
