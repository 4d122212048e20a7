"""Interrupts (Ctrl-C, the stop button of a notebook) that come while something must not be torn apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class RunInterrupted(KeyboardInterrupt):
    """An interrupt that has been dealt with: the run has ended, and no process of it is left."""

    def __init__(self, logs: Path | None = None) -> None:
        where = f" Logs: {logs}" if logs else ""
        super().__init__(f"The run was stopped (interrupted); no process of it is left.{where}")

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: no frames, since there is nothing to look for."""
        return [f"KeyboardInterrupt: {self}"]


@contextmanager
def held(on_interrupt: Callable[[int], None], logs: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Have ``on_interrupt(n)`` called at the n-th interrupt, and KeyboardInterrupt raised only at the end.

    Otherwise it would be raised between any two instructions, also between those that deal with the one before.
    ``on_interrupt`` runs there, too, and must take no lock; ``logs`` gives the folder that the exception names.
    Interrupts reach the main thread alone; and a handler that is not Python's own (another ``held`` further out, or a
    debugger's) is left in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    count = 0

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        on_interrupt(count)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if count:
            raise RunInterrupted(logs()) from None  # whatever it made of the work it interrupted
