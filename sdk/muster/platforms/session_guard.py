"""Guard processes that outlive the session and remove what it has left: containers, jobs, pods.

Workers end by themselves, a lease after they have lost the session, but nothing else would then remove what is left of
them. A guard runs a module of its platform, ``python -m MODULE``, which reads facts from its standard input as lines of
JSON until that ends with the session; a line with ``done`` says that nothing is left to remove.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from muster.agent import linux
from muster.records.scratch import sweep
from muster.runtime import children
from muster.runtime.forks import in_forked_children

RETRY_SECONDS = 1.0  # between two attempts to clean up
PATIENCE = 1800.0  # seconds after which a guard gives up cleaning up
CHECK_SECONDS = 0.5  # between two checks of the session, where the kernel has no pidfd

_busy: list[subprocess.Popen[bytes]] = []  # guards of closed platforms that still clean up


class SessionGuard:
    """A guard process that outlives the session, which this object starts. Raises OSError.

    Args:
        module: the module that the process runs; it calls ``serve``.
        facts: facts for its clean-up, as plain data.
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
        """Process id of the guard."""
        return self._process.pid

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Send facts to the guard; they replace earlier ones of the same names."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the guard was killed
            self._process.stdin.write(json.dumps(facts).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Tell the guard that nothing is left to remove, and wait until it has ended."""
        if self._owner != os.getpid():
            return
        self.tell({"done": True})
        self._hang_up()
        children.ends_within(self._process, PATIENCE)

    def clean_up(self, then: Callable[[], object] | None = None) -> None:
        """Have the guard clean up now, without waiting for it; it ends when that is done.

        Args:
            then: called after that, on a thread of its own; not where this process ends before.
        """
        self._hang_up()
        _busy[:] = [one for one in _busy if not children.has_ended(one)]  # which reaps those that have ended
        _busy.append(self._process)
        if then is not None:
            with contextlib.suppress(RuntimeError):  # this process is about to end
                threading.Thread(target=self._call_at_its_end, args=[then], name="muster-guard", daemon=True).start()

    def _call_at_its_end(self, then: Callable[[], object]) -> None:
        children.ends_within(self._process, float("inf"))
        then()

    def _hang_up(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _forget(self) -> None:
        """Close the guard's input in a forked child, so that the guard still notices the end of this process."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            os.close(self._process.stdin.fileno())


def serve(clean_up: Callable[[dict[str, Any]], object]) -> None:
    """Wait for the end of the session, and clean up after it; where that fails, retry for half an hour.

    The session's scratch folder is removed last.

    Args:
        clean_up: removes what the session has left, given the facts; raises any exception to be called again.
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
        except Exception:  # clean_up may raise anything, and nobody is left to report it to
            time.sleep(RETRY_SECONDS)


def _is_done(facts: dict[str, Any], lines: IO[bytes]) -> bool:
    """Update the facts until the session says that nothing is left (return True) or has ended (return False)."""
    pid, start = facts["session"]
    watched: list[int] = [lines.fileno()]
    with contextlib.suppress(OSError, AttributeError):  # the session has ended, or the kernel has no pidfd
        watched.append(os.pidfd_open(pid))
    while linux.is_running(pid, start):
        readable, _, _ = select.select(watched, [], [], CHECK_SECONDS if len(watched) == 1 else None)
        if watched[0] in readable:
            line = lines.readline()
            if not line or _takes(facts, line):
                return bool(line)
    os.set_blocking(lines.fileno(), False)
    while line := lines.readline():  # sent just before its end
        if _takes(facts, line):
            return True
    return False


def _takes(facts: dict[str, Any], line: bytes) -> bool:
    """Update the facts with a line of JSON, and return whether it says that nothing is left."""
    try:
        said = json.loads(line)
    except ValueError:  # the session was killed while it wrote the line
        return False
    facts.update(said)
    return bool(said.get("done"))
