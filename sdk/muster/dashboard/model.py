"""The current state of a run, as dashboards show it: a view that is computed from the run's events alone.

``fold(view, event)`` takes O(1) time, and the view's size is bounded by the number of workers, however long the run.
Times are seconds since the epoch, as in the events. All text in the view is safe for a terminal; for HTML it must still
be escaped.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster import events
from muster.dashboard.attempts import MOST, AttemptView
from muster.dashboard.curve import Curve, Point
from muster.dashboard.progress import ProcessProgress
from muster.dashboard.worker import FINAL, WorkerView
from muster.events import Event, EventKind
from muster.failure.causes import tells_of_another
from muster.job import SERVER
from muster.text.cleaning import clean
from muster.text.reading import is_finite
from muster.text.shown import duration
from muster.training.stages import RUNNING

__all__ = ["FINAL", "RunView", "WorkerView", "fold"]

MAX_METRICS = 32  # further ones are left out: a script may invent a new name at every step
MAX_NOTES = 8
MAX_WAITS = 3  # different reasons for which workers wait, of those that are shown above them
MAX_GPUS = 16
MAX_STAGE = 60  # characters
MAX_STAGES = 32  # different stages of one run
SERVING = "serving"  # the stage of a server that has begun to listen


@dataclass
class RunView:
    """The state of a whole run.

    Attributes:
        status: running, succeeded, failed, stopped or lost.
        phase: launching, connecting, starting, training, ending; ended.
        launcher: the program that starts the ranks in this phase; empty if there is none.
        moved: time of the last event other than ``usage``; if that is long ago, the run may be stuck.
        job: description of the job, from the event ``run_requested``.
        memory_limit: bytes of memory that each worker may use.
        ps_memory_limit: bytes of memory that each parameter server may use.
        exception: the traceback of the first script that raised an exception of its own; until there is one, of the
            first script that raised because another process had failed.
        exception_is_echo: whether ``exception`` is of the latter kind.
        attempts: the attempts so far, the newest of them if there are very many.
        single_rate: examples per second of the same job on a single worker, from an earlier run.
        told: the worker whose rank the metrics come from, and the progress of that rank.
        has_stepped: whether any process has begun to train.
        stages: the number of workers at each stage before their first step.
        silent: names of the workers that are silent, in the order in which they became so.
        version: the number of events so far, by which dashboards notice changes.
    """

    clock: Callable[[], float] = time.time
    name: str = ""
    strategy: str = ""
    status: str = "running"
    phase: str = "launching"
    phase_since: float = 0.0
    launcher: str = ""
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
    attempts: deque[AttemptView] = field(default_factory=lambda: deque(maxlen=MOST))
    workers: dict[str, WorkerView] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    told: tuple[str, ProcessProgress] | None = None
    has_stepped: bool = False
    stages: Counter[str] = field(default_factory=Counter)
    silent: dict[str, None] = field(default_factory=dict)
    version: int = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the run was requested or, once it has ended, that it took."""
        if self.started is None:
            return 0.0
        return max((self.ended if self.ended is not None else self.clock()) - self.started, 0.0)

    @property
    def sent(self) -> float | None:
        """Fraction of the project that the workers have received, 0 to 1; None before and after the transfer."""
        if self.phase != "starting" or self.status != "running":
            return None
        expected = sum(worker.expected for worker in self.workers.values())
        received = sum(worker.received for worker in self.workers.values())
        return received / expected if received < expected else None

    @property
    def doing(self) -> str:
        """Phase of the run or, from the phase ``training`` to the first step, the stage that most workers are at."""
        if self.sent is not None:
            return "sending the project"
        if self.launcher:
            return f"{self.launcher} starts the ranks"
        if self.phase != "training" or self.has_stepped:
            return self.phase
        if self.stages[SERVING] == len(self.workers) > 0:
            return SERVING
        return next((stage for stage, count in self.stages.most_common() if count and stage != SERVING), self.phase)

    @property
    def remarks(self) -> list[str]:
        """The notes and, while workers are on their way, what these wait for now, each text once; and who is silent."""
        if self.status != "running":
            return [*self.notes]
        waits = dict.fromkeys(worker.waits_for for worker in self.workers.values() if worker.waits_for)
        return [*self.notes, *[*waits][:MAX_WAITS], *self.silences]

    @property
    def silences(self) -> list[str]:
        """Texts about the workers that do not go on: on the first of them, and on how many more there are."""
        named = [
            f"{self.workers[name].name} {self.silence_of(self.workers[name])}" for name in [*self.silent][:MAX_WAITS]
        ]
        more = len(self.silent) - len(named)
        return [*named, f"So it is with {more} more."] if more else named

    def silence_of(self, worker: WorkerView) -> str:
        """Return what is the matter with a worker that does not go on, and for how long; empty if it goes on."""
        if worker.silent is None:
            return ""
        text, since, why = worker.silent
        return f"{text} for {duration(max(self.clock() - since, 0.0))}. {why}".rstrip()

    def news_of(self, worker: WorkerView) -> str:
        """Return why a worker is silent, why it failed or what it waits for, or else the last line of its output."""
        return self.silence_of(worker) or worker.news

    @property
    def other_remarks(self) -> list[str]:
        """The remarks without those that say what ended an attempt, for views with a table of attempts."""
        said = {attempt.reason for attempt in self.attempts}
        return [remark for remark in self.remarks if remark not in said]

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric."""
        return {name: curve.last.value for name, curve in self.curves.items() if curve.last is not None}

    @property
    def slowest_worker(self) -> WorkerView | None:
        """The worker with the process that is furthest behind, of those that have reported progress."""
        told = [worker for worker in self.workers.values() if worker.slowest.has_begun]
        return min(told, key=lambda worker: worker.slowest.order(), default=None)

    @property
    def slowest(self) -> ProcessProgress | None:
        """The progress of the process that is furthest behind."""
        worker = self.slowest_worker
        return worker.slowest if worker else None

    @property
    def fraction(self) -> float | None:
        """Fraction of the work that the slowest process has done, 0 to 1, and 1 once the run has succeeded.

        While the project is sent to the workers, the fraction that has arrived; None if unknown.
        """
        if self.sent is not None:
            return self.sent
        fraction = self.slowest.fraction if self.slowest else None
        return 1.0 if fraction is not None and self.status == "succeeded" else fraction

    @property
    def position(self) -> list[str]:
        """Percentage and position of the slowest process, in words.

        If the run succeeded though that process never reported its last step, the last position that it reported.
        """
        slowest = self.slowest
        if self.status == "succeeded" and slowest and not slowest.has_told_its_end:
            return [f"last told: {slowest.position}"]
        part = [] if self.fraction is None else [f"{100 * self.fraction:.0f} %"]
        return [*part, slowest.position] if slowest and self.sent is None else part

    @property
    def laggard(self) -> WorkerView | None:
        """The slowest worker if the run is under way and another process is well ahead of it, else None."""
        slowest = self.slowest_worker
        others = (progress for worker in self.workers.values() for progress in worker.told)
        if slowest is None or self.status != "running":
            return None
        return slowest if any(slowest.slowest.is_well_behind(other) for other in others) else None

    def limit_of(self, worker: WorkerView) -> int | None:
        """Return the bytes of memory that a worker may use; None if unknown."""
        return self.ps_memory_limit if worker.role == SERVER else self.memory_limit

    @property
    def tellers(self) -> str:
        """The number of ranks that have reported progress, out of all ranks of the same roles, in words.

        Empty if all have reported progress, and once the run has succeeded.
        """
        roles = {worker.role for worker in self.workers.values() if worker.slowest.has_begun}
        alike = [worker for worker in self.workers.values() if worker.role in roles]
        told = sum(len(worker.told) for worker in alike)
        expected = sum(max(len(worker.progress), 1) for worker in alike)
        noun = "workers" if expected == len(alike) else "ranks"
        return f"told by {told} of {expected} {noun}" if self.status != "succeeded" and told < expected else ""

    @property
    def time_left(self) -> float | None:
        """Estimated seconds until the slowest process is done, at its average pace; None if unknown."""
        slowest = self.slowest
        goes_on = self.status == "running" and self.phase != "ending"
        return slowest.time_left(self.clock()) if slowest and goes_on else None

    @property
    def efficiency(self) -> float | None:
        """Scaling efficiency, 0 to 1: the rate per worker divided by ``single_rate``; None if unknown."""
        if not self.single_rate:
            return None
        rates = [worker.rate for worker in self.workers.values() if worker.rate is not None]
        return sum(rates) / (len(rates) * self.single_rate) if len(rates) > 1 else None

    @property
    def rate(self) -> float | None:
        """Examples per second of all workers together; None if unknown."""
        rates = [worker.rate for worker in self.workers.values() if worker.rate is not None]
        return sum(rates) if rates else None

    @property
    def cause(self) -> str:
        """Reason why the run did not succeed, preceded by the culprit's name unless the reason contains it."""
        return f"{self.culprit}: {self.reason}" if self.culprit and self.culprit not in self.reason else self.reason

    @property
    def logs_command(self) -> str:
        """Command that prints the workers' output; empty if the run has no workers yet."""
        return f"muster logs {self.run_id}" if self.run_id and self.workers else ""

    @property
    def census(self) -> str:
        """Number of workers of each status, in words."""
        return ", ".join(f"{count} {status}" for status, count in sorted(self.counts().items()))

    def has_done_its_part(self, worker: WorkerView) -> bool:
        """Return whether a worker is a server that was stopped because all other workers had succeeded."""
        others = {other.status for other in self.workers.values() if not other.listens or other.status != "stopped"}
        return worker.listens and worker.status == "stopped" and others == {"succeeded"}

    def in_order(self) -> list[WorkerView]:
        """Return the workers in natural order, after the culprit and the other failed workers."""
        return sorted(
            self.workers.values(),
            key=lambda worker: (worker.name != self.culprit, not worker.has_failed, worker.natural),
        )

    def phase_of(self, worker: WorkerView) -> str:
        """Return a worker's stage or phase and how long it has lasted, or how the worker ended."""
        if worker.phase == "done":
            return worker.end
        now = self.ended if self.ended is not None else self.clock()
        return f"{worker.doing} {duration(max(now - worker.doing_since, 0.0))}"

    def counts(self) -> dict[str, int]:
        """Return the number of workers of each status."""
        counts: dict[str, int] = {}
        for worker in self.workers.values():
            counts[worker.status] = counts.get(worker.status, 0) + 1
        return counts


