"""Speed of a single worker, with which the speed of several is compared."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from muster.dashboard.replay import replay
from muster.events.data import RunRequested
from muster.records.lookup import list_runs
from muster.records.runs import Run

MAX_RUNS = 50  # newest recorded runs to search
SAME = ("script", "strategy", "args", "resources", "python", "slots")  # fields in which comparable jobs agree


def rate_of_one_worker(job: Mapping[str, Any]) -> float | None:
    """Return the examples per second of the newest recorded run of the same job on one worker; None without one."""
    if (job.get("n_workers") or 1) < 2 or not job.get("script"):
        return None
    for run in islice(list_runs(), MAX_RUNS):
        other = _job_of(run)
        is_alike = all(other.get(key) == job.get(key) for key in SAME)
        if is_alike and other.get("n_workers") == 1 and run.status == "succeeded":
            return replay(run).rate
    return None


def _job_of(run: Run) -> Mapping[str, Any]:
    first = next(run.events(), None)
    return first.data.job if first and isinstance(first.data, RunRequested) else {}
