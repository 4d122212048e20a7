"""Explanation of a run, in words: what failed first and why, the end of its log, and what to try."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from muster.events import Note, RunAttempt, ScriptRaised
from muster.records.first_step import first_step
from muster.records.record import LAUNCHER_LOG, LOST_REASON, RunRecord
from muster.records.sessions import WAKE, suspended, words_for_suspended
from muster.records.under_way import silences, under_way
from muster.text.arguments import ArgumentText, Command
from muster.text.shown import duration

NOTES = (Note, RunAttempt)  # events that tell the user something


def explanation(record: RunRecord, write: Callable[[str], str]) -> str:
    """Return the explanation; ``write`` converts its advice, a ``str`` or an ``ArgumentText``, to text."""
    headline, took = f"{record.name} ({record.run_id})", duration(record.seconds)
    remarks = _remarks(record)
    if record.status == "succeeded":
        return "\n".join([f"{headline} succeeded in {took}.", *remarks, *_outcome(record)])
    if record.status == "running":
        return "\n".join([f"{headline} has been running for {took}.", *_state(record), *remarks, *_ways(record, write)])
    if record.status == "lost":
        heard = f"It was last heard of after {took}."
        return "\n".join([f"{headline} was lost: {LOST_REASON}.", heard, *remarks, *_cause(record, write)])
    ended_at = record.started_at + record.seconds
    known = [f"Last known: {line}" for line in silences(record.events(), ended_at)]
    return "\n".join([f"{headline} {record.status} after {took}.", *remarks, *known, *_cause(record, write)])


def _state(record: RunRecord) -> list[str]:
    """Return lines about the state of a run under way."""
    lines = under_way(record.events(), time.time(), _printed_at(record))
    pid = suspended(record.session)
    if pid is not None:
        lines.append(f"Nothing goes on: {words_for_suspended(pid)}. Try: {WAKE.format(pid)}.")
    return lines


def _ways(record: RunRecord, write: Callable[[str], str]) -> list[str]:
    looks = ArgumentText("To see where it is: ", Command("run.stacks()", f"muster stacks {record.run_id}"))
    return [write(looks), write(ArgumentText("To end it: ", Command("run.stop()", f"muster stop {record.run_id}")))]


def _printed_at(record: RunRecord) -> dict[str, float]:
    """Return the time at which each worker's log was last written, in seconds since the epoch."""
    found = {}
    for path in (record.run_dir / "logs").glob("*.log"):
        with contextlib.suppress(OSError):
            found[path.stem] = path.stat().st_mtime
    return found


def _remarks(record: RunRecord) -> list[str]:
    """Return remarks: what delayed the first step, and notes for the user."""
    said = (event.data for event in record.events())
    told = [data.text if isinstance(data, Note) else data.reason for data in said if isinstance(data, NOTES)]
    notes = [f"Note: {text}" for text in told]
    return [*filter(None, [first_step(record.events())]), *notes]


def _outcome(record: RunRecord) -> list[str]:
    """Return the metrics last reported and where the results are, for a run that succeeded."""
    metrics = (record.result or {}).get("metrics") or {}
    lines = [f"  {name}: {value:.6g}" for name, value in metrics.items() if isinstance(value, (int, float))]
    if any((record.run_dir / "results").glob("*")):
        lines.append(f"Results: {record.run_dir / 'results'}")
    return [*lines, f"Logs: {record.run_dir / 'logs'}"]


def _cause(record: RunRecord, write: Callable[[str], str]) -> list[str]:
    """Return lines about the cause: what failed first and why, the end of that log, and what to try."""
    result = record.result or {}
    first: tuple[str | None, ScriptRaised] | None = None
    for event in record.events():
        if isinstance(event.data, RunAttempt):  # the notes say what ended the previous attempt
            first = None
        elif isinstance(event.data, ScriptRaised) and first is None:
            first = event.worker, event.data
    worker, reason, details = result.get("worker"), result.get("reason"), result.get("details")
    if first is not None:
        worker = worker or first[0]
        reason = reason or f"{first[1].type}: {first[1].message}"
        details = details or (first[1].traceback if worker == first[0] else None)
    lines = [f"Cause: {reason}"] if reason else []
    if details:
        lines += ["", str(details).rstrip(), ""]
    log = worker if worker in record.worker_names else LAUNCHER_LOG
    files = record.log_files(log)
    end = record.log_end(log)
    if end and not details:
        lines += ["", f"The end of {files[-1].name}:", *(f"  {line}" for line in end), ""]
    if record.advice:
        lines.append(f"Try: {write(record.advice)}")
    return [*lines, f"Log: {files[-1]}" if files else f"Logs: {record.run_dir / 'logs'}"]
