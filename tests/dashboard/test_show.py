"""``muster show`` and the widget's Python half, without a browser."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from muster.commands.main import main
from muster.commands.show import _show_end, _show_live
from muster.dashboard.base import Controls
from muster.dashboard.clicks import let_clicks_through
from muster.dashboard.live import LiveState
from muster.dashboard.notebook import NotebookDashboard
from muster.errors import RunUnreachable
from muster.records.runs import Run

from tests.dashboard.scenes import at, failing, record, training
from tests.support import eventually

pytest.importorskip("anywidget")

from muster.dashboard import widget as widget_module
from muster.dashboard.widget import RunWidget


@pytest.fixture
def run() -> Run:
    return record(failing())


def test_a_run_becomes_one_page_that_needs_nothing_else(run: Run, tmp_path: Path) -> None:
    (run.run_dir / "logs" / "worker-1.log").write_text("</script><script>alert(1)</script>\n")
    done = CliRunner().invoke(main, ["show", "last", "--html", str(tmp_path / "run.html")])

    assert done.exit_code == 0, done.output
    page = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert page.count("</script>") == 2, "one ends the data, one the code"
    assert "alert(1)" in page
    for outside in (' src="http', ' href="http', "@import", "url("):
        assert outside not in page


def test_a_lost_run_has_no_worker_that_runs_and_something_to_try() -> None:
    run = record(training())  # by no session, and without an end
    shown = CliRunner(env={"COLUMNS": "150"}).invoke(main, ["show", "last"]).output
    assert "3 lost" in shown
    assert "running" not in shown
    told = json.loads(CliRunner().invoke(main, ["show", "last", "--json"]).output)
    assert {worker["status"] for worker in told["workers"]} == {"lost"}
    for words in ("is gone and left no result", "Try: run it again"):
        assert words in shown
        assert words in run.explain()
    assert told["advice"].startswith("run it again")


def test_a_page_overwrites_nothing_but_a_page(run: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import muster\n")
    for file, words in ((script, "is no page of a run"), (tmp_path / "no" / "run.html", "No such file")):
        done = CliRunner().invoke(main, ["show", "last", "--html", str(file)])
        assert done.exit_code == 2
        assert words in done.output
    assert script.read_text() == "import muster\n"
    for _ in range(2):
        done = CliRunner().invoke(main, ["show", "last", "--html", str(tmp_path / "run.html")])
        assert f"Written to {tmp_path / 'run.html'}" in done.output


def test_what_a_progress_bar_has_overwritten_is_a_line_of_its_own(run: Run) -> None:
    (run.run_dir / "logs" / "worker-1.log").write_bytes(b"\r0/2 loss 0.0\r1/2 loss 0.1\r2/2 loss 0.2\r\nend\r\n")
    done = CliRunner().invoke(main, ["logs", "last", "worker-1"])
    assert [line for line in done.output.splitlines() if line] == [
        "0/2 loss 0.0",
        "1/2 loss 0.1",
        "2/2 loss 0.2",
        "end",
    ]


def test_a_run_of_another_process_is_followed_in_a_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MUSTER_DASHBOARD", "plain")
    _show_live(run)

    assert "failed after 25.0 s: rank 1 (worker-1) failed first" in capsys.readouterr().out


def test_a_run_that_has_ended_is_shown_with_all_that_it_was_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = [f"note {number}{' that goes on' * 30}, and ends" for number in range(3)]
    monkeypatch.setenv("COLUMNS", "44")
    _show_end(record([*training(), *(at(22, "note", text=note) for note in notes), failing()[-1]]))

    shown = " ".join(capsys.readouterr().out.split())
    assert [note for note in notes if note in shown] == notes


def test_what_to_try_is_spelled_as_on_the_command_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = run.run_dir / "events.jsonl"
    advice = '"look at the shard", "advice_parts": [["memory", 4]]'
    journal.write_text(journal.read_text().replace('"look at the shard"', advice))
    monkeypatch.setenv("MUSTER_DASHBOARD", "plain")
    _show_live(run)

    assert "try: --memory 4" in capsys.readouterr().out


class Sent(list[dict[str, Any]]):
    """Messages of a widget; nothing goes out."""

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self if message["kind"] == kind]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A widget of a run that trains, what it sends, and how often it was told to stop."""
    state, sent, stops = LiveState(), Sent(), []
    for event in training(2):
        state(event)
    widget = RunWidget(state, lambda: tmp_path, Controls(lambda: stops.append(1)))
    monkeypatch.setattr(widget, "send", sent.append)
    monkeypatch.setattr(RunWidget, "_quiet_until", float("-inf"))
    return widget, sent, stops