def fold(view: RunView, event: Event) -> None:
    """Update ``view`` with one event. An event of an unknown kind changes only the version and the times."""
    view.version += 1
    if view.started is None:
        view.started = view.phase_since = event.time
        view.attempts.append(AttemptView(1, event.time))
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
    view.run_id = clean(data.run_id or data.run or "")
    view.job = job
    view.name = clean(job.get("name") or view.name)
    view.strategy = clean(data.strategy or job.get("strategy") or "")
    view.memory_limit = _memory_of(job.get("resources"))
    view.ps_memory_limit = _memory_of(job.get("ps_resources")) or view.memory_limit


def _memory_of(resources: Any) -> int | None:
    memory = _finite(resources.get("memory")) if isinstance(resources, dict) else None
    size = _finite(memory * 1e9) if memory else None
    return int(size) if size else None


def _run_phase(view: RunView, event: Event, data: events.RunPhase) -> None:
    phase = clean(data.phase or view.phase)
    if phase != view.phase:
        view.phase, view.phase_since = phase, event.time
        view.launcher = clean(data.launcher or "")


def _run_attempt(view: RunView, event: Event, data: events.RunAttempt) -> None:
    """Reset the view for another attempt, in which all workers are launched and all ranks started again."""
    reason = clean(data.reason)
    view.notes.append(reason)
    _end_attempt(view, event.time, clean(data.cause or data.reason), reason)
    view.attempts.append(AttemptView(data.attempt, event.time))
    view.exception = view.culprit = ""
    view.has_stepped, view.told = False, None
    view.stages.clear()
    view.silent.clear()
    for name, worker in view.workers.items():  # replaced in place, so that they keep their order
        view.workers[name] = WorkerView(worker.name, phase_since=event.time)


