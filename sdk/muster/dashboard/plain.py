"""The dashboard for pipes, files and dumb terminals: a line for each change, and now and then one for the progress.

Of many workers the changes are counted, and only the first failures have lines of their own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TextIO

from muster.dashboard.fold import fold
from muster.dashboard.run import SERVING, RunView
from muster.dashboard.text import first_line, number, rate
from muster.dashboard.ticker import Ticker, seconds_to_finish
from muster.dashboard.worker import WorkerView
from muster.events import Event, EventKind, ScriptRaised
from muster.failure.failures import tells_of_another
from muster.runtime.clock import has_passed
from muster.runtime.outlet import Outlet
from muster.text.shown import duration

PROGRESS_SECONDS = 5.0  # between two lines of progress
MANY = 16  # workers, and failures of more workers than these, that are told one by one
CENSUS_SECONDS = 1.0  # between two lines that count more workers than that


class PlainDashboard:
    """Writes lines to ``stream`` as the events come, with times taken from the events.

    What takes long before the first step is told again, more and more rarely, by ``clock``.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._ticker = Ticker(self.remind)
        self._outlet = Outlet(stream)
        self._view = RunView(clock=lambda: self._now)
        self._now = 0.0
        self._quiet_since = 0.0  # when the last event came that made a line
        self._next_reminder = 0.0
        self._progress_at = float("-inf")
        self._census_at = float("-inf")
        self._failures = 0
        self._doing = ""
        self._waits: Counter[str] = Counter()  # the number of workers that wait for the same
        self._closed = False
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        """Write lines on the changes by this event, if there are any."""
        with self._lock:
            if self._closed:
                return
            self._now = event.time
            worker = self._view.workers.get(event.worker or "")
            before, waited = (worker.status, worker.waits_for) if worker is not None else ("", "")
            fold(self._view, event)
            if lines := [*self._news(event, before), *self._waiting(event, waited)]:
                self._quiet_since, self._next_reminder = event.time, event.time + PROGRESS_SECONDS
                self._put(lines)
        with contextlib.suppress(RuntimeError):  # the system allows no more threads: then nothing is told again
            self._ticker.start()
        if event.kind == EventKind.RUN_ENDED:
            self.close()

    def remind(self) -> None:
        """Write what the run is still doing if that takes long, and there has been no line about it for a while."""
        with self._lock:
            now = self._clock()
            if now < self._quiet_since:  # the clock has been set back
                self._quiet_since, self._next_reminder = now, now + PROGRESS_SECONDS
            if self._closed or now < self._next_reminder or not is_on_its_way(self._view):
                return
            self._now, self._next_reminder = now, 2 * now - self._quiet_since
            more = self._how_far()
            self._put([f"still: {self._view.doing}" + (f" ({more})" if more else "")])

    def close(self) -> None:
        """Write no more lines, and wait a while until those that are queued have been written."""
        self._closed = True
        self._ticker.close()
        self._outlet.close(seconds_to_finish())

    def _put(self, lines: list[str]) -> None:
        for line in lines:
            self._outlet.put(f"[{duration(self._view.elapsed):>7}] {line}\n")

    def _how_far(self) -> str:
        """Return how far the run has come with what it does, in words; empty where that is not known."""
        if self._view.sent is not None:
            return f"{100 * self._view.sent:.0f} %"
        return self._view.census if self._view.phase == "connecting" else ""

    def _news(self, event: Event, status_before: str) -> list[str]:
        view = self._view
        if event.kind == EventKind.RUN_REQUESTED:
            return [" ".join(filter(None, ["run", view.name, view.strategy and f"({view.strategy})"]))]
        if event.kind == EventKind.RUN_PHASE:
            more = view.doing if view.launcher else view.census if len(view.workers) > MANY else ""
            return [f"{view.phase}: {more}" if more else view.phase]
        if event.kind in (EventKind.NOTE, EventKind.RUN_ATTEMPT):
            return view.notes[-1].splitlines()
        if event.kind == EventKind.RUN_ENDED:
            return ending(view)
        worker = view.workers.get(event.worker or "")
        if worker is None:
            return []
        if event.kind == EventKind.SILENCE:
            return self._silence(worker)
        if event.kind == EventKind.PROGRESS:
            return self._progress(event.time)
        if event.kind in (EventKind.STAGE, EventKind.LISTENING) and view.doing != self._doing:
            self._doing = view.doing
            return [] if view.doing == view.phase else [view.doing]
        if isinstance(told := event.data, ScriptRaised):
            verb = "lost its peers:" if tells_of_another(told.type or "", told.message or "") else "raised"
            return self._of_one(worker, f"{worker.name} {verb} {first_line(worker.reason)}", is_failure=True)
        if worker.status == status_before:
            return []
        return self._of_one(worker, state(worker), is_failure=worker.has_failed)

    def _of_one(self, worker: WorkerView, line: str, is_failure: bool) -> list[str]:
        """Return the line on a worker's change or, where there are many workers, now and then one that counts them."""
        view = self._view
        if len(view.workers) <= MANY:
            return [f"{worker.name} ended" if view.has_done_its_part(worker) else line]
        self._failures += is_failure
        if is_failure and self._failures <= MANY:
            return [line]
        if not has_passed(CENSUS_SECONDS, self._census_at, self._now):
            return []
        self._census_at = self._now
        return [view.census]

    def _waiting(self, event: Event, waited_for: str) -> list[str]:
        """Return what a worker waits for since this event, as lines, unless another one waits for the same."""
        if event.kind == EventKind.RUN_ATTEMPT:
            self._waits.clear()
        worker = self._view.workers.get(event.worker or "")
        if worker is None or worker.waits_for == waited_for:
            return []
        self._waits[waited_for] -= 1
        if self._waits[waited_for] <= 0:
            del self._waits[waited_for]
        self._waits[worker.waits_for] += 1
        return worker.waits_for.splitlines() if self._waits[worker.waits_for] == 1 else []

    def _silence(self, worker: WorkerView) -> list[str]:
        """Return the line on a worker that is silent or goes on or, of many, now and then one that counts them."""
        silent = len(self._view.silent)
        if len(self._view.workers) <= MANY or (worker.silent and silent <= MANY):
            return [f"{worker.name} {self._view.silence_of(worker) or 'goes on'}"]
        if silent and not has_passed(CENSUS_SECONDS, self._census_at, self._now):
            return []
        self._census_at = self._now
        return [f"{silent} workers do not go on" if silent else "all workers go on"]

    def _progress(self, now: float) -> list[str]:
        if not has_passed(PROGRESS_SECONDS, self._progress_at, now):
            return []
        self._progress_at = now
        return [progress_line(self._view)]


