"""Numbers and texts that users give, of Python's types or NumPy's, as Python's own."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from numbers import Real
from typing import Any

from muster.errors import JobError

LONGEST_SPAN = 10 * 365 * 86400.0  # seconds: a longer span is a mistake


def plain_text(name: str, text: Any) -> str:
    """Return a string, empty for None; raise JobError for anything else."""
    if text is not None and not isinstance(text, str):
        raise JobError(f"{name} is of type {type(text).__name__}; it must be a string.")
    return text or ""


def plain_texts(name: str, texts: Any) -> tuple[str, ...]:
    """Return strings, given one or several; raise JobError for anything else."""
    found = (texts,) if isinstance(texts, str) else tuple(texts) if isinstance(texts, Iterable) else (texts,)
    if not all(isinstance(text, str) for text in found):
        raise JobError(f"{name} is {texts!r}; it must be a string, or a list of strings.")
    return found


def whole_number(name: str, number: Any) -> int:
    """Return a whole number, such as Python's or NumPy's, as an int; raise JobError for anything else."""
    if isinstance(number, bool) or not hasattr(number, "__index__"):
        raise JobError(f"{name} is {number!r}; it must be a whole number.", advice=_as_number(name, number))
    return int(number.__index__())


def plain_number(name: str, number: Any) -> float:
    """Return a number, such as Python's or NumPy's, as a float; raise JobError for anything else, and for NaN."""
    if isinstance(number, bool) or not isinstance(number, Real) or number != number:
        raise JobError(f"{name} is {number!r}; it must be a number.", advice=_as_number(name, number))
    try:
        return float(number)
    except OverflowError:
        return math.copysign(sys.float_info.max, number)


def plain_seconds(name: str, seconds: Any) -> float:
    """Return a time span in seconds, ten years at most; raise JobError for anything that is no number."""
    return min(plain_number(name, seconds), LONGEST_SPAN)


def _as_number(name: str, number: Any) -> str | None:
    try:
        return f"{name}={int(number)}" if float(number) == int(number) else None
    except (TypeError, ValueError, OverflowError):
        return None
