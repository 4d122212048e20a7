"""The live view of a terminal: what it shows, that it fits, and how it treats a terminal that is really there."""

from __future__ import annotations

import io
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from muster.dashboard.replay import replay
from muster.dashboard.terminal import TerminalDashboard
from muster.events import Event

from tests.dashboard.recording import record
from tests.dashboard.scenes import START, at, failing, starting, training, view_of
from tests.dashboard.screen import painted
from tests.support import eventually


def test_starting() -> None:
    lines = painted(view_of(starting(2), now=2.5))

    assert lines == [
        "● mnist  horovod  launching  2.5 s  2 starting",
        "",
        lines[2],
        "worker-0  ◔ starting   scheduled 2.4 s",
        "worker-1  ◔ starting   scheduled 2.4 s",
    ]
    assert lines[2].split() == ["worker", "status", "phase", "last", "line"], "no column for what nobody has told"


def test_sending_the_project() -> None:
    events = [*starting(2), at(1, "run_phase", phase="starting")]
    events += [at(2, "transfer", f"worker-{index}", done=25 + 50 * index, total=100) for index in range(2)]
    lines = painted(view_of(events, now=3))
    assert lines[0] == "● mnist  horovod  sending the project  3.0 s  2 starting"
    assert re.fullmatch("━{20}─{20}  50 %", lines[1])
    events += [at(4, "transfer", f"worker-{index}", done=100, total=100) for index in range(2)]
    lines = painted(view_of(events, now=5))
    assert lines[:2] == ["● mnist  horovod  starting  5.0 s  2 starting", ""]


def test_training() -> None:
    lines = painted(view_of(training(2)))

    assert lines[0] == "● mnist  horovod  training  22.0 s  2 running"
    assert lines[1].endswith("40 %  epoch 2/5  200 examples/s  30.0 s left")
    assert re.fullmatch(r"loss 0\.1 █[▁-▇]{11}   accuracy 0\.95 ▁[▂-█]{11}", lines[2])
    row = re.split(r"\s{2,}", lines[5])
    assert row[0] == "worker-0 r0"
    assert row[1:4] == ["● running", "10.0.0.0", "training 19.0 s"]
    assert row[4].endswith("epoch 2/5") or row[5] == "epoch 2/5"
    assert row[-5:] == ["100", "12.0 MB", "0.9", "0.61/2 GB", "epoch 2"]


def test_a_column_that_nobody_has_anything_for_is_left_out() -> None:
    without = [event for event in training(2) if event.kind != "usage"]
    titles = [next(line.split() for line in painted(view_of(scene), 140) if line.startswith("worker ")) for scene in (
        without, [*without, at(30, "usage", "worker-0", cpu=0.0, memory=1 << 30)]
    )]  # fmt: skip
    assert {"cpu", "memory"}.isdisjoint(titles[0])
    assert {"cpu", "memory"} < set(titles[1])


def test_failed_ones_come_first_below_the_cause_and_the_advice() -> None:
    lines = painted(view_of(failing()))

    assert lines[:3] == [
        "✗ mnist  horovod  failed  25.0 s  1 failed, 2 stopped",
        "rank 1 (worker-1) failed first: ValueError: no data",
        "Try: look at the shard",
    ]
    assert re.match(r"worker-1 r1 +✗ failed .* ValueError  .* ValueError: no data$", lines[7])


@pytest.mark.parametrize(("step", "bar"), [(0, "─" * 40), (51, "━" * 20 + "─" * 20), (53, "━" * 20 + "╸" + "─" * 19)])
def test_a_bar_is_read_by_its_shape(step: int, bar: str) -> None:
    lines = painted(view_of([*starting(1), at(9, "progress", "worker-0", step=step, steps=102)]))
    assert lines[1].startswith(f"{bar}  ")


def test_all_of_the_work_of_one_is_not_all_of_the_work() -> None:
    lines = painted(view_of([*starting(2), at(20, "progress", "worker-0", rank=0, step=10, steps=10)]))

    assert lines[1].endswith("100 %  step 10/10  told by 1 of 2 workers")


