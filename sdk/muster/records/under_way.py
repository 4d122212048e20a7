"""Description of the state of a run under way, made from its events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.events import Event
from muster.events.data import (
    Listening,
    ProcessExited,
    ProcessStarted,
    Progress,
    RunAttempt,
    RunPhase,
    RunRequested,
    Silence,
    Stage,
    WorkerReady,
    WorkerState,
)
from muster.job import SERVER, Status
from muster.text.shown import duration

SILENT_SECONDS = 30.0  # without output or reports from which on a process is listed as silent
SERVING = "serving"  # the phase of servers through which a session trains, where no script does
MOST_NAMED = 4  # workers or ranks in a line
ARRIVED = {status.value for status in Status if status.is_final or status is Status.RUNNING}  # not waited for

Source = tuple[str, int | None]


@dataclass
class _LastSeen:
    """One rank or task: the time of its last report, and its stage and step."""

    name: str
    heard_at: float
    stage: str = ""
    step: int | None = None
    steps: int | None = None


def under_way(events: Iterable[Event], now: float, printed: Mapping[str, float]) -> list[str]:
    """Return lines that say which phase a run is in, which workers it waits for, and which ranks are behind or silent.

    Args:
        events: the events of the run so far; only the last attempt counts.
        now: the present time, in seconds since the epoch.
        printed: time of each worker's last output, from its log, as events do not record output.
    """
    phase: tuple[str, float] | None = None
    waiting: dict[str, str] = {}
    processes: dict[Source, _LastSeen] = {}
    silent = _Silences()
    only_serves = False
    for event in events:
        silent.take(event)
        data, worker = event.data, event.worker or ""
        if isinstance(data, RunRequested):
            only_serves = data.job.get("script", "") is None
        elif isinstance(data, RunPhase):
            said = SERVING if only_serves and data.phase == "training" else data.phase
            phase = said + (f" ({data.launcher} starts the ranks)" if data.launcher else ""), event.time
        elif isinstance(data, RunAttempt):
            waiting.clear()
            processes.clear()
        elif isinstance(data, WorkerState):
            if data.status in ARRIVED:
                waiting.pop(worker, None)
            else:
                waiting[worker] = data.reason or data.status or ""
        elif isinstance(data, WorkerReady):
            waiting.pop(worker, None)
        elif isinstance(data, ProcessStarted):
            name = worker if data.rank is None else f"rank {data.rank} ({worker})"
            processes[worker, data.rank] = _LastSeen(name, event.time)
        elif isinstance(data, ProcessExited):
            processes.pop((worker, data.rank), None)
        elif isinstance(data, Listening) and only_serves:
            processes.pop((worker, None), None)  # from now on it waits for the session that trains through it
        elif isinstance(data, (Progress, Stage)):
            _heard(processes.get((worker, data.rank)), data, event.time)
    lines = [f"Phase: {phase[0]}, for {duration(max(0.0, now - phase[1]))}."] if phase else []
    if waiting:
        named = [f"{name} ({reason})" if reason else name for name, reason in waiting.items()]
        lines.append(f"Waiting for {_listed(named)}.")
    lines += silent.lines(now)
    for (worker, _), process in processes.items():  # output may be of any of a worker's processes
        process.heard_at = max(process.heard_at, printed.get(worker, 0.0))
    # Parameter servers never report progress.
    training = [process for (worker, _), process in processes.items() if worker.rpartition("-")[0] != SERVER]
    return [*lines, *_training(training, now)]


def silences(events: Iterable[Event], now: float) -> list[str]:
    """Return lines about the workers that do not go on, according to the events of the last attempt until ``now``."""
    silent = _Silences()
    for event in events:
        silent.take(event)
    return silent.lines(now)


class _Silences:
    """The workers of the last attempt that do not go on, according to the events that it has taken."""

    def __init__(self) -> None:
        self._found: dict[str, Silence] = {}

    def take(self, event: Event) -> None:
        """Take the next event."""
        data, worker = event.data, event.worker or ""
        if isinstance(data, RunAttempt):
            self._found.clear()
        elif isinstance(data, Silence):
            self._found.pop(worker, None)
            if data.since is not None:
                self._found[worker] = data

    def lines(self, now: float) -> list[str]:
        """Return lines about them, as they are until ``now``."""
        lines = [
            f"{worker} {data.text} for {duration(max(0.0, now - (data.since or now)))}. {data.why or ''}".rstrip()
            for worker, data in [*self._found.items()][:MOST_NAMED]
        ]
        more = len(self._found) - len(lines)
        return [*lines, f"So it is with {more} more."] if more else lines


def is_queued(events: Iterable[Event]) -> bool:
    """Return whether no worker that the last attempt waits for has had a place yet; its platform has queued them."""
    has_place, is_told = False, False
    for event in events:
        if isinstance(event.data, RunAttempt):
            has_place, is_told = False, False
        elif isinstance(event.data, WorkerReady):
            has_place = True
        elif isinstance(event.data, WorkerState) and event.worker and event.data.status:
            is_told = True
            has_place = has_place or event.data.status != Status.SCHEDULING
    return is_told and not has_place


def _heard(process: _LastSeen | None, data: Progress | Stage, time: float) -> None:
    if process is None:
        return
    process.heard_at = time
    if isinstance(data, Stage):
        process.stage = data.stage
    elif data.step is not None:
        process.step, process.steps = data.step, data.steps


def _training(processes: list[_LastSeen], now: float) -> list[str]:
    """Return lines about the processes that run."""
    lines = []
    stepped = [process for process in processes if process.step is not None]
    if stepped:
        first, last = (choose(stepped, key=lambda process: process.step or 0) for choose in (max, min))
        of = f" of {first.steps}" if first.steps else ""
        lines.append(
            f"Step {first.step}{of}" + (f"; {last.name} is at {last.step}." if last.step != first.step else ".")
        )
    rest = [process for process in processes if process.step is None and process.stage]
    if rest:
        lines.append(f"No step yet of {_listed([f'{process.name}: {process.stage}' for process in rest])}.")
    silent = sorted((process for process in processes if now - process.heard_at >= SILENT_SECONDS), key=_since)
    if silent:
        longest = now - silent[0].heard_at
        lines.append(
            f"Nothing has come for up to {longest:.0f} s from {_listed([process.name for process in silent])}."
        )
    return lines


def _since(process: _LastSeen) -> float:
    return process.heard_at


def _listed(names: list[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
