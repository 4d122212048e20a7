"""Workers that do not go on: every view says of which, for how long and why, until they do."""

from __future__ import annotations

import json

from muster.dashboard.live import LiveState
from muster.dashboard.plain import MANY
from muster.dashboard.snapshot import to_html
from muster.events import Event
from muster.records.folders import make_run_folder
from muster.records.journal import Journal
from muster.records.runs import Run
from muster.records.under_way import silences

from tests.dashboard.scenes import START, at, starting, training, view_of
from tests.dashboard.screen import lines, painted

WHY = "Its container is <paused>."
SAID = "worker-1 has not answered for 25.0 s."


def silent(worker: str = "worker-1", when: float = 60) -> Event:
    return at(when, "silence", worker, since=START + 40, text="has not answered", why=WHY)


def goes_on(worker: str = "worker-1", when: float = 66) -> Event:
    return at(when, "silence", worker)


def seen(*events: Event) -> list[str]:
    """What a terminal, a notebook's picture, a page and ``explain`` show 65 seconds after the start."""
    view = view_of([*training(3), *events])
    view.clock = lambda: START + 65
    live = LiveState(view)
    head = live.snapshot()["run"]["notes"]
    explained = silences(events, START + 65)
    return ["\n".join(painted(view)), to_html(view), "\n".join(head), "\n".join(explained)]


def test_every_view_says_who_is_silent_until_it_goes_on() -> None:
    for text in seen(silent()):
        assert SAID in text
        assert WHY in text.replace("&lt;", "<").replace("&gt;", ">")
    for end in (goes_on(), at(66, "worker_state", "worker-1", status="failed"), at(66, "run_ended", status="stopped")):
        for text in seen(silent(), end)[:3]:
            assert "has not answered" not in text, end


def test_a_page_is_told_how_long_although_nothing_happens() -> None:
    live = LiveState()
    for event in [*training(2), silent()]:
        live(event)
    live.take_diff()
    live.view.clock = lambda: START + 65
    diff = live.take_diff()
    assert diff is not None
    assert diff["run"]["notes"] == [f"{SAID} {WHY}"]
    live(goes_on())
    live.take_diff()
    assert live.take_diff() is None


def test_lines_tell_of_both_changes_and_count_many() -> None:
    first = f"worker-1 has not answered for 20.0 s. {WHY}"
    assert lines([*training(2), silent(), goes_on()])[-2:] == [f"[   1:00] {first}", "[   1:06] worker-1 goes on"]
    names = [f"worker-{number}" for number in range(100)]
    fall = [silent(name, 60 + number / 20) for number, name in enumerate(names)]
    rise = [goes_on(name, 70 + number / 50) for number, name in enumerate(names)]
    told = [line for line in lines([*starting(100), *fall, *rise]) if "answered" in line or "go" in line]
    assert sum("has not answered" in line for line in told) == MANY
    assert told[-1].endswith("] all workers go on")
    assert len(told) < 3 * MANY
    view = view_of([*starting(100), *fall])
    assert view.silences[-1] == "So it is with 97 more."


def test_a_run_that_was_stopped_says_who_was_silent() -> None:
    run = Run(make_run_folder("mnist"))
    journal = Journal(run.run_dir / "events.jsonl")
    for event in [*training(2), silent(), at(65, "run_ended", status="stopped", reason="by request")]:
        journal(event)
    journal.close()
    (run.run_dir / "result.json").write_text(json.dumps({"status": "stopped", "seconds": 65, "reason": "by request"}))
    assert f"Last known: {SAID} {WHY}" in run.explain().splitlines()
