"""State of a run right now, as dashboards show it: a pure fold of its events into a view.

``fold(view, event)`` takes O(1) time, and the view's size is bounded by the number of workers, however long the run.
Times are seconds since the epoch, as in the events. All text in the view is safe for a terminal; for HTML it must still
be escaped.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.dashboard.curve import Curve, Point
from muster.dashboard.progress import Progress
from muster.dashboard.text import duration
from muster.dashboard.worker import FINAL, WorkerView
from muster.events import Event, EventKind
from muster.text.cleaning import clean

__all__ = ["FINAL", "RunView", "WorkerView", "fold"]

MAX_METRICS = 32  # those beyond are left out: a script may invent a new name at every step
MAX_NOTES = 8
MAX_GPUS = 16
MAX_STAGE = 60  # characters
MAX_STAGES = 32  # different ones


@dataclass
class RunView:
    """A whole run. ``version`` grows with every event, so that a painter knows whether there is news.

    Attributes:
        status: running, succeeded, failed or stopped.
        phase: launching, connecting, starting, training, ending; ended.
        moved: when anything but a measurement was last heard of; a run that is stuck has this far behind it.
        job: what was asked for, as ``run_requested`` has it.
        memory_limit: what each worker may use, in bytes.
        exception: the traceback of the script that raised first.
        single_rate: examples per second of one worker alone, where an earlier run has told.
        has_stepped: whether a process has told of a step.
        stages: how many workers are at each stage before their first step.
    """

    clock: Callable[[], float] = time.time
    name: str = ""
    strategy: str = ""
    status: str = "running"
    phase: str = "launching"
    phase_since: float = 0.0
    started: float | None = None
    ended: float | None = None
    moved: float = 0.0
    run: str = ""
    job: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    advice: str = ""
    culprit: str = ""
    error: str = ""
    exception: str = ""
    memory_limit: int | None = None
    single_rate: float | None = None
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NOTES))
    workers: dict[str, WorkerView] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    has_stepped: bool = False
    stages: Counter[str] = field(default_factory=Counter)
    version: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the run was asked for, or that it took."""
        if self.started is None:
            return 0.0
        return max((self.ended if self.ended is not None else self.clock()) - self.started, 0.0)

    @property
    def doing(self) -> str:
        """Phase of the run, or the stage of most workers as long as none has told of a step."""
        if self.phase != "training" or self.has_stepped:
            return self.phase
        return next((stage for stage, count in self.stages.most_common(1) if count), self.phase)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric."""
        return {name: curve.last.value for name, curve in self.curves.items() if curve.last is not None}

    @property
    def slowest_worker(self) -> WorkerView | None:
        """The worker that is furthest back, of those that have told how far they are."""
        told = [worker for worker in self.workers.values() if worker.leading.has_begun]
        return min(told, key=lambda worker: worker.leading.fraction or 0.0, default=None)

    @property
    def slowest(self) -> Progress | None:
        """The progress of the worker that is furthest back."""
        worker = self.slowest_worker
        return worker.leading if worker else None

    @property
    def fraction(self) -> float | None:
        """The part of its work that the slowest worker has done, 0 to 1; all of it once the run has succeeded."""
        fraction = self.slowest.fraction if self.slowest else None
        return 1.0 if fraction is not None and self.status == "succeeded" else fraction

    @property
    def time_left(self) -> float | None:
        """Seconds until the worker that is furthest back is done, if it goes on like this; None where unknown."""
        slowest = self.slowest
        return slowest.time_left(self.clock()) if slowest and self.status == "running" else None

    @property
    def efficiency(self) -> float | None:
        """Scaling efficiency, 0 to 1: the speed reached, by that of as many single workers; None where unknown."""
        if not self.single_rate:
            return None
        rates = [worker.rate for worker in self.workers.values() if worker.rate is not None]
        return sum(rates) / (len(rates) * self.single_rate) if len(rates) > 1 else None

    @property
    def rate(self) -> float | None:
        """Examples per second, of all workers together."""
        rates = [worker.rate for worker in self.workers.values() if worker.rate is not None]
        return sum(rates) if rates else None

    @property
    def cause(self) -> str:
        """Reason why the run did not succeed, with the worker that it began with in front where it names none."""
        return f"{self.culprit}: {self.reason}" if self.culprit and self.culprit not in self.reason else self.reason

    @property
    def logs_command(self) -> str:
        """Command that prints the workers' output; empty where there is none."""
        return f"muster logs {self.run}" if self.run and self.workers else ""

    @property
    def census(self) -> str:
        """Number of workers of each status, in words."""
        return ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))

    def in_order(self) -> list[WorkerView]:
        """The workers as people count, the culprit and then other failed ones first."""
        return sorted(
            self.workers.values(),
            key=lambda worker: (worker.name != self.culprit, not worker.has_failed, worker.natural),
        )

    def phase_of(self, worker: WorkerView) -> str:
        """Return a worker's phase and how long it has lasted, or how it ended."""
        if worker.phase == "done":
            return worker.ending
        now = self.ended if self.ended is not None else self.clock()
        return f"{worker.doing} {duration(max(now - worker.doing_since, 0.0))}"

    def counts(self) -> dict[str, int]:
        """Return the number of workers of each status."""
        counts: dict[str, int] = {}
        for worker in self.workers.values():
            counts[worker.status] = counts.get(worker.status, 0) + 1
        return counts


