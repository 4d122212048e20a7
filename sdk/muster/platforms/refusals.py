"""Refusals by backends: how each is recognized by its text, what it means, and what to try."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Refusal(NamedTuple):
    """A kind of answer by which a backend refuses.

    Attributes:
        pattern: regular expression that its text matches, in any case.
        meaning: what it means; empty where its own text says it best.
        advice: what to try; None where that is unknown.
        code: status of the answer, for backends that have one; None for any.
    """

    pattern: str
    meaning: str
    advice: str | None = None
    code: int | None = None


def find_refusal(refusals: Iterable[Refusal], said: str, code: int | None = None) -> Refusal | None:
    """Return the first known refusal that a backend's answer matches; None for none.

    Args:
        refusals: the known refusals, the more specific ones first.
        said: text of the answer.
        code: status of its answer, where it has one.
    """
    for refusal in refusals:
        if refusal.code in (None, code) and re.search(refusal.pattern, said, re.IGNORECASE):
            return refusal
    return None


def in_words(what: str, said: str, refusal: Refusal | None, backend: str) -> str:
    """Return, in one or two sentences, what could not be done and why, with the backend's own words.

    >>> in_words("The job could not be submitted", "no", Refusal("no", "the partition is full"), "Slurm")
    'The job could not be submitted: the partition is full. Slurm says: no'
    """
    said = said.rstrip("\n")
    if refusal is None or not refusal.meaning:
        return f"{what}: {said}" + ("" if said.endswith((".", "!", "?")) else ".")
    return f"{what}: {refusal.meaning}. {backend} says: {said}"
