"""Recorded runs as the JSON that commands print with ``--json``. Keys may be added; those that are there stay."""

from __future__ import annotations

import json
from typing import Any

from muster.events import EventKind
from muster.records.first_step import first_step
from muster.records.runs import Run

OUTCOME = ("timings", "metrics", "exit_codes", "error", "reason", "advice", "worker")
WORKER = ("name", "status", "address", "reason", "exit_code", "signal")
PROGRESS = ("step", "steps", "epoch", "epochs")


def dump(data: Any) -> str:
    """Strict JSON, as people can read it, too."""
    return json.dumps(data, indent=2, default=str, allow_nan=False)


def summary(run: Run) -> dict[str, Any]:
    """A run in a list of runs."""
    facts = {"id": run.id, "name": run.name, "status": run.status, "strategy": run.strategy}
    return {**facts, "started_at": run.started_at, "seconds": run.seconds, "path": str(run.path)}


def outcome(run: Run) -> dict[str, Any]:
    """Return the outcome of a run, or what is known of one that still runs."""
    from muster.dashboard.replay import replay

    result = run.result or {}
    return {
        **summary(run),
        **{name: result.get(name) for name in OUTCOME},
        "notes": [str(event.data.get("text")) for event in run.events() if event.kind == EventKind.NOTE],
        "workers": [
            {
                **{name: getattr(worker, name) for name in WORKER},
                **{name: getattr(worker.leading, name) for name in PROGRESS},
            }
            for worker in replay(run).workers.values()
        ],
    }


def explanation(run: Run) -> dict[str, Any]:
    """Return what failed first in a run and why, or what its first step had to wait for."""
    facts = outcome(run)
    del facts["workers"]
    details = (run.result or {}).get("details")
    return {**facts, "details": details, "first_step": first_step(run.events()) or None, "explanation": run.explain()}
