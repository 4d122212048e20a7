"""Events as a cluster emits them, for views of known content. Times are seconds since the run was asked for."""

from __future__ import annotations

from typing import Any

from muster.dashboard.fold import fold
from muster.dashboard.run import RunView
from muster.events import Event
from muster.records.folders import make_run_folder
from muster.records.journal import Journal
from muster.records.runs import Run

START = 1_800_000_000.0


def record(events: list[Event]) -> Run:
    """Return a recorded run with these events."""
    run = Run(make_run_folder("mnist"))
    journal = Journal(run.run_dir / "events.jsonl")
    for event in events:
        journal(event)
    journal.close()
    return run


def at(seconds: float, kind: str, worker: str | None = None, **data: Any) -> Event:
    return Event(kind, worker, data, START + seconds)


def view_of(events: list[Event], now: float | None = None) -> RunView:
    """The view after ``events``, seen at ``now`` (at the last event by default)."""
    seen_at = events[-1].time if now is None else START + now
    view = RunView(clock=lambda: seen_at)
    for event in events:
        fold(view, event)
    return view


def starting(n_workers: int = 3) -> list[Event]:
    job = {"name": "mnist", "strategy": "horovod", "resources": {"cpu": 1, "memory": 2, "gpu": 0}}
    events = [at(0, "run_requested", job=job), at(0, "run_phase", phase="launching")]
    return events + [at(0.1, "worker_state", f"worker-{index}", status="starting") for index in range(n_workers)]


def training(n_workers: int = 3, seconds: int = 20) -> list[Event]:
    """Five epochs of ten seconds; each worker takes 100 examples a second and sends 0.6 MB."""
    events = [*starting(n_workers), at(1, "run_phase", phase="connecting")]
    for index in range(n_workers):
        name = f"worker-{index}"
        events += [
            at(1, "worker_ready", name, host=f"10.0.0.{index}", ports=[], cores=2, gpus=[], pid=1),
            at(1, "worker_state", name, status="running", address=f"10.0.0.{index}"),
            at(2, "process_started", name, pid=2, rank=index),
        ]
    events.append(at(2, "run_phase", phase="training"))
    for second in range(1, seconds + 1):
        for index in range(n_workers):
            name, epoch = f"worker-{index}", 1 + (second - 1) // 10
            metrics = {"loss": 2 / second + index, "accuracy": 1 - 1 / second}
            events += [
                at(2 + second, "progress", name, rank=index, step=1 + (second - 1) % 10, steps=10, epoch=epoch,
                   epochs=5, examples=100 * second, bytes_sent=600_000 * second, metrics=metrics),
                at(2 + second, "output", name, text=f"epoch {epoch}\n"),
                at(2 + second, "usage", name, cpu=0.93, memory=612_000_000),
            ]  # fmt: skip
    return events


def failing(n_workers: int = 3) -> list[Event]:
    """Worker 1 raises; the others are stopped for it."""
    events = training(n_workers)
    events += [
        at(23, "exception", "worker-1", rank=1, type="ValueError", message="no data", traceback="Traceback: no data"),
        at(23, "process_exited", "worker-1", pid=2, rank=1, exit_code=1, signal=None, reason=None),
        at(23, "worker_state", "worker-1", status="failed", exit_code=1),
    ]
    others = [f"worker-{index}" for index in range(n_workers) if index != 1]
    events += [at(24, "worker_state", name, status="stopped") for name in others]
    ended = {
        "status": "failed",
        "error": "ScriptFailed",
        "reason": "rank 1 (worker-1) failed first: ValueError: no data",
    }
    return [*events, at(25, "run_ended", "worker-1", **ended, advice="look at the shard")]
