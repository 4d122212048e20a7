"""The end of processes that nobody waits for any more, with time for those that remove what others have shared.

Python's ``multiprocessing``, joblib and PyTorch start a process beside a script that shares memory, or semaphores. It
removes them once all who have used them have ended, however that was: after a kill nothing else does. It ends by itself
at once, as soon as they have; one that does not is killed as well.
"""

import contextlib
import os
import re
import time

from . import linux

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, Iterable

SECONDS = 1.0  # that such a process gets; it needs some milliseconds
REMOVER = rb"^[^\0]*torch_shm_manager\0|\0from [\w.]*\b(resource|semaphore)_tracker import main\b"
PAUSE = 0.002
MOST_SECONDS = 4.0  # that killed processes may take to be gone


def removes_what_is_shared(pid: int) -> bool:
    """Return whether a process removes what others have shared, as its command line says."""
    with contextlib.suppress(OSError), open("/proc/{}/cmdline".format(pid), "rb") as file:
        return re.search(REMOVER, file.read(4096)) is not None
    return False


class Leftovers:
    """Kills processes, but for those that remove what others have shared only after they had some time."""

    def __init__(self) -> None:
        self._until: "dict[int, float]" = {}  # when those that remove something have had their time

    def kill(self, pids: "Iterable[int]") -> bool:
        """Kill processes; return whether some were given time, and so are to be killed again after ``SECONDS``."""
        now = time.monotonic()
        self._until = {pid: until for pid, until in self._until.items() if linux.stat(pid) is not None}
        gave = False
        for pid in pids:
            if removes_what_is_shared(pid) and self._until.setdefault(pid, now + SECONDS) > now:
                gave = True
            else:
                linux.kill(pid)
        return gave


def kill_all(find: "Callable[[], list[int]]") -> bool:
    """Kill what ``find`` returns until that is nothing.

    Returns:
        Whether all are gone. Processes that wait in the kernel may take longer.
    """
    began = time.monotonic()
    until = began + SECONDS
    while time.monotonic() < began + MOST_SECONDS:
        pids = find()
        if not pids:
            return True
        others = [pid for pid in pids if not removes_what_is_shared(pid)]
        if others:
            until = time.monotonic() + SECONDS
        for pid in others or (pids if time.monotonic() >= until else []):
            linux.kill(pid)
        time.sleep(PAUSE)
    return False


def kill_descendants() -> bool:
    """Kill and reap all descendants of this process, as ``kill_all`` does; only subreapers have all of them."""

    def find() -> "list[int]":
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # without children there are no other descendants
            return []
        return linux.descendants(os.getpid(), linux.snapshot())

    return kill_all(find)
