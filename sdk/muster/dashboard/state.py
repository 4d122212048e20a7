"""The state of a run that live views in a browser share: it takes events in on one thread and gives diffs on another.

A browser is sent one ``snapshot`` and then diffs, all plain data. Workers are columns of values rather than rows of
fields, which is a third of the size and of the time.
"""

from __future__ import annotations

import math
import threading
from typing import Any

from muster.dashboard.curve import Point
from muster.dashboard.model import RunView, fold
from muster.dashboard.repeat import repeat_command
from muster.dashboard.worker import WorkerView
from muster.events import Event

COLUMNS = (
    "status", "phase", "since", "address", "cpu", "memory", "gpu", "ranks", "epoch", "epochs", "step", "steps",
    "rate", "sent", "line", "exit", "signal", "reason",
)  # fmt: skip
AGGREGATES_SECONDS = 1.0  # sums over all workers are made no more often than this
Row = tuple[Any, ...]


class LiveState:
    """A view with a lock around it, which knows what has changed since it was last asked.

    Attributes:
        view: what the run looks like; to be read with ``lock`` held.
    """

    def __init__(self, view: RunView | None = None) -> None:
        self.view = view or RunView()
        self.lock = threading.RLock()
        self._changed = set(self.view.workers)
        self._version = -1
        self._number = 0
        self._rows: dict[str, Row] = {}
        self._indices: dict[str, int] = {}
        self._head: dict[str, Any] = {}
        self._points: dict[str, Point] = {}
        self._aggregates: dict[str, Any] = {}
        self._aggregated_at = float("-inf")

    def __call__(self, event: Event) -> None:
        """Take one event into account."""
        with self.lock:
            fold(self.view, event)
            if event.worker in self.view.workers:
                self._changed.add(event.worker)

    def take_diff(self) -> dict[str, Any] | None:
        """What has changed since the last call; None where nothing has.

        ``names`` are new workers, in order; ``columns`` has, for each column with any news, the values of the workers
        whose indices are ``rows``; ``points`` is the newest point of each curve that has grown.
        """
        with self.lock:
            if self.view.version == self._version:
                return None
            self._version = self.view.version
            self._number += 1
            names = [worker.name for worker in list(self.view.workers.values())[len(self._indices) :]]
            for name in list(self.view.workers)[len(self._indices) :]:
                self._indices[name] = len(self._indices)
            rows, columns = self._take_columns()
            return {
                "kind": "diff",
                "number": self._number,
                "now": self.view.clock(),
                "run": self._take_head(),
                "names": names,
                "rows": rows,
                "columns": columns,
                "points": self._take_points(),
            }

    def snapshot(self) -> dict[str, Any]:
        """Everything, for a browser that knows nothing yet. Diffs go on as if it had not been asked for."""
        with self.lock:
            workers = list(self.view.workers.values())
            columns = zip(*map(row_of, workers), strict=True) if workers else ([] for _ in COLUMNS)
            return {
                "kind": "snapshot",
                "number": self._number,
                "now": self.view.clock(),
                "run": {**head_of(self.view), **aggregates_of(self.view)},
                "names": [worker.name for worker in workers],
                "columns": {title: list(values) for title, values in zip(COLUMNS, columns, strict=True)},
                "curves": {name: [_plain(point) for point in curve.points] for name, curve in self.view.curves.items()},
            }

    def _take_columns(self) -> tuple[list[int], dict[str, tuple[Any, ...]]]:
        workers, sent = self.view.workers, self._rows
        news = {name: row for name in self._changed if (row := row_of(workers[name])) != sent.get(name)}
        self._changed.clear()
        if not news:
            return [], {}
        before, after = zip(*[sent.get(name, _NEW) for name in news], strict=True), zip(*news.values(), strict=True)
        columns = {title: new for title, old, new in zip(COLUMNS, before, after, strict=True) if new != old}
        sent.update(news)
        return [self._indices[name] for name in news], columns

    def _take_head(self) -> dict[str, Any]:
        now = self.view.clock()
        if now - self._aggregated_at >= AGGREGATES_SECONDS or self.view.ended is not None:
            self._aggregates, self._aggregated_at = aggregates_of(self.view), now
        head = {**head_of(self.view), **self._aggregates}
        news = {key: value for key, value in head.items() if self._head.get(key, _NEW) != value}
        self._head = head
        return news

    def _take_points(self) -> dict[str, list[float | None]]:
        news = {}
        for name, curve in self.view.curves.items():
            if curve.last is not None and curve.last is not self._points.get(name):
                self._points[name] = curve.last
                news[name] = _plain(curve.last)
        return news


_NEW: Row = (object(),) * len(COLUMNS)  # equals nothing, so that everything of a new worker is news


def row_of(worker: WorkerView) -> Row:
    """The values of ``COLUMNS`` for one worker."""
    leading, rate = worker.leading, worker.rate
    return (
        worker.status, worker.phase, worker.phase_since, worker.address,
        worker.cpu, worker.memory, worker.gpu_use, worker.ranks,
        leading.epoch, leading.epochs, leading.step, leading.steps,
        None if rate is None else round(rate), worker.sent, worker.last_line,
        worker.exit_code, worker.signal, worker.reason,
    )  # fmt: skip


def head_of(view: RunView) -> dict[str, Any]:
    """What there is to say about the run as a whole, less what takes a look at every worker."""
    return {
        "name": view.name,
        "run": view.run,
        "strategy": view.strategy,
        "status": view.status,
        "phase": view.phase,
        "started": view.started,
        "ended": view.ended,
        "moved": view.moved,
        "reason": view.reason,
        "advice": view.advice,
        "culprit": view.culprit,
        "exception": view.exception,
        "notes": list(view.notes),
        "memory_limit": view.memory_limit,
        "command": repeat_command(view.job),
    }


def aggregates_of(view: RunView) -> dict[str, Any]:
    """What takes a look at every worker: the slowest one, the time left and the speed of all together."""
    slowest = view.slowest_worker
    fraction = slowest.leading.fraction if slowest else None
    told = [worker.leading for worker in view.workers.values() if worker.leading.has_begun]
    return {
        "slowest": slowest.name if slowest else "",
        "uneven": any(progress.fraction != fraction for progress in told),
        "fraction": fraction,
        "left": slowest.leading.time_left(view.clock()) if slowest and view.status == "running" else None,
        "rate": view.rate,
        "efficiency": view.efficiency,
    }


def _plain(point: Point) -> list[float | None]:
    """A point as JSON has it, which knows no NaN: where it is on the way, and its value."""
    where = point.time if point.step is None else point.step
    return [where, point.value if math.isfinite(point.value) else None]
