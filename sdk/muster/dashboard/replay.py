"""The last view of a recorded run, rebuilt from its events and the ends of its logs."""

from __future__ import annotations

from muster.dashboard.fold import fold
from muster.dashboard.run import RunView
from muster.events import Event
from muster.events.data import RunEnded
from muster.records.record import LOST_ADVICE, LOST_REASON
from muster.records.runs import Run

LOG_LINES = 1000  # so that a crash's report is among them from its beginning


def untold_end(run: Run) -> Event:
    """Return the event for the end of a run whose journal has none, such as a lost run."""
    result = run.result or {"reason": f"{LOST_REASON[0].upper()}{LOST_REASON[1:]}.", "advice": LOST_ADVICE}
    data = RunEnded(run.status, *(result.get(name) for name in ("reason", "advice", "error")))
    return Event.of(data, result.get("worker"), run.started_at + run.seconds)


def replay(run: Run) -> RunView:
    """Return the view that a dashboard showed last, or would have shown."""
    now = run.started_at + run.seconds
    view = RunView(clock=lambda: now)
    for event in run.events():
        fold(view, event)
    view.name = view.name or run.name
    if view.ended is None and run.status != "running":
        fold(view, untold_end(run))
    known = set(run.worker_names)
    for worker in view.workers.values():
        if worker.name in known:
            lines = run.log_end(worker.name, LOG_LINES)  # events do not record what is printed
            worker.print("\n".join(lines) + "\n")
    return view
