"""The state of a run behind the live views in browsers: one thread adds events, and another takes diffs.

A browser is sent one ``snapshot`` and then diffs, all plain data. Workers are sent as columns of values rather than as
rows of fields, which takes a third of the size and of the time.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

from muster.dashboard import attempts
from muster.dashboard.curve import Point
from muster.dashboard.fold import fold
from muster.dashboard.repeat import repeat_command
from muster.dashboard.run import RunView
from muster.dashboard.worker import WorkerView
from muster.events import Event, EventKind
from muster.runtime.clock import has_passed

COLUMNS: dict[str, Callable[[WorkerView], Any]] = {
    "status": attrgetter("status"),
    "phase": attrgetter("doing"),
    "since": attrgetter("doing_since"),
    "address": attrgetter("address"),
    "cpu": attrgetter("cpu"),
    "memory": attrgetter("memory"),
    "gpu": attrgetter("gpu_use"),
    "ranks": attrgetter("rank_names"),
    "epoch": attrgetter("slowest.epoch_now"),
    "epochs": attrgetter("slowest.epochs"),
    "step": attrgetter("slowest.steps_done"),
    "steps": attrgetter("slowest.steps"),
    "rate": lambda worker: None if worker.rate is None else round(worker.rate),
    "sent": attrgetter("sent"),
    "line": attrgetter("last_line"),
    "ending": attrgetter("end"),
    "reason": attrgetter("reason"),
    "silent": attrgetter("silent"),
}
# With four diffs a second, a thousand workers that change all the time are shown as they were a second ago.
MOST_ROWS = 256
URGENT = frozenset({EventKind.WORKER_STATE, EventKind.EXCEPTION, EventKind.PROCESS_EXITED})
AGGREGATES_SECONDS = 1.0  # at least, between two computations over more than MOST_ROWS workers
Columns = dict[str, list[Any]]


class LiveState:
    """A view and a lock, with a record of what has changed since the last diff was taken.

    Attributes:
        view: the state of the run; to be read with ``lock`` held.
        number: the number of the last diff.
    """

    def __init__(self, view: RunView | None = None) -> None:
        self.view = view or RunView()
        self.lock = threading.RLock()
        self._changed = dict.fromkeys(self.view.workers)  # in order, so that each has its turn
        self._urgent: dict[str, None] = {}
        self._version = -1
        self.number = 0
        self._sent: Columns = {title: [] for title in COLUMNS}
        self._indices: dict[str, int] = {}
        self._head: dict[str, Any] = {}
        self._seen: dict[str, tuple[int, int]] = {}  # how much of each curve has been sent
        self._aggregates: dict[str, Any] = {}
        self._aggregated_at = float("-inf")

    def __call__(self, event: Event) -> None:
        """Take one event into account."""
        with self.lock:
            fold(self.view, event)
            if event.kind in (EventKind.RUN_ATTEMPT, EventKind.RUN_ENDED):
                self._changed = dict.fromkeys(self.view.workers)
            if event.worker in self.view.workers:
                self._changed[event.worker] = None
                if event.kind in URGENT:
                    self._urgent[event.worker] = None

    def take_diff(self) -> dict[str, Any] | None:
        """Return the changes since the last call; None if there are none.

        ``names`` are the new workers, in order. ``columns`` has, for each column with changes, the values of the
        workers whose indices are ``rows``. ``points`` has the new points of each curve that has grown; the points of
        a curve in ``anew`` replace all earlier ones. Of more than ``MOST_ROWS`` changed workers the rest waits for the
        next call, unless the run has ended. Workers that have failed or changed their state do not wait.
        """
        with self.lock:
            # What is said of silent workers contains for how long they are.
            if self.view.version == self._version and not self._changed and not self.view.silent:
                return None
            self._version = self.view.version
            self.number += 1
            new = self._take_names()
            rows, columns = self._take_columns(new)
            points, anew = self._take_points()
            return {
                "kind": "diff",
                "number": self.number,
                "now": self.view.clock(),
                "run": self._take_head(),
                "names": [self.view.workers[name].name for name in new],
                "rows": rows,
                "columns": columns,
                "points": points,
                "anew": anew,
            }

    def snapshot(self) -> dict[str, Any]:
        """Return the whole state, for a new browser. Every browser that reads the diffs must read it, too.

        The next diff is relative to this snapshot: changes since the last diff are in the snapshot only.
        """
        with self.lock:
            self._take_names()
            self._seen = {name: curve.mark for name, curve in self.view.curves.items()}
            workers = list(self.view.workers.values())
            columns = columns_of(workers)
            self._sent = {title: list(values) for title, values in columns.items()}
            self._aggregates, self._aggregated_at = aggregates_of(self.view), self.view.clock()
            self._head = {**head_of(self.view), **self._aggregates}
            return {
                "kind": "snapshot",
                "number": self.number,
                "now": self.view.clock(),
                "run": dict(self._head),
                "names": [worker.name for worker in workers],
                "columns": columns,
                "curves": {name: [_plain(point) for point in curve.points] for name, curve in self.view.curves.items()},
            }

    def _take_names(self) -> list[str]:
        new = list(self.view.workers)[len(self._indices) :]
        for name in new:
            self._indices[name] = len(self._indices)
        for values in self._sent.values():
            values += [_NEW] * len(new)
        return new

    def _take_columns(self, new: list[str]) -> tuple[list[int], Columns]:
        for name in new:
            self._changed.pop(name, None)
        urgent = [name for name in self._urgent if name in self._changed]
        waiting = (name for name in self._changed if name not in self._urgent)
        others = [*urgent, *islice(waiting, MOST_ROWS if self.view.ended is None else None)]
        for name in others:
            del self._changed[name]
        self._urgent.clear()
        rows = [self._indices[name] for name in (*new, *others)]
        news = {}
        for title, values in columns_of([self.view.workers[name] for name in (*new, *others)]).items():
            sent = self._sent[title]
            if values != [sent[row] for row in rows]:
                news[title] = values
                for row, value in zip(rows, values, strict=True):
                    sent[row] = value
        return rows if news else [], news

    def _take_head(self) -> dict[str, Any]:
        now = self.view.clock()
        is_due = len(self.view.workers) <= MOST_ROWS or has_passed(AGGREGATES_SECONDS, self._aggregated_at, now)
        if is_due or self.view.ended is not None:
            self._aggregates, self._aggregated_at = aggregates_of(self.view), now
        head = {**head_of(self.view), **self._aggregates}
        news = {key: value for key, value in head.items() if self._head.get(key, _NEW) != value}
        self._head = head
        return news

    def _take_points(self) -> tuple[dict[str, list[list[float | None]]], list[str]]:
        """Return the new points of each curve, and the names of curves that have begun anew since the last call."""
        news, anew = {}, []
        for name, curve in self.view.curves.items():
            before, self._seen[name] = self._seen.get(name, (0, 0)), curve.mark
            if curve.mark == before:
                continue
            if curve.mark[0] != before[0]:
                anew.append(name)
                before = (curve.mark[0], 0)
            news[name] = [_plain(point) for point in curve.since(before)]
        return news, anew


_NEW = object()  # equals no value, so that all values of a new worker count as changed


def columns_of(workers: Sequence[WorkerView]) -> Columns:
    """Return the values of ``COLUMNS`` for some workers."""
    return {title: list(map(value, workers)) for title, value in COLUMNS.items()}


def head_of(view: RunView) -> dict[str, Any]:
    """Return the facts about the run as a whole, without those computed over all workers."""
    return {
        "name": view.name,
        "run_id": view.run_id,
        "strategy": view.strategy,
        "status": view.status,
        "phase": view.doing,
        "started": view.started,
        "ended": view.ended,
        "moved": view.moved,
        "reason": view.reason,
        "advice": view.advice,
        "culprit": view.culprit,
        "exception": view.exception,
        "notes": view.other_remarks,
        "attempts": attempts.table(view.attempts, view.started or 0.0),
        "memory_limit": view.memory_limit,
        "ps_memory_limit": view.ps_memory_limit,
        "command": repeat_command(view.job),
    }


def aggregates_of(view: RunView) -> dict[str, Any]:
    """Return the facts computed over all workers, such as the slowest worker, the time left and the total rate."""
    laggard = view.laggard
    return {
        "laggard": laggard.name if laggard else "",
        "fraction": view.fraction,
        "position": view.position,
        "share_reporting": view.share_reporting,
        "left": view.time_left,
        "rate": view.rate,
        "efficiency": view.efficiency,
    }


def _plain(point: Point) -> list[float | None]:
    """Return a point as JSON data: its step, or without one its time, and its value, or None if that is not finite."""
    where = point.time if point.step is None else point.step
    return [where, point.value if math.isfinite(point.value) else None]
