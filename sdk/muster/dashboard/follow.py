"""A recorded run as a stream of events: those that it has had, and those to come while it runs."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

from muster.dashboard.logtail import LogTail
from muster.dashboard.replay import untold_end
from muster.errors import MusterError
from muster.events import Event, EventKind, Observer
from muster.events.data import Output, Usage
from muster.records.runs import Run

READ_SECONDS = 0.25
READS_PER_LOG = 4  # logs are read less often: there is one for each worker
LOG_BYTES = 4096  # of a log that is there already: only its last line is shown
ASK_SECONDS = 1.0  # until a run under way is asked again for what its workers use,
WORKERS_PER_SECOND = 1000  # or longer, where there are more than these


def follow(run: Run, observer: Observer, caught_up: threading.Event | None = None) -> None:
    """Tell ``observer`` everything that is recorded of ``run``, until it has ended.

    ``caught_up`` is set once all has been told that was recorded before.
    """
    caught_up = caught_up or threading.Event()
    usage = _Usage(run)
    try:
        _follow(run, observer, caught_up, usage)
    finally:
        usage.close()
        caught_up.set()


def _follow(run: Run, observer: Observer, caught_up: threading.Event, usage: _Usage) -> None:
    logs: dict[str, LogTail] = {}
    tell, ended = _teller(observer, lambda: _tell_output(run.run_dir / "logs", logs, observer))
    journal = LogTail(run.run_dir / "events.jsonl", at_most=None)
    unfinished, reads = "", 0
    while not ended.is_set():
        alive = run.status == "running"  # asked before reading, so that nothing written before its end is missed
        *lines, unfinished = (unfinished + journal.read()).split("\n")
        for line in lines:
            _tell_line(line, tell)
        if reads % READS_PER_LOG == 0 and not ended.is_set():
            _tell_output(run.run_dir / "logs", logs, observer)
        for event in usage.news() if not ended.is_set() else []:
            observer(event)
        reads += 1
        if not alive and not ended.is_set():
            tell(untold_end(run))
        caught_up.set()
        if not ended.is_set():
            time.sleep(READ_SECONDS)


def usage_now(run: Run) -> list[Event]:
    """Return what the workers of a run use right now, which is not among the recorded events; empty where unknown."""
    try:
        return [Event.of(Usage(*used), worker) for worker, used in run.usage().items()]
    except (MusterError, TypeError):  # nobody answers; or another version of Muster does
        return []


class _Usage:
    """Use of the workers of a run, asked for on a thread of its own: a session that hangs holds up no view."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._news: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._ask, name="muster-usage", daemon=True).start()

    def news(self) -> list[Event]:
        """Return what has come since the last call."""
        return [self._news.get() for _ in range(self._news.qsize())]

    def close(self) -> None:
        """Stop following the run."""
        self._closed.set()

    def _ask(self) -> None:
        told: dict[str | None, Usage] = {}
        pause = 0.0
        while not self._closed.wait(pause):
            asked = usage_now(self._run)
            for event in asked:
                if isinstance(event.data, Usage) and told.get(event.worker) != event.data:
                    told[event.worker] = event.data
                    self._news.put(event)
            pause = max(ASK_SECONDS, len(asked) / WORKERS_PER_SECOND)


def _teller(observer: Observer, tell_last: Callable[[], None]) -> tuple[Observer, threading.Event]:
    """``observer``, which is told of the end after ``tell_last``; and what is set once it has been."""
    ended = threading.Event()

    def tell(event: Event) -> None:
        if event.kind == EventKind.RUN_ENDED:
            tell_last()
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