@pytest.mark.parametrize("width", [40, 50, 60])
@pytest.mark.parametrize("scene", [starting, training, failing])
def test_nothing_that_matters_is_cut_in_a_narrow_terminal(scene: object, width: int) -> None:
    view = view_of(scene(3))  # type: ignore[operator]
    above, _, table = "\n".join(painted(view, width)).partition("\n\n")

    assert "…" not in above
    assert all(word in above for word in view.census.split())
    for worker in view.workers.values():
        assert any(line.startswith(f"{worker.name} {worker.rank_names}".strip()) for line in table.splitlines())
        assert worker.slowest.position in table


@pytest.mark.parametrize("height", [16, 24, 50])
@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("scene", [starting, training, failing])
def test_forty_workers_fit_the_screen(scene: object, width: int, height: int) -> None:
    lines = painted(view_of(scene(40)), width, height)  # type: ignore[operator]

    assert len(lines) < height  # the cursor needs a line as well
    assert all(len(line) <= width for line in lines)
    shown = sum(line.startswith("worker-") for line in lines)
    assert lines[-1] == (f"… and {40 - shown} more" if shown < 40 else lines[-1])


NOTES = [at(0.5, "note", text=f"Note {number}: the workers share the cores of this machine.") for number in range(2)]


@pytest.mark.parametrize(("width", "height"), [(50, 15), (30, 10), (25, 6)])
@pytest.mark.parametrize("scene", [training, failing])
def test_a_small_terminal_shows_workers_before_anything_that_does_not_change(
    scene: object, width: int, height: int
) -> None:
    events = scene(16)  # type: ignore[operator]
    lines = painted(view_of([*events[:2], *NOTES, *events[2:]]), width, height)
    assert "mnist" in lines[0]
    assert sum(line.startswith("worke") for line in lines) > 1 + (height > 6)
    assert len(lines) < height or scene is failing
    assert "Note" not in "".join(lines)
    assert "Note 1" in "".join(painted(view_of([*events[:2], *NOTES, *events[2:20]]), 60, 24)), "before it is going"
    assert "Note 1" in "".join(painted(view_of([*events[:2], *NOTES, *events[2:]]), 80, 40)), "where there is room"


@pytest.mark.parametrize("width", [30, 50])
def test_a_narrow_terminal_shows_what_changes(width: int) -> None:
    silent = [event for event in training(2) if event.kind != "progress"]
    assert painted(view_of(silent), width)[-1].endswith("running  " + " " * 2 * (width > 30) + "epoch 2")
    assert "epoch 2/5" in painted(view_of(training(2)), width)[-1]


def test_no_name_is_cut_in_a_narrow_terminal() -> None:
    events = [*training(3), *(at(24, "worker_state", f"worker-{index}", status="succeeded") for index in range(3))]
    assert painted(view_of(events), 30, 10)[-1] == "worker-2  ✓ succeeded"


@pytest.mark.parametrize(("width", "height"), [(50, 15), (30, 10), (25, 6)])
def test_the_last_picture_leaves_room_for_what_stands_below_it(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("LINES", str(height))
    terminal = Terminal()
    dashboard = TerminalDashboard(stream=terminal)
    run = "20261125-202142-a-run-of-a-long-name-and-more-1234"
    for event in [
        at(0, "run_requested", job={}, run_id=run),
        *NOTES,
        *training(16)[1:],
        at(9, "run_ended", status="failed"),
    ]:
        dashboard(event)
    last = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue().rpartition("\x1b[2K")[2]).splitlines()
    assert "failed" in "".join(last[:2])
    assert ("… and " in last[-2]) == (height > 6)
    assert len(last) + len(last[-1]) // width < height


def test_no_metric_is_cut_off() -> None:
    metrics = dict.fromkeys(("accuracy", "loss", "val_accuracy", "val_loss", "test_loss", "test_accuracy"), 0.5)
    lines = painted(view_of([at(0, "progress", "worker-0", rank=0, step=1, metrics=metrics)]), width=60)

    assert all(any(f"{name} 0.5" in line for line in lines) for name in metrics)


def test_a_note_is_read_to_its_end_in_a_narrow_terminal_and_a_long_one_takes_two_lines() -> None:
    note = "Muster sets RANK in every process: the value that is given for it has no effect."
    text = " ".join(painted(view_of([*starting(1), at(1, "note", text=note)]), width=60))
    assert note in re.sub(r"\s+", " ", text)
    plain = painted(view_of(starting(1)), width=60)
    assert len(painted(view_of([*starting(1), at(1, "note", text="long " * 100)]), width=60)) <= len(plain) + 3


