"""Room for the connections of many workers: each takes a file descriptor of the session, and systems limit those."""

from __future__ import annotations

import contextlib
import os

SPARE = 128  # descriptors for whatever else the session opens meanwhile


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
    """Check that there can be room for so many connections more.

    Raises:
        TooFewDescriptors: there cannot.
    """
    soft, hard = _limits()
    needed = _open_now() + connections + SPARE
    if needed > max(soft, hard):
        raise TooFewDescriptors(needed, int(max(soft, hard)))


def make_room(connections: int) -> None:
    """Raise this process's own limit where so many connections more need it, and only as far as they do.

    What the process starts afterwards inherits the limit. It is not lowered again: something may lie above it by then.
    """
    soft, hard = _limits()
    needed = _open_now() + connections + SPARE
    if soft < needed <= hard:
        import resource

        _, given = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(ValueError, OSError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, given))


def _limits() -> tuple[float, float]:
    """Return the limits on this process's descriptors: now, and after asking for more."""
    try:
        import resource
    except ImportError:  # no limits of this kind
        return float("inf"), float("inf")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (float("inf") if limit == resource.RLIM_INFINITY else float(limit) for limit in limits)
    return soft, hard


def _open_now() -> int:
    """Return the number of descriptors that this process has, as far as the system tells."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    return 0
