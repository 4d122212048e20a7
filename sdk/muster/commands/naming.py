"""Lookup of the run that is given to a command as RUN."""

from __future__ import annotations

import contextlib

from muster.errors import JobError, RunNotFound
from muster.records import lookup
from muster.records.record import LAUNCHER_LOG
from muster.records.runs import Run


def opened(run: str, command: str) -> Run:
    """Open the run that was given to a command.

    Raises:
        RunNotFound: there is no such run. If a worker of the last run has that name, the advice is the likely command.
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
        JobError: the run has ended.
    """
    found = opened(run, command)
    if found.status != "running":
        text = f"{found.run_id} has ended: {found.status}, and its workers with it."
        raise JobError(text, advice=f"muster explain {run}, muster logs {run}")
    return found