def test_text_of_workers_is_no_markup_and_no_escape() -> None:
    view = view_of([*starting(1), at(1, "output", "worker-0", text="[red]a[/red] \x1b[2J:smile:\n")])

    assert painted(view, width=140)[-1].endswith("[red]a[/red] :smile:")


def test_replay_of_a_recorded_run_shows_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    run = record(tmp_path, "--fail", n_workers=2)
    lines = painted(replay(run), width=140)

    title = re.match(r"✗ train  plain  failed  ([\d.]+) s ", lines[0])
    assert title
    events = list(run.events())
    assert float(title[1]) == pytest.approx(events[-1].time - events[0].time, abs=0.06)  # it is rounded
    assert "ValueError: the shard is empty" in lines[1]
    assert any(re.match(r"worker-\d +✗ failed .* epoch 3/3 .*ValueError: the shard is empty$", line) for line in lines)


SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


class Terminal(io.StringIO):
    """A terminal that counts the frames painted on it."""

    frames = 0

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.frames += "mnist" in text
        return super().write(text)


def test_at_most_four_frames_a_second_however_many_events() -> None:
    terminal = Terminal()
    dashboard = TerminalDashboard(stream=terminal)
    began = time.monotonic()
    while time.monotonic() - began < 1.0:
        for event in training(3, seconds=1):
            dashboard(event)
    dashboard.close()

    assert 2 <= terminal.frames <= 8  # first and last frame, four in between, and what a busy machine delays


@pytest.mark.slow
def test_a_process_is_suspended_once_the_terminal_has_its_cursor_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Terminal):
        def write(self, text: str) -> int:
            time.sleep(0.3 * (SHOW_CURSOR in text))
            return super().write(text)

    terminal = Slow()
    shown: list[str] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: shown.append(terminal.getvalue()))
    dashboard = TerminalDashboard(stream=terminal)
    for event in training(3):
        dashboard(event)
    eventually(lambda: HIDE_CURSOR in terminal.getvalue(), "it is painted")
    signal.raise_signal(signal.SIGTSTP)
    dashboard.close()

    (text,) = shown
    assert text.rfind(SHOW_CURSOR) > text.rfind(HIDE_CURSOR)


def test_the_end_of_the_run_closes_it() -> None:
    terminal, before = Terminal(), {*threading.enumerate()}  # dashboards of other tests may still be open
    dashboard = TerminalDashboard(stream=terminal)
    for event in failing():
        dashboard(event)
    text = terminal.getvalue()

    assert "Try: look at the shard" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is visible again
    assert not any(thread.name == "muster-dashboard" for thread in {*threading.enumerate()} - before)
    dashboard.observe(at(99, "note", text="late"))
    dashboard.close()
    assert terminal.getvalue() == text


def test_the_end_says_where_to_read_what_the_workers_printed() -> None:
    terminal = Terminal()
    dashboard = TerminalDashboard(stream=terminal)
    for event in [at(0, "run_requested", job={}, run_id="the-run"), *failing()[2:]]:
        dashboard(event)

    assert terminal.getvalue().endswith("Logs: muster logs the-run\n")


def test_close_without_any_event_writes_nothing() -> None:
    terminal = Terminal()
    TerminalDashboard(stream=terminal).close()

    assert terminal.getvalue() == ""


def test_the_clock_is_the_events() -> None:
    dashboard = TerminalDashboard(stream=Terminal(), clock=lambda: START + 7)
    dashboard(Event("run_phase", None, {"phase": "launching"}, START))
    dashboard.close()

    assert dashboard.view.elapsed == 7


def test_on_a_real_terminal() -> None:
    program = """
from muster.dashboard import choose
from tests.dashboard.scenes import failing
dashboard = choose()
for event in failing(40):
    dashboard(event)
"""
    here, there = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "24", "MUSTER_DASHBOARD": ""}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=there, stdout=there, stderr=there, env=environment
    )
    os.close(there)
    output = b""
    while True:
        try:
            output += os.read(here, 65536)
        except OSError:  # Linux' way to say that nobody holds the other end any more
            break
    os.close(here)

    assert process.wait() == 0
    text = output.decode()
    assert "✗ failed" in text
    assert "… and " in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
