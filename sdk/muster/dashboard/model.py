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

from muster import events
from muster.dashboard.curve import Curve, Point
from muster.dashboard.progress import ProcessProgress
from muster.dashboard.text import duration
from muster.dashboard.worker import FINAL, GOOD_END, WorkerView
from muster.events import Event, EventKind
from muster.failure.causes import tells_of_another
from muster.job import SERVER
from muster.text.cleaning import clean
from muster.training.stages import RUNNING

__all__ = ["FINAL", "RunView", "WorkerView", "fold"]

MAX_METRICS = 32  # those beyond are left out: a script may invent a new name at every step
MAX_NOTES = 8
MAX_GPUS = 16
MAX_STAGE = 60  # characters
MAX_STAGES = 32  # different ones
SERVING = "serving"  # the stage of a process that listens


@dataclass
class RunView:
    """A whole run. ``version`` grows with every event, so that a painter knows whether there is news.

    Attributes:
        status: running, succeeded, failed or stopped.
        phase: launching, connecting, starting, training, ending; ended.
        moved: when anything but a measurement was last heard of; a run that is stuck has this far behind it.
        job: what was asked for, as ``run_requested`` has it.
        memory_limit: what each worker may use, in bytes.
        ps_memory_limit: what each parameter server may use.
        exception: the traceback of the script that raised first, but for one that tells of another's failure.
        exception_is_echo: whether it is one of these all the same, as there is no other yet.
        single_rate: examples per second of one worker alone, where an earlier run has told.
        told: the worker, and the progress of its rank, that the metrics come from.
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
    run_id: str = ""
    job: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    advice: str = ""
    culprit: str = ""
    error: str = ""
    exception: str = ""
    exception_is_echo: bool = False
    memory_limit: int | None = None
    ps_memory_limit: int | None = None
    single_rate: float | None = None
    notes: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_NOTES))
    workers: dict[str, WorkerView] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    told: tuple[str, ProcessProgress] | None = None
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
    def sent(self) -> float | None:
        """The part of the project that has come to the workers, 0 to 1; None before and after."""
        if self.phase != "starting" or self.status != "running":
            return None
        expected = sum(worker.expected for worker in self.workers.values())
        received = sum(worker.received for worker in self.workers.values())
        return received / expected if received < expected else None

    @property
    def doing(self) -> str:
        """Phase of the run, or the stage of most workers as long as none has told of a step."""
        if self.sent is not None:
            return "sending the project"
        if self.phase != "training" or self.has_stepped:
            return self.phase
        if self.stages[SERVING] == len(self.workers) > 0:
            return SERVING
        return next((stage for stage, count in self.stages.most_common() if count and stage != SERVING), self.phase)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric."""
        return {name: curve.last.value for name, curve in self.curves.items() if curve.last is not None}

    @property
    def slowest_worker(self) -> WorkerView | None:
        """The worker with the process that is furthest back, of those that have told how far they are."""
        told = [worker for worker in self.workers.values() if worker.slowest.has_begun]
        return min(told, key=lambda worker: worker.slowest.order(), default=None)

    @property
    def slowest(self) -> ProcessProgress | None:
        """The progress of the process that is furthest back."""
        worker = self.slowest_worker
        return worker.slowest if worker else None

    @property
    def fraction(self) -> float | None:
        """The part of its work that the slowest process has done, 0 to 1; all of it once the run has succeeded.

        As long as the project is sent it is the part of that.
        """
        if self.sent is not None:
            return self.sent
        fraction = self.slowest.fraction if self.slowest else None
        return 1.0 if fraction is not None and self.status == "succeeded" else fraction

    @property
    def position(self) -> list[str]:
        """The part that the slowest process has done and where it is, in words; what it told last if it ended early."""
        slowest = self.slowest
        if self.status == "succeeded" and slowest and not slowest.has_told_its_end:
            return [f"last told: {slowest.position}"]
        part = [] if self.fraction is None else [f"{100 * self.fraction:.0f} %"]
        return [*part, slowest.position] if slowest and self.sent is None else part

    @property
    def laggard(self) -> WorkerView | None:
        """The slowest worker, where another one of those under way is well ahead of it."""
        slowest = self.slowest_worker
        others = (progress for worker in self.workers.values() for progress in worker.told)
        if slowest is None or self.status != "running":
            return None
        return slowest if any(slowest.slowest.is_well_behind(other) for other in others) else None

    def limit_of(self, worker: WorkerView) -> int | None:
        """Return what a worker may use, in bytes; None where that is not known."""
        return self.ps_memory_limit if worker.role == SERVER else self.memory_limit

    @property
    def tellers(self) -> str:
        """The number of ranks that have told how far they are, in words, where others like them may be anywhere.

        Empty where all have told, and once the run has succeeded.
        """
        roles = {worker.role for worker in self.workers.values() if worker.slowest.has_begun}
        alike = [worker for worker in self.workers.values() if worker.role in roles]
        told = sum(len(worker.told) for worker in alike)
        expected = sum(max(len(worker.progress), 1) for worker in alike)
        noun = "workers" if expected == len(alike) else "ranks"
        return f"told by {told} of {expected} {noun}" if self.status != "succeeded" and told < expected else ""

    @property
    def time_left(self) -> float | None:
        """Seconds until the worker that is furthest back is done, if it goes on like this; None where unknown."""
        slowest = self.slowest
        goes_on = self.status == "running" and self.phase != "ending"
        return slowest.time_left(self.clock()) if slowest and goes_on else None

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
        return f"muster logs {self.run_id}" if self.run_id and self.workers else ""

    @property
    def census(self) -> str:
        """Number of workers of each status, in words."""
        return ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))

    def has_done_its_part(self, worker: WorkerView) -> bool:
        """Return whether a server was stopped because the others have done their work."""
        others = {other.status for other in self.workers.values() if not other.listens or other.status != "stopped"}
        return worker.listens and worker.status == "stopped" and others == {"succeeded"}

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
        _OF_RUN[event.kind](view, event, event.data)
    elif event.kind in _OF_WORKER and event.worker is not None:
        worker = view.workers.get(event.worker)
        if worker is None:
            worker = view.workers[event.worker] = WorkerView(clean(event.worker), phase_since=event.time)
        _OF_WORKER[event.kind](view, worker, event.time, event.data)


