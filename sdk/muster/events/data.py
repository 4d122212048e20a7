"""The classes of events' data, one for each kind: frozen, and checked by ``read``. :mod:`muster.events` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar, NamedTuple

from muster.text.frozen import frozen
from muster.text.reading import is_finite


class EventKind(str, Enum):
    """Kinds of events, as the table of :mod:`muster.events` describes them."""

    RUN_REQUESTED = "run_requested"
    RUN_PHASE = "run_phase"
    RUN_ATTEMPT = "run_attempt"
    RUN_ENDED = "run_ended"
    NOTE = "note"
    WORKER_STATE = "worker_state"
    WORKER_READY = "worker_ready"
    PROCESS_STARTED = "process_started"
    PROCESS_EXITED = "process_exited"
    LISTENING = "listening"
    TRANSFER = "transfer"
    USAGE = "usage"
    OUTPUT = "output"
    PROGRESS = "progress"
    STAGE = "stage"
    EXCEPTION = "exception"
    STACKS = "stacks"
    SILENCE = "silence"

    def __str__(self) -> str:
        return self.value


class Reached(NamedTuple):
    """A step that a process has reported; the greater of two is further.

    >>> f"{Reached(step=3)}, {Reached(2, 5)}"
    'step 3, step 5 of epoch 2'
    """

    epoch: int = -1  # where steps are not counted within epochs
    step: int = 0

    def __str__(self) -> str:
        return f"step {self.step}" + (f" of epoch {self.epoch}" if self.epoch >= 0 else "")


class EventData(Mapping[str, Any]):
    """Data of an event. As a mapping it contains the fields that are not None."""

    kind: ClassVar[EventKind]

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __contains__(self, name: object) -> bool:
        return vars(self).get(str(name)) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name, value in vars(self).items() if value is not None)

    def __len__(self) -> int:
        return sum(value is not None for value in vars(self).values())


@frozen
class RunRequested(EventData):
    """A run has been requested. ``strategy``, and ``run`` (its id), are set only in records of older versions.

    ``platform`` is the name of its workers' platform. For a run that needs no session ``detached_until`` is set, in
    seconds since the epoch.
    """

    kind = EventKind.RUN_REQUESTED
    job: Mapping[str, Any] = field(default_factory=dict)
    session: Mapping[str, Any] = field(default_factory=dict)
    python: str | None = None
    run_id: str | None = None
    strategy: str | None = None
    detached_until: float | None = None
    platform: str | None = None
    run: str | None = None


@frozen
class RunPhase(EventData):
    """The run has entered another phase; in ``starting``, ``launcher`` is the program that starts the ranks, if any."""

    kind = EventKind.RUN_PHASE
    phase: str = ""
    launcher: str | None = None


@frozen
class RunAttempt(EventData):
    """All workers and ranks are started again: the number of this attempt, from 2, and why the previous one ended.

    ``cause`` is that alone, and ``reason`` says how it goes on, too.
    """

    kind = EventKind.RUN_ATTEMPT
    attempt: int = 2
    reason: str = ""
    cause: str | None = None


@frozen
class RunEnded(EventData):
    """The run has ended. ``advice_parts`` is the advice as :class:`muster.text.arguments.ArgumentText` reads it."""

    kind = EventKind.RUN_ENDED
    status: str = "failed"
    reason: str | None = None
    advice: str | None = None
    error: str | None = None
    advice_parts: list[Any] | None = None


@frozen
class Note(EventData):
    """Something that the user should read; if it tells what failed attempts have cost, ``lost`` are these seconds."""

    kind = EventKind.NOTE
    text: str = ""
    lost: float | None = None


@frozen
class WorkerState(EventData):
    """A worker is in another state."""

    kind = EventKind.WORKER_STATE
    status: str | None = None
    address: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None


@frozen
class WorkerReady(EventData):
    """A worker's agent has connected to the session and identified itself: the worker can be given processes."""

    kind = EventKind.WORKER_READY
    host: str | None = None
    ports: tuple[int, ...] = ()
    cores: int | None = None
    gpus: tuple[str, ...] = ()
    pid: int | None = None


@frozen
class ProcessStarted(EventData):
    """A process of a worker runs."""

    kind = EventKind.PROCESS_STARTED
    pid: int | None = None
    rank: int | None = None


