"""Summary of the wait for a run's first step, made from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.events import Event
from muster.events.data import (
    Listening,
    ProcessExited,
    ProcessStarted,
    Progress,
    RunAttempt,
    RunPhase,
    RunRequested,
    Stage,
)
from muster.training.stages import IMPORTING, TRAINING

STARTING = "starting workers"  # Muster's own part
SLOW = 5.0  # seconds of waiting from which on the summary is shown


@dataclass
class _Process:
    """One process: its present stage, how long each of its stages took, and when it took its first step."""

    started: float
    stage: str = ""
    parts: dict[str, float] = field(default_factory=dict)
    stepped: float | None = None


def first_step(events: Iterable[Event]) -> str:
    """Return a line about what delayed the first step; empty if it came soon, or no step was reported.

    It is about the process that took its first step last, as the others wait for it, in the last attempt.
    """
    began: float | None = None
    launcher: tuple[str, float] | None = None  # its name, and when the ranks were left to it
    processes: dict[tuple[str | None, int | None], _Process] = {}
    for event in events:
        data = event.data
        if isinstance(data, (RunRequested, RunAttempt)):
            began, launcher = event.time, None
            processes.clear()
        if isinstance(data, RunPhase) and data.launcher:
            launcher = (data.launcher, event.time)
        if not isinstance(data, (ProcessStarted, Stage, Progress)):
            continue
        source = (event.worker, data.rank)
        if isinstance(data, ProcessStarted) and (source not in processes or processes[source].stepped is None):
            processes[source] = _Process(event.time)
        process = processes.get(source)
        if process is None or process.stepped is not None:
            continue
        if isinstance(data, Stage):
            if process.stage and data.seconds is not None:
                process.parts[process.stage] = process.parts.get(process.stage, 0.0) + data.seconds
            process.stage = data.stage
        if process.stage == TRAINING or (isinstance(data, Progress) and data.step is not None):
            process.stepped = event.time
    stepped = [process for process in processes.values() if process.stepped is not None]
    if began is None or not stepped:
        return ""
    last = max(stepped, key=lambda process: process.stepped or 0.0)
    total = (last.stepped or 0.0) - began
    if total < SLOW:
        return ""
    parts, launched_at = dict(last.parts), last.started
    if launcher is not None:
        name, launched_at = launcher
        parts[name] = last.started - launched_at
    return f"The first step came after {total:.1f} s: {_in_words(parts, launched_at - began)}."


def importing(events: Iterable[Event]) -> float:
    """Return the seconds that the slowest process of a run spent importing packages, as far as it has reported.

    A server reports nothing more: its imports are over once it listens.
    """
    since: dict[tuple[str | None, int | None], float] = {}
    found: dict[tuple[str | None, int | None], float] = {}
    for event in events:
        data = event.data
        if not isinstance(data, (Stage, Progress, ProcessExited, Listening)):
            continue
        source = (event.worker, None if isinstance(data, Listening) else data.rank)
        if source in since:
            found[source] = found.get(source, 0.0) + event.time - since.pop(source)
        if isinstance(data, Stage) and data.stage.startswith(IMPORTING):
            since[source] = event.time
    return max(found.values(), default=0.0)


def _in_words(parts: Mapping[str, float], starting: float) -> str:
    longest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in [*longest, (STARTING, starting)])
