"""The last view of a recorded run, made anew from its events and the ends of its logs."""

from __future__ import annotations

from muster.dashboard.model import RunView, fold
from muster.records.runs import Run


def replay(run: Run) -> RunView:
    """Return the view that a dashboard showed last, or would have shown."""
    now = run.started_at + run.seconds
    view = RunView(clock=lambda: now)
    for event in run.events():
        fold(view, event)
    view.name = view.name or run.name
    if view.ended is None:
        view.status = run.status
    known = set(run.workers)
    for worker in view.workers.values():
        if worker.name in known:
            worker.print("\n".join(run.log_end(worker.name)) + "\n")  # output is not journalled, but the logs have it
    return view
