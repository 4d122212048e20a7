"""Guard processes that outlive the session and remove what it has left: containers, jobs, pods.

Workers end by themselves, a lease after they have lost the session, but nothing else would then remove what is left of
them. A guard runs a module of its platform, ``python -m MODULE``, which reads facts from its standard input as lines of
JSON until that ends with the session; a line with ``done`` says that nothing is left to remove.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster.agent import linux
from muster.records.scratch import sweep
from muster.runtime import children
from muster.runtime.forks import in_forked_children

RETRY_SECONDS = 1.0  # between two attempts to clean up
PATIENCE = 1800.0  # seconds after which a guard gives up cleaning up
AGENT = Path(linux.__file__).resolve().parent
MUSTER = str(AGENT.parents[1])  # the folder that this package is imported from

_busy: list[subprocess.Popen[bytes]] = []  # guards of closed platforms that still clean up


class SessionGuard:
    """A guard process that outlives the session, which this object starts. Raises OSError.

    Args:
        module: the module whose ``clean_up`` the guard calls with the facts after the session's end. Where that raises
            an exception, it is called again.
        facts: facts for its clean-up, as plain data.
    """

    def __init__(self, module: str, facts: Mapping[str, Any]) -> None:
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(AGENT / "__main__.py"), "session", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        # First what is installed: files of the user's must not stand in for modules that the session never imported.
        installed = (sys.prefix, sys.base_prefix)
        path = sorted(map(os.path.abspath, sys.path), key=lambda folder: not folder.startswith(installed))
        self.tell({**facts, "session": [os.getpid(), linux.start_of(os.getpid())], "path": [MUSTER, *path]})
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


def clean_up_after(module: str, facts: dict[str, Any], is_to_end: Callable[[], bool]) -> None:
    """Clean up after a session, in its guard, and where that fails, retry for half an hour; then remove its scratch.

    Args:
        module: name of the module whose ``clean_up`` removes what the session has left.
        facts: what the session has told its guard.
        is_to_end: returns whether the guard is to try only once more: what it leaves, the next launch removes.
    """
    deadline = time.monotonic() + PATIENCE
    is_last = False
    while not is_last and time.monotonic() < deadline:
        is_last = is_to_end()
        try:
            importlib.import_module(module).clean_up(facts)
            sweep()
            return
        except Exception:  # clean_up may raise anything, and nobody is left to report it to
            if not is_last:
                time.sleep(RETRY_SECONDS)
