"""Lookup of recorded runs by id and name, and deletion of old ones."""

from __future__ import annotations

import difflib
import errno
import fnmatch
import logging
import os
import re
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from muster.agent.removal import remove_folder
from muster.errors import JobError, RunNotFound, without_inner_frames
from muster.options.values import plain_number, plain_text, plain_texts, whole_number
from muster.records.folders import muster_home, run_ids
from muster.records.runs import Run
from muster.records.sessions import has_begun
from muster.text.arguments import ArgumentText, Command
from muster.text.cleaning import clean
from muster.text.shown import Table, duration

logger = logging.getLogger(__name__)

STATUSES = ("running", "succeeded", "failed", "stopped", "lost")
MOST_NAMED = 5  # runs in the advice of an error
LIKE = 0.6  # similarity to the given name from which on an id is suggested
LOST_GRACE = 24 * 3600.0  # seconds that a lost run is kept: its session may live on a machine that shares this folder


class Runs(Table[Run]):
    """Recorded runs, shown as a table."""

    HEADING = ("status", "took", "strategy", "run")

    def cells(self, item: Run) -> Sequence[str]:
        """Return a run's row, as in ``muster runs``."""
        return item.status, duration(item.seconds), item.strategy, item.run_id


@without_inner_frames
def list_runs(
    limit: int | None = None, *, name: str | None = None, status: str | Collection[str] | None = None
) -> Runs:
    """Return the recorded runs, newest first; shown as a table.

    Args:
        limit: greatest number of runs; None for all.
        name: only runs of this name; ``*`` in it stands for anything.
        status: only runs of this status, or of one of several: ``"failed"``, ``["failed", "lost"]``.

    Raises:
        JobError: ``limit`` is not a number of runs, or there is no such status.
        RunNotFound: the folder of the runs cannot be read.
    """
    if limit is not None and whole_number("limit", limit) < 0:
        raise JobError(f"limit is {limit!r}; it must be a whole number.", advice="name or status choose among runs")
    plain_text("name", name)
    wanted = STATUSES if status is None else plain_texts("status", status)
    unknown = [repr(one) for one in wanted if one not in STATUSES]
    if unknown:
        raise JobError(f"There is no status {', '.join(unknown)} of runs.", advice=f"one of {', '.join(STATUSES)}")
    runs = _readable_runs()
    chosen = [
        run
        for run in sorted(runs, key=lambda run: (run.started_at, run.run_id), reverse=True)
        if (name is None or fnmatch.fnmatchcase(run.name, name)) and (status is None or run.status in wanted)
    ]
    return Runs(chosen[:limit])


def _readable_runs() -> list[Run]:
    """Return the recorded runs, but for those in folders that this user may not look into, which it warns of."""
    folder = muster_home() / "runs"
    try:
        ids = run_ids()
    except OSError as error:
        raise RunNotFound(
            f"The runs in {folder} cannot be read: {error.strerror}.", advice="MUSTER_HOME= a folder of your own"
        ) from error
    runs = [Run(folder / run_id) for run_id in ids if _may_be_entered(folder / run_id)]
    if len(runs) < len(ids):
        logger.warning("%s: %d runs there cannot be read: %s", folder, len(ids) - len(runs), os.strerror(errno.EACCES))
    return runs


def _may_be_entered(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK, effective_ids=True)


@without_inner_frames
def open_run(name: str = "last") -> Run:
    """Return the run with that id, beginning of an id, or name, or the ``last`` run.

    The last one is the newest that this session has begun; if it has begun none, the newest of all. The four characters
    at the end of an id are enough, too.

    Raises:
        RunNotFound: there is no such run, or there are several.
    """
    runs = {run.run_id: run for run in list_runs()}
    name = str(name)
    if name in runs:
        return runs[name]
    if name.lower() == "last":
        if not runs:
            raise RunNotFound(
                "No run has been recorded yet.", advice=f"runs are looked for in {muster_home() / 'runs'}"
            )
        return next(filter(_is_own, runs.values()), None) or next(iter(runs.values()))
    for what, matches in (
        ("begin with", [run_id for run_id in runs if name and run_id.startswith(name)]),
        ("are called", [run_id for run_id in runs if name in _called(run_id)]),
    ):
        if len(matches) == 1:
            return runs[matches[0]]
        if matches:
            raise RunNotFound(f"{len(matches)} runs {what} {name!r}.", advice=_some_of(matches))
    near = [run_id for run_id in runs if name and name in run_id] or _near(name, list(runs))
    lists = ArgumentText(Command("muster.list_runs()", "`muster runs`"), " lists them")
    raise RunNotFound(f"There is no run {name!r}.", advice=", ".join(near[:MOST_NAMED]) or lists)


def _some_of(run_ids: Sequence[str]) -> str:
    """Return a few ids, and how many more there are."""
    more = len(run_ids) - MOST_NAMED
    return ", ".join(run_ids[:MOST_NAMED]) + (f" or one of {more} more" if more > 0 else "")


def living_detached_run() -> Run | None:
    """Return the newest detached run that is under way; None if there is none."""
    return next((run for run in list_runs() if run.detached_until is not None and run.status == "running"), None)


def run_to_attach_to() -> Run:
    """Return the newest detached run that is under way; else the newest detached or of this session; else of all.

    Raises:
        RunNotFound: there is none.
    """
    mine = (run for run in list_runs() if run.detached_until is not None or _is_own(run))
    return living_detached_run() or next(mine, None) or open_run()


def attached_to(run: Run) -> str:
    """Return a line that says which run was chosen to attach to, when no id was given."""
    who = "detached" if run.detached_until is not None else "by this session" if _is_own(run) else "by another session"
    when = time.strftime("%a %d %b %Y %H:%M", time.localtime(run.started_at))
    where = f" in {clean(run.cwd)}" if run.cwd else ""
    return f"Attached to run {run.run_id}: started {when}{where}, {who}; {run.status}."


def _is_own(run: Run) -> bool:
    """Return whether this session has begun a run."""
    return has_begun(run.run_id)


def _called(run_id: str) -> tuple[str, ...]:
    """Return the parts of an id after its time: the run's name, and the random characters."""
    slug, _, letters = re.sub(r"^\d+-\d+-", "", run_id).rpartition("-")
    return slug, letters


def _near(name: str, ids: list[str]) -> list[str]:
    """Return the ids whose beginning is similar to ``name``, the most similar first."""

    def likeness(run_id: str) -> tuple[int, float]:
        begun = run_id[: len(name)]
        return len(os.path.commonprefix([name, begun])), difflib.SequenceMatcher(None, name, begun).ratio()

    return sorted((run_id for run_id in ids if likeness(run_id)[1] > LIKE), key=likeness, reverse=True)


def prune(keep: int = 20, older_than_days: float | None = None) -> list[str]:
    """Delete recorded runs, but never one that is running, and return the ids of those deleted.

    Args:
        keep: number of newest runs to keep.
        older_than_days: of the others, delete only those that started longer ago than that.

    Raises:
        JobError: one of them is no number.
    """
    newest_start = time.time() - 86400 * plain_number("older_than_days", older_than_days or 0)
    candidates = [run for run in list_runs()[max(whole_number("keep", keep), 0) :] if run.started_at <= newest_start]
    return [run.run_id for run in candidates if _may_be_deleted(run) and remove_folder(run.run_dir)]


def _may_be_deleted(run: Run) -> bool:
    if run.status == "lost":
        return time.time() - run.last_sign_of_life > LOST_GRACE
    return run.status != "running"
