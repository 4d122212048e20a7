"""The clocks for code on an event loop: those of the loop, which in a simulation are not the system's."""

from __future__ import annotations

import asyncio
import time


def now() -> float:
    """Return the seconds on the monotonic clock of the running event loop."""
    return asyncio.get_running_loop().time()


def wall_time() -> float:
    """Return the seconds since 1970, by the running event loop if it has ``wall_time``, and else by the system."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return time.time()
    return float(getattr(loop, "wall_time", time.time)())


def deadline_in(seconds: float | None) -> float | None:
    """Return the time on the loop's monotonic clock in ``seconds``; None where there is no limit (None or 0)."""
    return now() + seconds if seconds else None


def has_passed(seconds: float, since: float, now: float) -> bool:
    """Return whether so many seconds have passed since a time of the wall clock, or that clock has been set back.

    Whoever waits for a time of that clock would wait for hours where it is set back by hours.
    """
    return not 0 <= now - since < seconds