def _end_attempt(view: RunView, when: float, ended_by: str, reason: str = "") -> None:
    attempt = view.attempts[-1]
    attempt.ended, attempt.ended_by, attempt.reason = when, ended_by, reason


def _run_ended(view: RunView, event: Event, data: events.RunEnded) -> None:
    view.status = clean(data.status)
    _end_attempt(view, event.time, view.status)
    view.phase, view.phase_since, view.ended = "ended", event.time, event.time
    view.reason, view.advice = clean(data.reason or ""), clean(data.advice or "")
    view.culprit, view.error = clean(event.worker or ""), clean(data.error or "")
    for worker in view.workers.values():
        worker.silent = None
    view.silent.clear()
    if view.status == "succeeded":  # workers that Muster stopped then, such as servers, have done their part
        for worker in view.workers.values():
            if worker.status == "stopped" and "ready" in worker.entered:
                worker.status = "ended"
    else:  # a lost run has no session that could report how the workers ended, and one stopped early does not ask
        for worker in view.workers.values():
            if worker.status not in FINAL:
                worker.status = "lost" if view.status == "lost" else "stopped"
                worker.enter("done", event.time)


def _note(view: RunView, event: Event, data: events.Note) -> None:
    view.notes.append(clean(data.text))
    if data.lost is not None:
        view.attempts[-1].lost = data.lost


