"""Calls that wait for several machines, made at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from muster.errors import MusterError

T = TypeVar("T")
AT_ONCE = 32  # machines that are asked at the same time


def for_all(call: Callable[[str], T], places: Sequence[str]) -> tuple[dict[str, T], dict[str, MusterError]]:
    """Call for all these hosts, or workers of a pool, at once.

    Returns what it returned for each, and what it raised for the others.
    """
    done: dict[str, T] = {}
    failed: dict[str, MusterError] = {}

    def attempt(place: str) -> None:
        try:
            done[place] = call(place)
        except MusterError as error:
            failed[place] = error

    if len(places) == 1:
        attempt(places[0])
    elif places:
        with ThreadPoolExecutor(min(AT_ONCE, len(places)), "muster-places") as pool:
            list(pool.map(attempt, places))
    in_order = [place for place in places if place in done]
    return {place: done[place] for place in in_order}, {place: failed[place] for place in places if place in failed}