def fold(view: RunView, event: Event) -> None:
    """Bring ``view`` up to date with one event. Kinds that it does not know change nothing."""
    view.version += 1
    if view.started is None:
        view.started = view.phase_since = event.time
    if event.kind != EventKind.USAGE:
        view.moved = event.time
    if event.kind in _OF_RUN:
        _OF_RUN[event.kind](view, event)
    elif event.kind in _OF_WORKER and event.worker is not None:
        worker = view.workers.get(event.worker)
        if worker is None:
            worker = view.workers[event.worker] = WorkerView(clean(event.worker), phase_since=event.time)
        _OF_WORKER[event.kind](view, worker, event)


def _run_requested(view: RunView, event: Event) -> None:
    job = event.data.get("job")
    job = job if isinstance(job, dict) else {}
    view.started = event.time
    view.run = clean(event.data.get("run") or "")
    view.job = job
    view.name = clean(job.get("name") or view.name)
    view.strategy = clean(event.data.get("strategy") or job.get("strategy") or "")
    resources = job.get("resources")
    memory = _finite(resources.get("memory")) if isinstance(resources, dict) else None
    view.memory_limit = int(memory * 1e9) if memory else None


def _run_phase(view: RunView, event: Event) -> None:
    phase = clean(event.data.get("phase") or view.phase)
    if phase != view.phase:
        view.phase, view.phase_since = phase, event.time


def _run_ended(view: RunView, event: Event) -> None:
    view.status = clean(event.data.get("status") or "failed")
    view.phase, view.phase_since, view.ended = "ended", event.time, event.time
    view.reason, view.advice = clean(event.data.get("reason") or ""), clean(event.data.get("advice") or "")
    view.culprit, view.error = clean(event.worker or ""), clean(event.data.get("error") or "")


def _note(view: RunView, event: Event) -> None:
    view.notes.append(clean(event.data.get("text") or ""))


def _worker_state(view: RunView, worker: WorkerView, event: Event) -> None:
    data = event.data
    if worker.status not in FINAL and data.get("status"):
        worker.status = clean(data["status"])
    worker.enter("done" if worker.status in FINAL else "scheduled", event.time)
    worker.address = clean(data.get("address") or worker.address)
    worker.reason = clean(data.get("reason") or worker.reason)
    worker.exit_code = data["exit_code"] if data.get("exit_code") is not None else worker.exit_code
    worker.signal = data["signal"] if data.get("signal") is not None else worker.signal