def test_the_widget_sends_snapshots_until_it_has_heard_a_browser_and_diffs_from_then_on(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    widget, sent, _ = made
    widget.tick()
    widget.tick()
    assert [message["kind"] for message in sent] == ["snapshot"], "nothing where there is no news"
    monkeypatch.setattr(widget_module, "SECONDS_PER_SNAPSHOT", 0)
    widget.tick()
    assert [message["kind"] for message in sent] == ["snapshot"] * 2, "a view that has begun since knows nothing"
    del sent[1:]

    widget._answer(widget, {"ask": "snapshot"}, [])
    widget._state(training(2)[-1])
    widget._state(training(2, seconds=21)[-3])
    widget.tick()
    assert [message["kind"] for message in sent[1:]] == ["snapshot", "diff"]
    assert [message["unasked"] for message in sent[:2]] == [True, False]
    assert sent[-1]["number"] == sent[-2]["number"] + 1


def test_the_picture_beside_a_view_that_nobody_has_asked_for_does_not_stand_still(made: Any) -> None:
    widget, _, _ = made
    assert widget.cover == "", "an editor displays the view itself"
    assert widget.seconds_per_picture == 10
    widget._state(at(25, "run_ended", status="succeeded"))
    for seconds, pause in ((250, 25), (5000, 60)):
        widget._state.view.ended = widget._state.view.started + seconds
        assert widget.seconds_per_picture == pause
    widget._answer(widget, {"ask": "snapshot"}, [])
    assert widget.seconds_per_picture == float("inf"), "each would have the view begin anew"


def test_the_picture_of_a_run_of_this_session_says_what_keeps_it_live_on_a_page_that_is_loaded_again(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", "train.ipynb")
    endings: list[Callable[[], object]] = []
    monkeypatch.setattr("muster.dashboard.widget.when_cell_ends", endings.append)
    for is_own in (True, False):
        widget = RunWidget(LiveState(), lambda: tmp_path, Controls(is_own=is_own))
        assert "pip install anywidget" in widget.remedy, "nobody sees the view yet"
        widget._answer(widget, {"ask": "snapshot"}, [])
        assert ("wait=False" in widget.remedy) is is_own
        endings.pop()()
        assert "wait=False" not in widget.remedy, "the run goes on after its cell: that is what was given"
    assert "wait=False" not in made[0].remedy, "an editor displays the view itself"


def test_what_a_picture_says_of_the_view_is_brought_up_to_date_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live: Any = SimpleNamespace(cover="over", seconds_per_picture=float("inf"), remedy="install", tick=lambda: None)
    dashboard = NotebookDashboard(lambda *_: live, lambda: tmp_path, Controls())
    taken: list[str] = []
    monkeypatch.setattr(dashboard, "_take_picture", lambda: taken.append(live.remedy))
    for remedy in ("install", "install", "", ""):
        live.remedy = remedy
        dashboard._tick()
    assert taken == ["install", ""]


def test_the_widget_follows_a_log_and_no_other_file(made: Any, tmp_path: Path) -> None:
    widget, sent, _ = made
    log = tmp_path / "logs" / "worker-1.log"
    log.parent.mkdir()
    log.write_text("one\n")
    for worker in ("worker-1", "../worker-1", "launcher", None, 7):
        widget._answer(widget, {"ask": "log", "worker": worker}, [])
    assert [message["text"] for message in sent.of("log")] == ["one\n"]
    assert (sent.of("log")[0]["before"], sent.of("log")[0]["fresh"]) == (0, True)

    widget._answer(widget, {"ask": "log", "worker": "worker-1"}, [])
    log.write_text("one\ntwo\n")
    widget.tick()
    news = {"kind": "log", "worker": "worker-1", "text": "two\n", "start": 4, "line": 4, "before": 1, "fresh": False}
    assert sent.of("log")[-1] == news


def test_the_widget_stops_the_run_and_says_so_and_passes_over_what_it_does_not_understand(made: Any) -> None:
    widget, sent, stops = made
    for message in ("stop", {}, {"ask": "dance"}, None):
        widget._answer(widget, message, [])
    assert (sent, stops) == ([], [])

    widget._answer(widget, {"ask": "stop"}, [])
    eventually(lambda: sent, "an answer")
    assert (sent, stops) == ([{"kind": "stopping", "said": None}], [1])


def test_the_widget_says_where_ranks_are_or_why_it_cannot(made: Any) -> None:
    widget, sent, _ = made
    answers: list[Any] = [{"rank 0": "File x"}, RunUnreachable("it hangs")]

    def stacks() -> dict[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    widget._controls = Controls(stacks=stacks)
    for _ in range(2):
        widget._answer(widget, {"ask": "stacks"}, [])
        eventually(lambda: len(sent) == 2 - len(answers), "an answer")
    assert sent == [{"kind": "stacks", "said": {"rank 0": "File x"}}, {"kind": "stacks", "error": "it hangs"}]


def test_a_session_that_lives_has_a_pulse_until_the_run_has_ended(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    widget, sent, _ = made
    monkeypatch.setattr(widget_module, "SECONDS_PER_BEAT", 0)
    for _ in range(3):
        widget.tick()
    assert [message["kind"] for message in sent] == ["snapshot", "beat", "beat"]
    widget._state(at(30, "run_ended", status="succeeded"))
    widget.tick()
    widget.tick()
    assert [message["kind"] for message in sent[3:]] == ["diff"]


def test_a_page_that_has_asked_for_quiet_is_sent_neither_messages_nor_pictures(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    widget, sent, _ = made
    now = [100.0]
    monkeypatch.setattr("muster.dashboard.widget.time.monotonic", lambda: now[0])
    widget.cover = "muster-live"
    widget._answer(widget, {"ask": "snapshot"}, [])
    pictures = widget.seconds_per_picture
    widget._answer(widget, {"ask": "quiet", "seconds": 3.5}, [])
    for unclear in ("long", None):
        widget._answer(widget, {"ask": "quiet", "seconds": unclear}, [])
    widget._state(training(2, seconds=21)[-3])
    now[0] = 103.4
    widget.tick()
    assert widget.seconds_per_picture == float("inf")
    assert [message["kind"] for message in sent] == ["snapshot"]

    now[0] = 103.5
    widget.tick()
    assert widget.seconds_per_picture == pictures
    assert [(message["kind"], message["sent"]) for message in sent] == [("snapshot", 100), ("diff", 103.5)]
    now[0] = 103.75
    widget._answer(widget, {"ask": "quiet", "seconds": 1e9}, [])
    now[0] = 113.75
    widget.tick()
    assert sent[-1] == {"kind": "beat", "number": sent[-2]["number"], "sent": 113.75}
    widget._answer(widget, {"ask": "quiet", "seconds": 5}, [])
    widget._state(at(30, "run_ended", status="succeeded"))
    widget.tick()
    assert sent[-1]["run"]["status"] == "succeeded", "the end does not wait"


def test_clicks_are_answered_on_their_own_thread_also_by_ipykernel_7_4() -> None:
    class Comm:
        def _reply_subshell_for(self, data: Any, default: Any) -> str:
            return "the thread that is busy"

    comm = Comm()
    let_clicks_through(comm)
    let_clicks_through(object())  # of any other version

    assert comm._reply_subshell_for({}, "the one that it came in on") == "the one that it came in on"
