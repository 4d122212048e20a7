"""Events: timestamped facts about a run, and all that its observers are given.

The ``kind`` of an event determines the fields of its ``data``:

===================  =================================================================================================
``run_requested``    ``job`` (plain data), ``session`` (pid, start time, boot), ``python``, ``run_id``, ``platform``,
                     ``detached_until`` (seconds since the epoch, of a run that needs no session)
``run_phase``        ``phase``: launching, connecting, starting, training, ending
``run_attempt``      ``attempt``: number of the attempt that begins, from 2; ``cause``: why the previous one has ended;
                     ``reason``: the same, and how it goes on
``run_ended``        ``status``: succeeded, failed, stopped; ``reason``, ``advice``, ``error`` (class name)
``note``             ``text``: something the user should read; ``lost``: seconds that failed attempts have cost, where
                     the text is about them
``worker_state``     ``status``, ``address``, ``exit_code``, ``signal``, ``reason``: those that have changed
``worker_ready``     ``host``, ``ports``, ``cores``, ``gpus``, ``pid``: the agent has connected
``process_started``  ``pid``, ``rank`` (None where there are no ranks)
``process_exited``   ``pid``, ``rank``, ``exit_code``, ``signal``, ``reason`` ("memory", "stopped" or None)
``listening``        ``port``: the server of this worker accepts connections
``transfer``         ``done``, ``total``: bytes of the project that have reached the worker, and bytes in all; a few
                     times a second, and not journalled
``usage``            ``cpu`` (1.0 is one busy core), ``memory`` (bytes); where GPUs report it, ``gpu`` (number of busy
                     GPUs) and ``gpu_memory``; about once a second, and not journalled
``output``           ``text``: what the worker printed; not journalled, the logs have it
``progress``         ``rank``, ``step``, ``steps``, ``epoch``, ``epochs``, ``examples``, ``bytes_sent``, ``metrics``:
                     those that the script reported; in JSON, metrics that are not finite are "NaN", "Infinity",
                     "-Infinity"
``stage``            ``rank``, ``stage``: what the process is doing before its first step; ``seconds``: how long the
                     previous stage took
``exception``        ``rank``, ``type``, ``message``, ``traceback``: a script raised
``stacks``           ``rank``, ``text``: Python stacks, requested by the session
``silence``          ``since`` (seconds since the epoch), ``text``, ``why``: the worker's agent does not answer, or
                     one of its processes is suspended; all None: it goes on
===================  =================================================================================================

``worker`` is the worker's name (``ps-0``, ``worker-1``), or None for facts about the whole run. ``data`` is an instance
of the kind's class (:mod:`muster.events.data`), with attributes that type checkers know. It is a mapping, too:
``event.data["text"]``. Fields that were not given are None.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any

from muster.events.data import (
    DATA,
    EventData,
    EventKind,
    Listening,
    Note,
    Output,
    ProcessExited,
    ProcessStacks,
    ProcessStarted,
    Progress,
    Reached,
    RunAttempt,
    RunEnded,
    RunPhase,
    RunRequested,
    ScriptRaised,
    Silence,
    Stage,
    Transfer,
    Usage,
    WorkerReady,
    WorkerState,
    read,
)
from muster.text.reading import parse_json

__all__ = [
    "Event", "EventData", "EventKind", "Listening", "Note", "Observer", "Output", "Reached", "ProcessExited",
    "ProcessStacks", "ProcessStarted", "Progress", "RunAttempt", "RunEnded", "RunPhase", "RunRequested", "ScriptRaised",
    "Silence", "Stage", "Transfer", "Usage", "WorkerReady", "WorkerState", "metrics_from_json", "metrics_to_json",
    "plain",
]  # fmt: skip

# One encoder for all: json.dumps would make one for every event.
encode = json.JSONEncoder(default=str, allow_nan=False).encode

LATEST = 1e11  # seconds since the epoch; no calendar goes further
DEEPEST = 20  # levels of lists and dicts in an event
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)  # made so often that its methods are its own
class Event:
    """One fact about a run. ``time`` is seconds since the epoch, by the session's clock.

    Args:
        kind: an EventKind, or its name.
        data: an instance of the kind's class, or a mapping, which is converted to one.

    Raises:
        ValueError: there is no such kind of event, or the data does not fit it.
    """

    kind: str
    worker: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        kind = self.kind
        if type(kind) is not EventKind:
            kind = EventKind(self.kind)
            object.__setattr__(self, "kind", kind)
        if type(self.data) is not DATA[kind]:
            data, misfits = read(kind, self.data)
            if misfits:
                raise ValueError(f"no such event: {'; '.join(misfits)}")
            object.__setattr__(self, "data", data)

    @classmethod
    def of(cls, data: EventData, worker: str | None = None, when: float | None = None) -> Event:
        """Return the event with this data, at the time ``when`` or now."""
        return cls(data.kind, worker, data, time.time() if when is None else when)

    def to_json(self) -> str:
        """Return the event as one line of strict JSON, without the newline; objects that JSON lacks become text."""
        data = {name: value for name, value in vars(self.data).items() if value is not None}
        try:
            if isinstance(self.data, Progress):
                data["metrics"] = metrics_to_json(self.data.metrics)
            return encode({"time": self.time, "kind": self.kind, "worker": self.worker, **data})
        except Exception:  # str() of any object in it may have raised: the event must still be recorded
            return encode(plain({**data, "time": self.time, "kind": self.kind, "worker": self.worker}))

    @classmethod
    def from_json(cls, line: str, on_misfit: Callable[[str], object] = lambda text: None) -> Event:
        """Return the event that ``to_json`` wrote, possibly in another version of Muster.

        Args:
            line: the text.
            on_misfit: called with a message for each field that does not fit, and is therefore left out.

        Raises:
            ValueError: the line is not an event, or one of an unknown kind.
        """
        told = parse_json(line)
        if not isinstance(told, dict) or "kind" not in told:
            raise ValueError("not an event")
        worker, when = told.get("worker"), told.get("time")
        if not isinstance(when, (int, float)) or not isinstance(worker, (str, NoneType)) or not 0 <= when < LATEST:
            raise ValueError("not an event: its time is none, or its worker no text")
        if isinstance(told.get("metrics"), dict):
            told["metrics"] = metrics_from_json(told["metrics"])
        data, misfits = read(EventKind(told["kind"]), told)
        for text in misfits:
            on_misfit(text)
        return cls(data.kind, worker, data, when)


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value that JSON can represent: other objects become text, as do containers nested too deeply."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, Mapping) and depth < DEEPEST:
        return {name if isinstance(name, str) else _text(name): plain(part, depth + 1) for name, part in value.items()}
    if isinstance(value, (list, tuple)) and depth < DEEPEST:
        return [plain(part, depth + 1) for part in value]
    return value if isinstance(value, int) and value.bit_length() <= 64 else _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)[:1000]
    except Exception:
        return f"<{type(value).__name__}>"


def metrics_to_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics for strict JSON: those that are not finite as ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    return {
        name: json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


def metrics_from_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that ``metrics_to_json`` was given."""
    return {name: float(value) if value in NOT_FINITE else value for name, value in metrics.items()}


Observer = Callable[[Event], None]
