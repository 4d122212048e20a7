"""A value that is set once, which an interrupt of a thread that waits for it cannot spoil."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from muster.runtime.log import logger

T = TypeVar("T")
STEP_SECONDS = 1.0


class Latch(Generic[T]):
    """A value that any thread sets once, and for which others wait.

    Unlike ``threading.Event`` and ``concurrent.futures.Future`` it has only locks of the interpreter's own. Theirs are
    taken in Python code: an interrupt within that code leaves them taken, and then blocks whoever sets them for ever,
    which may be the thread of all runs.
    """

    def __init__(self) -> None:
        self._values: list[T] = []
        self._calls: deque[Callable[[], object]] = deque()
        self._gate = threading.Lock()
        self._gate.acquire()

    @property
    def value(self) -> T | None:
        """The value; None until it is set."""
        return self._values[0] if self._values else None

    def is_set(self) -> bool:
        """Return whether the value is set."""
        return bool(self._values)

    def set(self, value: T) -> None:
        """Set the value, unless it is set already, and make the calls that wait for it."""
        if self._values:
            return
        self._values.append(value)
        with contextlib.suppress(RuntimeError):  # another thread sets it at the same time
            self._gate.release()
        self._make_calls()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the value is set, some seconds at most, and return whether it is."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not self._values:
            left = STEP_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            # In steps, as an interrupt of another thread may leave the gate closed that it has just passed.
            if self._gate.acquire(timeout=min(left, STEP_SECONDS)):
                with contextlib.suppress(RuntimeError):
                    self._gate.release()
        return bool(self._values)

    def when_set(self, call: Callable[[], object]) -> None:
        """Make a call once the value is set: on the thread that sets it, or at once where it is set already."""
        self._calls.append(call)
        if self._values:
            self._make_calls()

    def _make_calls(self) -> None:
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:  # another thread has taken the last one
                return
            try:
                call()
            except Exception:
                logger.exception("a call at the end of a wait failed")