def _worker_ready(view: RunView, worker: WorkerView, event: Event) -> None:
    worker.address = clean(event.data.get("host") or worker.address)
    gpus = event.data.get("gpus")
    worker.gpus = tuple(clean(gpu) for gpu in gpus[:MAX_GPUS]) if isinstance(gpus, (list, tuple)) else ()
    worker.enter("connected", event.time)


def _process_started(view: RunView, worker: WorkerView, event: Event) -> None:
    rank = event.data.get("rank")
    if isinstance(rank, int):
        worker.of_rank(rank)
    worker.enter("ready", event.time)


def _process_exited(view: RunView, worker: WorkerView, event: Event) -> None:
    data = event.data
    worker.exit_code = data["exit_code"] if data.get("exit_code") is not None else worker.exit_code
    worker.signal = data["signal"] if data.get("signal") is not None else worker.signal
    worker.enter("done", event.time)


def _stage(view: RunView, worker: WorkerView, event: Event) -> None:
    rank, stage = event.data.get("rank"), clean(event.data.get("stage") or "")[:MAX_STAGE]
    if rank is None or rank == min(worker.ranks, default=rank):  # the lowest rank stands for the worker
        if worker.stage:
            view.stages[worker.stage] -= 1
        if stage == "training":
            view.has_stepped = True
            worker.enter("training", event.time)
        elif stage in view.stages or len(view.stages) < MAX_STAGES:
            view.stages[stage] += 1
        else:
            stage = ""
        worker.stage, worker.stage_since = stage, event.time


def _listening(view: RunView, worker: WorkerView, event: Event) -> None:
    worker.enter("ready", event.time)


def _usage(view: RunView, worker: WorkerView, event: Event) -> None:
    worker.cpu, worker.memory = _finite(event.data.get("cpu")), _finite(event.data.get("memory"))
    worker.gpu, worker.gpu_memory = _finite(event.data.get("gpu")), _finite(event.data.get("gpu_memory"))


def _output(view: RunView, worker: WorkerView, event: Event) -> None:
    worker.print(str(event.data.get("text") or ""))


def _progress(view: RunView, worker: WorkerView, event: Event) -> None:
    rank = event.data.get("rank")
    rank = rank if isinstance(rank, int) else None
    progress = worker.of_rank(rank)
    progress.update(event.time, event.data)
    worker.enter("training", event.time)
    view.has_stepped = True
    source = (-1 if rank is None else rank, worker.role != "chief", worker.index)
    metrics = event.data.get("metrics")
    for name, value in metrics.items() if isinstance(metrics, dict) else ():
        if name not in view.curves and len(view.curves) >= MAX_METRICS:
            continue
        if isinstance(value, (int, float)):
            curve = view.curves.setdefault(clean(name), Curve())
            curve.add(source, Point(event.time, progress.total_step, float(value)))


def _exception(view: RunView, worker: WorkerView, event: Event) -> None:
    if not view.exception:
        view.exception = clean(event.data.get("traceback") or "")
        view.culprit = worker.name
    worker.reason = worker.reason or clean(f"{event.data.get('type')}: {event.data.get('message')}")
    if worker.status not in FINAL:
        worker.status = "failed"  # even if it is stopped, as the others are, before it exits by itself


def _finite(value: object) -> float | None:
    """``value`` if it is a number that can be shown, for what workers say may be anything."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


_OF_RUN: dict[str, Callable[[RunView, Event], None]] = {
    "run_requested": _run_requested,
    "run_phase": _run_phase,
    "run_ended": _run_ended,
    "note": _note,
}
_OF_WORKER: dict[str, Callable[[RunView, WorkerView, Event], None]] = {
    "worker_state": _worker_state,
    "worker_ready": _worker_ready,
    "process_started": _process_started,
    "process_exited": _process_exited,
    "stage": _stage,
    "listening": _listening,
    "usage": _usage,
    "output": _output,
    "progress": _progress,
    "exception": _exception,
}