def _run_requested(view: RunView, event: Event, data: events.RunRequested) -> None:
    job = data.job
    view.started = event.time
    view.run_id = clean(data.run or "")
    view.job = job
    view.name = clean(job.get("name") or view.name)
    view.strategy = clean(data.strategy or job.get("strategy") or "")
    view.memory_limit = _memory_of(job.get("resources"))
    view.ps_memory_limit = _memory_of(job.get("ps_resources")) or view.memory_limit


def _memory_of(resources: Any) -> int | None:
    memory = _finite(resources.get("memory")) if isinstance(resources, dict) else None
    return int(memory * 1e9) if memory else None


def _run_phase(view: RunView, event: Event, data: events.RunPhase) -> None:
    phase = clean(data.phase or view.phase)
    if phase != view.phase:
        view.phase, view.phase_since = phase, event.time


def _run_attempt(view: RunView, event: Event, data: events.RunAttempt) -> None:
    """All workers are launched and all ranks started again."""
    view.notes.append(clean(data.reason))
    view.exception = view.culprit = ""
    view.has_stepped, view.told = False, None
    view.stages.clear()
    for name, worker in view.workers.items():  # which keep their places in a table
        view.workers[name] = WorkerView(worker.name, phase_since=event.time)


def _run_ended(view: RunView, event: Event, data: events.RunEnded) -> None:
    view.status = clean(data.status)
    view.phase, view.phase_since, view.ended = "ended", event.time, event.time
    view.reason, view.advice = clean(data.reason or ""), clean(data.advice or "")
    view.culprit, view.error = clean(event.worker or ""), clean(data.error or "")
    if view.status == "succeeded":  # whom Muster stopped then, such as servers, has done all that it was to do
        for worker in view.workers.values():
            if worker.status == "stopped" and "ready" in worker.entered:
                worker.status = "ended"
    if view.status == "lost":  # nobody is there to tell how its workers ended
        for worker in view.workers.values():
            if worker.status not in FINAL:
                worker.status = "lost"
                worker.enter("done", event.time)


def _note(view: RunView, event: Event, data: events.Note) -> None:
    view.notes.append(clean(data.text))


def _worker_state(view: RunView, worker: WorkerView, when: float, data: events.WorkerState) -> None:
    if worker.status not in FINAL and data.status:
        worker.status = clean(data.status)
    if data.reason is not None or (worker.is_coming and worker.status in FINAL):
        worker.reason = clean(data.reason or "")
    worker.enter("done" if worker.status in FINAL else "scheduled", when)
    worker.address = clean(data.address or worker.address)
    _take_end(worker, data)


def _worker_ready(view: RunView, worker: WorkerView, when: float, data: events.WorkerReady) -> None:
    worker.address = clean(data.host or worker.address)
    worker.gpus = tuple(clean(gpu) for gpu in data.gpus[:MAX_GPUS])
    worker.reason = ""  # what it has waited for
    worker.enter("connected", when)


