"""A recorded run as a stream of events: those recorded so far, and those to come while it runs."""

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
from muster.runtime.latch import Latch
from muster.text.reading import LONGEST_LINE

READ_SECONDS = 0.25
READS_PER_LOG = 4  # readings of the events for one of the logs, as there is a log for each worker
LOG_BYTES = 4096  # read from the end of a log that exists already: only its last line is shown
ASK_SECONDS = 1.0  # between two queries for the workers' use of resources
WORKERS_PER_SECOND = 1000  # with more workers, the pause between two queries is longer


def follow(run: Run, observer: Observer, caught_up: Latch[bool] | None = None) -> None:
    """Call ``observer`` with every event that is recorded of ``run``, until the run has ended.

    ``caught_up`` is set once all events have been passed on that were recorded before the call.
    """
    caught_up = caught_up or Latch()
    usage = _Usage(run)
    try:
        _follow(run, observer, caught_up, usage)
    finally:
        usage.close()
        caught_up.set(True)


def _follow(run: Run, observer: Observer, caught_up: Latch[bool], usage: _Usage) -> None:
    logs: dict[str, LogTail] = {}
    tell, ended = _teller(observer, lambda: _tell_output(run.run_dir / "logs", logs, observer))
    journal = LogTail(run.run_dir / "events.jsonl", at_most=None, at_once=LONGEST_LINE)
    unfinished, reads = "", 0
    while not ended.is_set():
        alive = run.status == "running"  # asked before reading, so that nothing written before its end is missed
        while len(unfinished) < LONGEST_LINE and (text := journal.read()):  # nothing follows a line that is too long
            *lines, unfinished = (unfinished + text).split("\n")
            for line in lines:
                _tell_line(line, tell)
        if reads % READS_PER_LOG == 0 and not ended.is_set():
            _tell_output(run.run_dir / "logs", logs, observer)
        for event in usage.news() if not ended.is_set() else []:
            observer(event)
        reads += 1
        if not alive and not ended.is_set():
            tell(untold_end(run))
        caught_up.set(True)
        if not ended.is_set():
            time.sleep(READ_SECONDS)


def usage_now(run: Run) -> list[Event]:
    """Return the workers' current use of resources as events, which a run does not record; empty if unknown."""
    try:
        return [Event.of(Usage(*used), worker) for worker, used in run.usage().items()]
    except (MusterError, TypeError):  # the session does not answer, or is of another version of Muster
        return []


class _Usage:
    """Queries the workers' use of resources on a separate thread, so that a session that hangs blocks no view."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._news: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._closed: Latch[bool] = Latch()
        threading.Thread(target=self._ask, name="muster-usage", daemon=True).start()

    def news(self) -> list[Event]:
        """Return the events that have come since the last call."""
        return [self._news.get() for _ in range(self._news.qsize())]

    def close(self) -> None:
        """Stop the queries."""
        self._closed.set(True)

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


def _teller(observer: Observer, tell_last: Callable[[], None]) -> tuple[Observer, Latch[bool]]:
    """Return ``observer`` wrapped to call ``tell_last`` before it gets the end, and a latch that is set then."""
    ended: Latch[bool] = Latch()

    def tell(event: Event) -> None:
        if event.kind == EventKind.RUN_ENDED:
            tell_last()
        observer(event)
        if event.kind == EventKind.RUN_ENDED:
            ended.set(True)

    return tell, ended


def _tell_line(line: str, tell: Callable[[Event], None]) -> None:
    try:
        tell(Event.from_json(line))
    except ValueError:  # an incomplete line, left by a session that died
        return


def _tell_output(folder: Path, logs: dict[str, LogTail], tell: Observer) -> None:
    """Emit new output of the workers, read from their logs, as events do not record it."""
    for path in folder.glob("*-*.log"):
        tail = logs.setdefault(path.stem, LogTail(path, at_most=LOG_BYTES))
        text = tail.read()
        if text:
            tell(Event.of(Output(text), path.stem))
