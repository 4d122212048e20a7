"""Child processes, waited for and ended in ways that an interrupt cannot spoil.

``subprocess.Popen.poll`` takes a lock which a KeyboardInterrupt at the wrong moment leaves taken: from then on ``poll``
never sees the child's end, and ``wait`` never returns. So nothing here takes that lock before the child has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import Any

LONGEST_WAIT = 1.0  # seconds
PAUSE = 0.005  # seconds between two looks at a child, where the kernel tells nobody of its end


def has_ended(child: subprocess.Popen[Any]) -> bool:
    """Return whether a child has ended; its ``returncode`` is then set, unless another thread is just reading it."""
    if child.returncode is None:
        with contextlib.suppress(ChildProcessError):  # somebody else has waited for it
            if os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
        child.poll()
    return True


def ends_within(child: subprocess.Popen[Any], seconds: float) -> bool:
    """Wait until a child has ended, some seconds at most, and return whether it has."""
    deadline = time.monotonic() + seconds
    while not has_ended(child):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        _await_news(child.pid, min(left, LONGEST_WAIT))
    return True


def _await_news(pid: int, seconds: float) -> None:
    """Wait until a child may have ended, some seconds at most."""
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):  # a kernel that has none
        time.sleep(min(seconds, PAUSE))
        return
    try:
        news = select.poll()
        news.register(descriptor, select.POLLIN)
        news.poll(seconds * 1000)
    finally:
        os.close(descriptor)


def send_signal(child: subprocess.Popen[Any], number: int) -> None:
    """Send a signal to a child, unless it has ended."""
    if not has_ended(child):
        with contextlib.suppress(ProcessLookupError):  # another thread has just seen its end
            os.kill(child.pid, number)


def kill(child: subprocess.Popen[Any]) -> None:
    """Kill a child, and wait until it is gone."""
    send_signal(child, signal.SIGKILL)
    ends_within(child, float("inf"))
