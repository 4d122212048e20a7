"""Summary of the wait for a run's first step, made from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from muster.events import Event, EventKind

STARTING = "starting workers"  # Muster's own part
TRAINING = "training"
SLOW = 5.0  # seconds from which on the parts of the wait are worth a line


@dataclass
class _Process:
    """One process: what it is at, how long it was at what, and when it took its first step."""

    started: float
    stage: str = ""
    parts: dict[str, float] = field(default_factory=dict)
    stepped: float | None = None


def first_step(events: Iterable[Event]) -> str:
    """A line that says what the first step had to wait for; empty where it came soon, or nobody told of one.

    It is that of the process which was last to take its first step, as the others wait for it.
    """
    began: float | None = None
    processes: dict[tuple[str | None, object], _Process] = {}
    for event in events:
        if event.kind == EventKind.RUN_REQUESTED:
            began = event.time
        source = (event.worker, event.data.get("rank"))
        if event.kind == EventKind.PROCESS_STARTED:
            processes[source] = _Process(event.time)
        process = processes.get(source)
        if process is None or process.stepped is not None:
            continue
        if event.kind == EventKind.STAGE:
            seconds = event.data.get("seconds")
            if process.stage and isinstance(seconds, (int, float)):
                process.parts[process.stage] = process.parts.get(process.stage, 0.0) + seconds
            process.stage = str(event.data.get("stage"))
        if process.stage == TRAINING or (event.kind == EventKind.PROGRESS and event.data.get("step") is not None):
            process.stepped = event.time
    stepped = [process for process in processes.values() if process.stepped is not None]
    if began is None or not stepped:
        return ""
    last = max(stepped, key=lambda process: process.stepped or 0.0)
    total = (last.stepped or 0.0) - began
    if total < SLOW:
        return ""
    return f"The first step came after {total:.1f} s: {_in_words(last.parts, last.started - began)}."


def _in_words(parts: Mapping[str, float], starting: float) -> str:
    longest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in [*longest, (STARTING, starting)])
