"""A recorded run as a stream of events: those that it has had, and those to come while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from muster.dashboard.logtail import LogTail
from muster.dashboard.replay import untold_end
from muster.events import Event, EventKind, Observer
from muster.events.data import Output
from muster.records.runs import Run

READ_SECONDS = 0.25
READS_PER_LOG = 4  # logs are read less often: there is one for each worker
LOG_BYTES = 4096  # of a log that is there already: only its last line is shown


def follow(run: Run, observer: Observer, closing: threading.Event | None = None) -> None:
    """Tell ``observer`` everything that is recorded of ``run``, until it has ended or ``closing`` is set."""
    closing = closing or threading.Event()
    tell, ended = _teller(observer)
    journal = LogTail(run.path / "events.jsonl", at_most=None)
    logs: dict[str, LogTail] = {}
    unfinished, reads = "", 0
    while not ended.is_set():
        alive = run.status == "running"  # asked before reading, so that nothing written before its end is missed
        *lines, unfinished = (unfinished + journal.read()).split("\n")
        for line in lines:
            _tell_line(line, tell)
        if reads % READS_PER_LOG == 0 and not ended.is_set():
            _tell_output(run.path / "logs", logs, tell)
        reads += 1
        if not alive and not ended.is_set():
            tell(untold_end(run))
        if not ended.is_set() and closing.wait(READ_SECONDS):
            return


def _teller(observer: Observer) -> tuple[Observer, threading.Event]:
    """``observer``, and what is set once it has been told of the end."""
    ended = threading.Event()

    def tell(event: Event) -> None:
        observer(event)
        if event.kind == EventKind.RUN_ENDED:
            ended.set()

    return tell, ended


def _tell_line(line: str, tell: Callable[[Event], None]) -> None:
    try:
        tell(Event.from_json(line))
    except ValueError:  # torn when a session died
        return


def _tell_output(folder: Path, logs: dict[str, LogTail], tell: Observer) -> None:
    """Emit what workers have printed, from their logs: it is not among the recorded events."""
    for path in folder.glob("*-*.log"):
        tail = logs.setdefault(path.stem, LogTail(path, at_most=LOG_BYTES))
        text = tail.read()
        if text:
            tell(Event.of(Output(text), path.stem))
