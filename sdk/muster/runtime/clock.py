"""The clocks of what runs on an event loop: the loop's own, which need not be the system's."""

from __future__ import annotations

import asyncio
import time


def now() -> float:
    """Seconds on the monotonic clock of the running event loop."""
    return asyncio.get_running_loop().time()


def wall_time() -> float:
    """Seconds since 1970: by the running event loop where it has a ``wall_time``, and else by the system."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return time.time()
    return float(getattr(loop, "wall_time", time.time)())


def deadline_in(seconds: float | None) -> float | None:
    """Return the monotonic time that many seconds from now; None where there is no limit (None or 0)."""
    return now() + seconds if seconds else None
