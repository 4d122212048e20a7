"""Folds the events of a run into its view: ``fold(view, event)`` takes O(1) time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster import events
from muster.dashboard.attempts import AttemptView
from muster.dashboard.curve import Curve, Point
from muster.dashboard.run import SERVING, RunView
from muster.dashboard.worker import FINAL, WorkerView
from muster.events import Event, EventKind
from muster.failure.failures import tells_of_another
from muster.text.cleaning import clean
from muster.text.reading import is_finite
from muster.training.stages import RUNNING

MAX_METRICS = 32  # further ones are left out: a script may invent a new name at every step
MAX_GPUS = 16
MAX_STAGE = 60  # characters
MAX_STAGES = 32  # different stages of one run


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
    view.has_stepped, view.metrics_from = False, None
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
            view.metrics_from = (worker.name, progress)


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
