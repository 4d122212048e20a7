"""Interrupts (Ctrl-C, the stop button of a notebook) that come while something must not be torn apart."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


def _interrupt() -> KeyboardInterrupt:
    """An interrupt that has been dealt with: notebooks show no frames of it, since there is nothing to look for."""
    interrupt = KeyboardInterrupt("the run has been stopped, and nothing of it is left")
    interrupt._render_traceback_ = lambda: [f"KeyboardInterrupt: {interrupt}"]  # type: ignore[attr-defined]
    return interrupt


@contextmanager
def held(on_interrupt: Callable[[int], None]) -> Iterator[None]:
    """Have ``on_interrupt(n)`` called at the n-th interrupt, and KeyboardInterrupt raised only at the end.

    Otherwise it would be raised between any two instructions, also between those that deal with the one before.
    ``on_interrupt`` runs there, too, and must take no lock. Interrupts reach the main thread alone; and a handler that
    is not Python's own (another ``held`` further out, or a debugger's) is left in place.
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
            raise _interrupt() from None  # whatever it made of the work it interrupted
