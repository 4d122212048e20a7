"""Events: the only thing that observers of a run ever see.

An event is one timestamped fact. Its ``kind`` is one of:

===================  =================================================================================================
``run_requested``    ``job`` (plain data), ``session`` (pid, start time, boot), ``python``, ``run`` (its id)
``run_phase``        ``phase``: launching, connecting, starting, training, ending
``run_ended``        ``status``: succeeded, failed, stopped; ``reason``, ``advice``, ``worker``, ``error`` (class name)
``note``             ``text``: something the user should read
``worker_state``     ``status``, ``address``, ``exit_code``, ``signal``, ``reason``; whatever of these is news
``worker_ready``     ``host``, ``ports``, ``cores``, ``gpus``, ``pid``: the agent has said hello
``process_started``  ``pid``, ``rank`` (None where there are no ranks)
``process_exited``   ``pid``, ``rank``, ``exit_code``, ``signal``, ``reason`` ("memory", "stopped" or None)
``listening``        ``port``: the server of this worker accepts connections
``usage``            ``cpu`` (1.0 is one busy core), ``memory`` (bytes), where GPUs tell ``gpu`` (how many are busy) and
                     ``gpu_memory``; about once a second, and not journalled
``output``           ``text``: what the worker printed; not journalled, the logs have it
``progress``         ``rank``, ``step``, ``steps``, ``epoch``, ``epochs``, ``examples``, ``bytes_sent``, ``metrics``:
                     what of these the script reported; in JSON, metrics that are not finite are "NaN", "Infinity",
                     "-Infinity"
``stage``            ``rank``, ``stage``: what it is at before its first step, ``seconds`` that the one before took
``exception``        ``rank``, ``type``, ``message``, ``traceback``: a script raised
``stacks``           ``rank``, ``text``: Python stacks, asked for by the session
===================  =================================================================================================

``worker`` is the worker's name (``ps-0``, ``worker-1``), or None for facts about the whole run.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

logger = logging.getLogger("muster")
# One encoder for all: json.dumps would make one for every event.
encode = json.JSONEncoder(default=str, allow_nan=False).encode

DEEPEST = 20  # levels of lists and dicts in an event
NOT_FINITE = ("NaN", "Infinity", "-Infinity")


class EventKind(str, Enum):
    """Kinds of events, as the table of this module describes them."""

    RUN_REQUESTED = "run_requested"
    RUN_PHASE = "run_phase"
    RUN_ENDED = "run_ended"
    NOTE = "note"
    WORKER_STATE = "worker_state"
    WORKER_READY = "worker_ready"
    PROCESS_STARTED = "process_started"
    PROCESS_EXITED = "process_exited"
    LISTENING = "listening"
    USAGE = "usage"
    OUTPUT = "output"
    PROGRESS = "progress"
    STAGE = "stage"
    EXCEPTION = "exception"
    STACKS = "stacks"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Event:
    """One fact about a run. ``time`` is seconds since the epoch, by the session's clock.

    Raises:
        ValueError: there is no such kind of event.
    """

    kind: str  # an EventKind; whoever makes an event may give its name
    worker: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    time: float = field(default_factory=time.time)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", EventKind(self.kind))

    def to_json(self) -> str:
        """The event as one line of strict JSON, without the line end; what JSON has no word for becomes text."""
        data = dict(self.data)
        try:
            if isinstance(data.get("metrics"), Mapping):
                data["metrics"] = metrics_to_json(data["metrics"])
            return encode({"time": self.time, "kind": self.kind, "worker": self.worker, **data})
        except Exception:  # whatever its parts raise: what is odd about an event must not cost the run its record
            return encode(plain({**data, "time": self.time, "kind": self.kind, "worker": self.worker}))

    @classmethod
    def from_json(cls, line: str) -> Event:
        """The event that ``to_json`` wrote. Raises ``ValueError`` for anything else."""
        data = json.loads(line)
        if not isinstance(data, dict) or "kind" not in data or "time" not in data:
            raise ValueError("not an event")
        if isinstance(data.get("metrics"), dict):
            data["metrics"] = metrics_from_json(data["metrics"])
        return cls(kind=data.pop("kind"), worker=data.pop("worker", None), time=data.pop("time"), data=data)


def plain(value: Any, depth: int = 0) -> Any:
    """The value as JSON can have it: what is neither number, text, list nor dict as text, and so what is too deep."""
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
    """Metrics as strict JSON has them: what is not finite as ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    return {
        name: json.dumps(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in metrics.items()
    }


def metrics_from_json(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that ``metrics_to_json`` was given."""
    return {name: float(value) if value in NOT_FINITE else value for name, value in metrics.items()}


Observer = Callable[[Event], None]


class Observers:
    """Functions that are told every event, in the order in which they were added. They cannot change or fail a run."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = list(observers)

    def add(self, observer: Observer, *, first: bool = False) -> None:
        """Tell ``observer`` every event from now on, before all others if ``first``."""
        self._observers.insert(0 if first else len(self._observers), observer)

    def drop(self, observer: Observer) -> None:
        """Tell ``observer`` no more; fine if nobody has."""
        with contextlib.suppress(ValueError):
            self._observers.remove(observer)

    def tell(self, event: Event) -> None:
        """Tell everybody. One that raises is logged and dropped; but an interrupt is the caller's."""
        for observer in list(self._observers):
            try:
                observer(event)
            except BaseException as error:  # SystemExit and CancelledError among them, which would end the event loop
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                logger.exception("an observer failed and is dropped")
                self.drop(observer)
