"""File descriptors for the connections of many workers, whose number the system limits."""

from __future__ import annotations

import contextlib
import os

SPARE = 128  # descriptors for other files that the session opens


class TooFewDescriptors(Exception):
    """The system does not let this process open as many files and connections as it needs.

    Attributes:
        needed, limit: how many it needs, and how many it may have.
    """

    def __init__(self, needed: int, limit: int) -> None:
        super().__init__(f"{needed} descriptors are needed, and {limit} allowed")
        self.needed = needed
        self.limit = limit


def check(connections: int) -> None:
    """Check that this process may open that many more connections.

    Raises:
        TooFewDescriptors: it may not.
    """
    soft, hard = _limits()
    needed = _open_now() + connections + SPARE
    if needed > max(soft, hard):
        raise TooFewDescriptors(needed, int(max(soft, hard)))


def make_room(connections: int) -> None:
    """Raise this process's soft limit where that many more connections need it, and only as far as needed.

    Processes started afterwards inherit the limit. It is not lowered again, as descriptors above it may be open then.
    """
    soft, hard = _limits()
    needed = _open_now() + connections + SPARE
    if soft < needed <= hard:
        import resource

        _, given = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, given))


def _limits() -> tuple[float, float]:
    """Return the soft and the hard limit on this process's descriptors."""
    try:
        import resource
    except ImportError:  # no limits of this kind
        return float("inf"), float("inf")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (float("inf") if limit == resource.RLIM_INFINITY else float(limit) for limit in limits)
    return soft, hard


def _open_now() -> int:
    """Return the number of this process's open descriptors; 0 where the system does not say."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    return 0