@frozen
class ProcessExited(EventData):
    """A process of a worker has ended."""

    kind = EventKind.PROCESS_EXITED
    pid: int | None = None
    rank: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    reason: str | None = None


@frozen
class Listening(EventData):
    """A worker's server accepts connections."""

    kind = EventKind.LISTENING
    port: int | None = None


@frozen
class Transfer(EventData):
    """Progress of a transfer to a worker, in bytes."""

    kind = EventKind.TRANSFER
    done: int = 0
    total: int = 0


@dataclass(frozen=True, eq=False)  # made so often that its methods are its own
class Usage(EventData):
    """Use of a worker's resources."""

    kind = EventKind.USAGE
    cpu: float | None = None
    memory: float | None = None
    gpu: float | None = None
    gpu_memory: float | None = None


@dataclass(frozen=True, eq=False)  # made so often that its methods are its own
class Output(EventData):
    """Text that a worker has printed."""

    kind = EventKind.OUTPUT
    text: str = ""


@dataclass(frozen=True, eq=False)  # made so often that its methods are its own
class Progress(EventData):
    """Progress of a process."""

    kind = EventKind.PROGRESS
    rank: int | None = None
    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    examples: int | None = None
    bytes_sent: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def reached(self) -> Reached | None:
        """The step that is reported, within its epoch; None where none is."""
        return None if self.step is None else Reached(-1 if self.epoch is None else self.epoch, self.step)


@frozen
class Stage(EventData):
    """Stage of a process before its first step, and how many seconds the previous stage took."""

    kind = EventKind.STAGE
    rank: int | None = None
    stage: str = ""
    seconds: float | None = None


@frozen
class ScriptRaised(EventData):
    """A script raised."""

    kind = EventKind.EXCEPTION
    rank: int | None = None
    type: str | None = None
    message: str | None = None
    traceback: str | None = None


@frozen
class ProcessStacks(EventData):
    """Python stacks of a process."""

    kind = EventKind.STACKS
    rank: int | None = None
    text: str = ""


@frozen
class Silence(EventData):
    """A worker does not go on: what is the matter, since when in seconds since the epoch, and why, where that is known.

    ``text`` is said of the worker, and goes before "for 25 s". Without any data, the worker goes on.
    """

    kind = EventKind.SILENCE
    since: float | None = None
    text: str | None = None
    why: str | None = None


def _is_number(value: object) -> bool:
    return is_finite(value) and not isinstance(value, bool)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and _is_number(value)


def _are(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(check, value))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, value))


def _are_metrics(value: object) -> bool:
    return _is_mapping(value) and all(map(_is_metric, value.values()))  # type: ignore[attr-defined]


def _is_metric(value: object) -> bool:
    return isinstance(value, float) or _is_number(value)  # a metric may be infinite, or NaN


CHECKS: dict[str, tuple[Callable[[object], bool], str]] = {  # by annotation: what fits, and what it is called
    "str": (_is_text, "a text"),
    "int": (_is_int, "a whole number"),
    "float": (_is_number, "a number"),
    "tuple[int, ...]": (_are(_is_int), "a list of whole numbers"),
    "tuple[str, ...]": (_are(_is_text), "a list of texts"),
    "list[Any]": (lambda value: isinstance(value, list), "a list"),
    "Mapping[str, Any]": (_is_mapping, "a mapping by texts"),
    "Mapping[str, float]": (_are_metrics, "a mapping of numbers by texts"),
}
DATA: dict[EventKind, type[EventData]] = {kind.kind: kind for kind in EventData.__subclasses__()}
_ANNOTATIONS = {
    kind: {field.name: str(field.type).removesuffix(" | None") for field in fields(made)}  # type: ignore[arg-type]
    for kind, made in DATA.items()
}


def read(kind: EventKind, told: Mapping[str, Any]) -> tuple[EventData, list[str]]:
    """Return the data of an event of this kind, and a message for each field that does not fit, and is left out.

    Unknown fields are ignored: a later version may have written them.
    """
    given: dict[str, Any] = {}
    misfits = []
    for name, annotation in _ANNOTATIONS[kind].items():
        value, (fits, what) = told.get(name), CHECKS[annotation]
        if value is None:
            continue
        if fits(value):
            given[name] = tuple(value) if annotation.startswith("tuple") else value
        else:
            misfits.append(f"{name} of {kind} is {type(value).__name__} instead of {what}")
    return DATA[kind](**given), misfits