def _worker_state(view: RunView, worker: WorkerView, when: float, data: events.WorkerState) -> None:
    if worker.status not in FINAL and data.status:
        worker.status = clean(data.status)
    if data.reason is not None or (worker.is_coming and worker.status in FINAL):
        worker.reason = clean(data.reason or "")
    worker.enter("done" if worker.status in FINAL else "scheduled", when)
    if worker.status in FINAL:
        _silence(view, worker, when, events.Silence())
    worker.address = clean(data.address or worker.address)
    _take_end(worker, data)


def _silence(view: RunView, worker: WorkerView, when: float, data: events.Silence) -> None:
    since = _finite(data.since)
    if since is None:
        worker.silent = None
        view.silent.pop(worker.name, None)
    else:
        worker.silent = (clean(data.text or ""), since, clean(data.why or ""))
        view.silent[worker.name] = None


def _worker_ready(view: RunView, worker: WorkerView, when: float, data: events.WorkerReady) -> None:
    worker.address = clean(data.host or worker.address)
    worker.gpus = tuple(clean(gpu) for gpu in data.gpus[:MAX_GPUS])
    worker.reason = ""  # it was the reason for waiting
    worker.enter("connected", when)


def _process_started(view: RunView, worker: WorkerView, when: float, data: events.ProcessStarted) -> None:
    if data.rank is not None:
        worker.of_rank(data.rank)
    elif worker.phase == "done":
        worker.begin_again(when)
    worker.enter("ready", when)


def _process_exited(view: RunView, worker: WorkerView, when: float, data: events.ProcessExited) -> None:
    _take_end(worker, data)
    worker.take_end(_end_of(data))
    worker.enter("done", when)


def _end_of(data: events.ProcessExited) -> str:
    """Return the end of a process in words; empty if Muster stopped it, as it does after others have failed."""
    if data.reason == "memory":
        return "out of memory"
    if data.reason == "stopped":
        return ""
    return f"signal {data.signal}" if data.signal else "" if data.exit_code is None else f"exit {data.exit_code}"


def _take_end(worker: WorkerView, data: events.WorkerState | events.ProcessExited) -> None:
    worker.exit_code = data.exit_code if data.exit_code is not None else worker.exit_code
    worker.signal = data.signal if data.signal is not None else worker.signal


def _stage(view: RunView, worker: WorkerView, when: float, data: events.Stage) -> None:
    rank, stage = data.rank, _one_line(data.stage)[:MAX_STAGE]
    if worker.listens and stage == RUNNING:  # the stage of any script of which nothing more is known
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
    if data.reached is not None:
        view.attempts[-1].came_to(data.reached)
    worker.enter("training", when)
    view.has_stepped = True
    source = (-1 if data.rank is None else data.rank, worker.role != "chief", worker.index)
    for chosen, value in data.metrics.items():
        name = _one_line(chosen)
        if name not in view.curves and len(view.curves) >= MAX_METRICS:
            continue
        curve = view.curves.setdefault(name, Curve())
        if curve.add(source, Point(when, progress.total_step, float(value))):
            view.told = (worker.name, progress)


def _exception(view: RunView, worker: WorkerView, when: float, data: events.ScriptRaised) -> None:
    is_echo = tells_of_another(data.type or "", data.message or "")
    if not view.exception or (view.exception_is_echo and not is_echo):
        view.exception, view.exception_is_echo = clean(data.traceback or ""), is_echo
        view.culprit = worker.name
    worker.reason = worker.reason or clean(f"{data.type}: {data.message}")
    worker.take_end(clean(data.type or "")[:MAX_STAGE])
    if worker.status not in FINAL:
        worker.status = "failed"  # final, even if Muster stops the worker with the others before it exits by itself


def _one_line(name: str) -> str:
    """Return a name that a script has chosen, cleaned, as it stands among others in a line."""
    return " ".join(clean(name).split())


def _finite(value: object) -> float | None:
    """Return ``value`` if it is a finite number, else None: workers may report anything."""
    return value if is_finite(value) else None


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
    "silence": _silence,
}
