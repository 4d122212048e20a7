"""Reports of processes: one datagram each, which their agent passes on as ``{"type": "report", "report": ...}``."""

import math

from .fields import clean, number, optional, text, whole, yes_or_no
from .kinds import LONGEST_NAME, LONGEST_TEXT, MOST_METRICS, REPORTS, clock, message, rank
from .tuples import NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NOT_IN_JSON = ("NaN", "Infinity", "-Infinity")


def _metrics(value: "Any") -> "dict[str, float]":
    """Check numbers by name, and return them as floats; those that JSON lacks are sent as text, such as "NaN"."""
    if type(value) is not dict or len(value) > MOST_METRICS:
        raise ValueError("at most {} numbers by name".format(MOST_METRICS))
    return {clean(metric[:LONGEST_NAME]): _metric(amount) for metric, amount in value.items()}


def _metric(amount: "Any") -> float:
    if type(amount) not in (int, float, bool) and amount not in NOT_IN_JSON:
        raise ValueError("numbers by name")
    try:
        return float(amount)
    except OverflowError:  # an integer beyond the largest float; ``1e400`` is infinite already
        return math.inf if amount > 0 else -math.inf


_count = optional(whole(-(1 << 63)))


@message(
    "progress", REPORTS, rank=rank, step=_count, steps=_count, epoch=_count, epochs=_count, examples=_count,
    bytes_sent=_count, metrics=optional(_metrics),
)  # fmt: skip
class Progress(NamedTuple):
    """Progress of a process."""

    rank: "int | None" = None
    step: "int | None" = None
    steps: "int | None" = None
    epoch: "int | None" = None
    epochs: "int | None" = None
    examples: "int | None" = None
    bytes_sent: "int | None" = None
    metrics: "dict[str, float] | None" = None


@message("stage", REPORTS, rank=rank, stage=text(100), seconds=number(0, 1e9))
class Stage(NamedTuple):
    """A stage before a process's first step, and how many seconds the stage before it took."""

    stage: str
    seconds: float = 0.0
    rank: "int | None" = None


@message("warning", REPORTS, rank=rank, text=text(1000), is_of_thread=optional(yes_or_no))
class Warned(NamedTuple):
    """A warning about a process, for the user; ``is_of_thread`` where one of its threads or forks has failed."""

    text: str
    rank: "int | None" = None
    is_of_thread: "bool | None" = None


@message("returned", REPORTS)
class Returned(NamedTuple):
    """The script of the worker's task has returned; its server still serves the others."""


@message(
    "exception", REPORTS, rank=rank, monotonic=optional(clock), type=text(LONGEST_NAME), message=text(4000),
    traceback=text(LONGEST_TEXT), peer_was_gone=optional(yes_or_no), status=optional(whole(0, 255)),
)  # fmt: skip
class Raised(NamedTuple):
    """A process raised an exception: when, by its machine's clock; and whether a connection had been closed."""

    type: str = ""
    message: str = ""
    traceback: str = ""
    rank: "int | None" = None
    monotonic: "float | None" = None
    peer_was_gone: "bool | None" = None
    status: "int | None" = None  # where it called ``sys.exit`` with a number