def state(worker: WorkerView) -> str:
    """Return the state of one worker, as a line."""
    line = f"{worker.name} {worker.status}"
    if worker.status == "running" and worker.address:
        line += f" at {worker.address}"
    if worker.reason and worker.status in ("failed", "timedout", "stopped"):
        line += f": {first_line(worker.reason)}"
    return line


def is_on_its_way(view: RunView) -> bool:
    """Return whether a run under way has yet to come to its first step, or ends, so that it is known what it does."""
    if view.started is None or view.status != "running" or view.doing in ("training", SERVING):
        return False
    return view.phase == "ending" or not view.has_stepped


def progress_line(view: RunView) -> str:
    """Return the progress of the training, as a line."""
    shown = view.metrics_from[1] if view.metrics_from else view.slowest  # of the rank that the metrics come from
    parts = []
    if shown is not None and shown.epoch is not None:
        parts.append(f"epoch {shown.epoch_now}" + (f"/{shown.epochs}" if shown.epochs else ""))
    if shown is not None and shown.step is not None:
        parts.append(f"step {shown.steps_done}" + (f"/{shown.steps}" if shown.steps else ""))
    parts += [f"{name} {number(value)}" for name, value in view.metrics.items()]
    if view.rate is not None:
        parts.append(f"{rate(view.rate)} examples/s")
    return ", ".join(parts) or "training"


def ending(view: RunView) -> list[str]:
    """Return lines on the run's end: its status and reason, what to try, and where to read on."""
    lines = [f"{view.status} after {duration(view.elapsed)}" + (f": {view.reason}" if view.reason else "")]
    if view.status == "succeeded" and view.metrics:
        lines.append(", ".join(f"{name} {number(value)}" for name, value in view.metrics.items()))
    if view.advice:
        lines.append(f"try: {view.advice}")
    if view.logs_command:
        lines.append(f"logs: {view.logs_command}")
    return [line for text in lines for line in text.splitlines()]
