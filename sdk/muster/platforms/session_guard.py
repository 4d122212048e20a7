"""A process that outlives the session, and removes what that has made when it is gone.

Workers end by themselves, a lease after they have lost the session. Nobody but this would remove what then is left of
them. It runs a module of a platform's, ``python -m MODULE``, which reads what it must know from its input as lines of
JSON, and waits there for the end: a line with ``done`` says that nothing is left to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from muster.agent import linux
from muster.records.scratch import sweep
from muster.runtime.forks import in_forked_children

RETRY_SECONDS = 1.0  # until what does not answer is asked again
PATIENCE = 1800.0  # seconds that it may take to answer again
CHECK_SECONDS = 0.5  # between two looks at the session, where the kernel has no pidfd

_busy: list[subprocess.Popen[bytes]] = []  # guards that still clean up, of platforms that are closed


def owner() -> str:
    """Return a name for this process that no other one has, ever: boot, namespace of process ids, user, id, start."""
    namespace = os.stat("/proc/self/ns/pid").st_ino
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}.{namespace}.{os.getuid()}.{os.getpid()}.{linux.start_of(os.getpid())}"


def is_orphaned(label: str) -> bool:
    """Return whether the process that ``owner()`` named so is gone for certain: others' may be out of sight."""
    mine, theirs = owner().split("."), label.split(".")
    if len(theirs) != len(mine) or theirs[:3] != mine[:3] or not all(word.isdecimal() for word in theirs[3:]):
        return False
    return not linux.is_running(int(theirs[3]), int(theirs[4]))


def is_left_behind(label: str, host: str) -> bool:
    """Return whether the process that ``owner()`` named so on this host is gone: killed, or with an earlier boot."""
    is_here = host == socket.gethostname()  # the home may be other machines', too
    return is_orphaned(label) or (is_here and label.partition(".")[0] != owner().partition(".")[0])


class SessionGuard:
    """The session's end of a guard process, which this object starts. Raises OSError.

    Args:
        module: what it runs; calls ``serve``.
        facts: what that must know, as plain data.
    """

    def __init__(self, module: str, facts: Mapping[str, Any]) -> None:
        self._owner = os.getpid()
        path = os.pathsep.join([str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH", "")])
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
            cwd="/",
            start_new_session=True,
        )
        self.tell({**facts, "session": [os.getpid(), linux.start_of(os.getpid())]})
        in_forked_children(self._forget)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Let it know more; what it knew by the same names counts no more."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # somebody has killed it
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Tell it that nothing is left to do, and wait until it has ended."""
        if self._owner != os.getpid():
            return
        self.tell({"done": True})
        with contextlib.suppress(OSError):
            self._process.communicate()

    def clean_up(self) -> None:
        """Have the guard clean up as soon as it can, and end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        _busy.append(self._process)

    def _forget(self) -> None:
        """Close, in a child that was forked, what would keep the guard from seeing this process's end."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            os.close(self._process.stdin.fileno())


def serve(clean_up: Callable[[dict[str, Any]], object]) -> None:
    """Wait for the end of the session, and clean up after it: again and again for half an hour, where that fails.

    Its scratch folder goes last.

    Args:
        clean_up: removes everything, given the facts; raises an error of any kind where it should be tried again.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        facts = json.loads(lines.readline())
        if _is_done(facts, lines):
            return
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            clean_up(facts)
            sweep()
            return
        except Exception:  # foreign code, and nobody to tell
            time.sleep(RETRY_SECONDS)


def _is_done(facts: dict[str, Any], lines: IO[bytes]) -> bool:
    """Wait until the session says that nothing is left (True), or is gone (False); take in what else it says."""
    pid, start = facts["session"]
    watched: list[int] = [lines.fileno()]
    with contextlib.suppress(OSError, AttributeError):  # it is gone, or the kernel is older
        watched.append(os.pidfd_open(pid))
    while linux.is_running(pid, start):
        readable, _, _ = select.select(watched, [], [], CHECK_SECONDS if len(watched) == 1 else None)
        if watched[0] in readable:
            line = lines.readline()
            if not line or _takes(facts, line):
                return bool(line)
    os.set_blocking(lines.fileno(), False)
    while line := lines.readline():  # what it said just before
        if _takes(facts, line):
            return True
    return False


def _takes(facts: dict[str, Any], line: bytes) -> bool:
    """Take in a line, and return whether it says that nothing is left."""
    try:
        said = json.loads(line)
    except ValueError:  # the session was killed while it said so
        return False
    facts.update(said)
    return bool(said.get("done"))
