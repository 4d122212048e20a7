"""RUN and WORKER, as they are given to commands."""

from __future__ import annotations

import contextlib

from muster.errors import JobError, RunNotFound
from muster.records import lookup
from muster.records.record import LAUNCHER_LOG
from muster.records.runs import Run


def opened(run: str, command: str) -> Run:
    """Open a run. A worker that stands in its place is refused with the command that is meant.

    Raises:
        RunNotFound: there is none of that name.
    """
    try:
        return lookup.open_run(run)
    except RunNotFound as error:
        with contextlib.suppress(RunNotFound):
            if run == LAUNCHER_LOG or lookup.open_run("last").worker_of(run):
                error.advice = f"muster {command} last {run}"
        raise


def under_way(run: str, command: str) -> Run:
    """Open a run that has not ended, as ``opened`` does.

    Raises:
        JobError: it has ended.
    """
    found = opened(run, command)
    if found.status != "running":
        raise JobError(f"{found.run_id} has ended: {found.status}.", advice="its workers have ended with it")
    return found
