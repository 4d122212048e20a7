"""Concurrent calls to several machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from muster.errors import MusterError

T = TypeVar("T")
AT_ONCE = 32  # machines that are asked at the same time


def for_all(call: Callable[[str], T], names: Sequence[str]) -> tuple[dict[str, T], dict[str, MusterError]]:
    """Call a function for each of these hosts, or workers of a pool, at the same time.

    Returns:
        What it returned, and for the others the MusterError that it raised, each by name.
    """
    done: dict[str, T] = {}
    failed: dict[str, MusterError] = {}

    def attempt(name: str) -> None:
        try:
            done[name] = call(name)
        except MusterError as error:
            failed[name] = error

    if len(names) == 1:
        attempt(names[0])
    elif names:
        with ThreadPoolExecutor(min(AT_ONCE, len(names)), "muster-parallel") as pool:
            list(pool.map(attempt, names))
    in_order = [name for name in names if name in done]
    return {name: done[name] for name in in_order}, {name: failed[name] for name in names if name in failed}