def _process_started(view: RunView, worker: WorkerView, when: float, data: events.ProcessStarted) -> None:
    if data.rank is not None:
        worker.of_rank(data.rank)
    elif worker.phase == "done":
        worker.begin_again(when)
    worker.enter("ready", when)


def _process_exited(view: RunView, worker: WorkerView, when: float, data: events.ProcessExited) -> None:
    _take_end(worker, data)
    if worker.end in ("", GOOD_END):
        worker.end = _end_of(data) or worker.end
    worker.enter("done", when)


def _end_of(data: events.ProcessExited) -> str:
    """The end of a process in words; empty where Muster stopped it: it does so when others have failed."""
    if data.reason == "memory":
        return "out of memory"
    if data.reason == "stopped":
        return ""
    return f"signal {data.signal}" if data.signal else "" if data.exit_code is None else f"exit {data.exit_code}"


def _take_end(worker: WorkerView, data: events.WorkerState | events.ProcessExited) -> None:
    worker.exit_code = data.exit_code if data.exit_code is not None else worker.exit_code
    worker.signal = data.signal if data.signal is not None else worker.signal


def _stage(view: RunView, worker: WorkerView, when: float, data: events.Stage) -> None:
    rank, stage = data.rank, clean(data.stage)[:MAX_STAGE]
    if worker.listens and stage == RUNNING:  # it is told so where nothing else is known
        stage = SERVING
    if rank is None or rank == min(worker.ranks, default=rank):  # the lowest rank stands for the worker
        _enter_stage(view, worker, when, stage)


def _enter_stage(view: RunView, worker: WorkerView, when: float, stage: str) -> None:
    if worker.stage:
        view.stages[worker.stage] -= 1
    if stage == "training":
        view.has_stepped = True
        worker.enter("training", when)
    elif stage in view.stages or len(view.stages) < MAX_STAGES:
        view.stages[stage] += 1
    else:
        stage = ""
    worker.stage, worker.stage_since = stage, when


def _transfer(view: RunView, worker: WorkerView, when: float, data: events.Transfer) -> None:
    worker.received, worker.expected = data.done, data.total


def _listening(view: RunView, worker: WorkerView, when: float, data: events.Listening) -> None:
    worker.enter("ready", when)
    worker.listens = True
    if worker.phase == "ready":
        _enter_stage(view, worker, when, SERVING)


def _usage(view: RunView, worker: WorkerView, when: float, data: events.Usage) -> None:
    worker.cpu, worker.memory = _finite(data.cpu), _finite(data.memory)
    worker.gpu, worker.gpu_memory = _finite(data.gpu), _finite(data.gpu_memory)


def _output(view: RunView, worker: WorkerView, when: float, data: events.Output) -> None:
    worker.print(data.text)


def _progress(view: RunView, worker: WorkerView, when: float, data: events.Progress) -> None:
    progress = worker.of_rank(data.rank)
    progress.update(when, data)
    worker.enter("training", when)
    view.has_stepped = True
    source = (-1 if data.rank is None else data.rank, worker.role != "chief", worker.index)
    for name, value in data.metrics.items():
        if name not in view.curves and len(view.curves) >= MAX_METRICS:
            continue
        curve = view.curves.setdefault(clean(name), Curve())
        if curve.add(source, Point(when, progress.total_step, float(value))):
            view.told = (worker.name, progress)


def _exception(view: RunView, worker: WorkerView, when: float, data: events.ScriptRaised) -> None:
    is_echo = tells_of_another(data.type or "", data.message or "")
    if not view.exception or (view.exception_is_echo and not is_echo):
        view.exception, view.exception_is_echo = clean(data.traceback or ""), is_echo
        view.culprit = worker.name
    worker.reason = worker.reason or clean(f"{data.type}: {data.message}")
    worker.raised = worker.raised or clean(data.type or "")[:MAX_STAGE]
    if worker.status not in FINAL:
        worker.status = "failed"  # even if it is stopped, as the others are, before it exits by itself


def _finite(value: object) -> float | None:
    """``value`` if it is a number that can be shown, for what workers say may be anything."""
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


_OF_RUN: dict[str, Callable[[RunView, Event, Any], None]] = {
    "run_requested": _run_requested,
    "run_phase": _run_phase,
    "run_attempt": _run_attempt,
    "run_ended": _run_ended,
    "note": _note,
}
_OF_WORKER: dict[str, Callable[[RunView, WorkerView, float, Any], None]] = {
    "worker_state": _worker_state,
    "worker_ready": _worker_ready,
    "process_started": _process_started,
    "process_exited": _process_exited,
    "stage": _stage,
    "listening": _listening,
    "transfer": _transfer,
    "usage": _usage,
    "output": _output,
    "progress": _progress,
    "exception": _exception,
}
