"""Interrupts (Ctrl-C, the stop button of a notebook) that come while something must not be torn apart."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType


class RunInterrupted(KeyboardInterrupt):
    """An interrupt that has been dealt with; it says what has become of the run."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: no frames, since there is nothing to look for."""
        return [f"KeyboardInterrupt: {self}"]


class RunCancelled(asyncio.CancelledError):
    """The cancelling of what awaited a run, once no process of that is left."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: no frames, since there is nothing to look for."""
        return [f"CancelledError: {self}"]


def stopped(logs: Path | None) -> str:
    """The words for an interrupt that has ended a run; its logs are in that folder."""
    return f"The run was stopped (interrupted); no process of it is left.{f' Logs: {logs}' if logs else ''}"


@contextmanager
def held(on_interrupt: Callable[[int], None], logs: Callable[[], Path | None] = lambda: None) -> Iterator[None]:
    """Have ``on_interrupt(n)`` called at the n-th interrupt, and KeyboardInterrupt raised only at the end.

    Otherwise it would be raised between any two instructions, also between those that deal with the one before.
    ``on_interrupt`` runs there, too, and must take no lock; ``logs`` gives the folder that the exception names.
    A SIGTERM that comes after the first counts as another: a notebook's server, when it shuts a kernel down, interrupts
    it, sends that 2.5 s later, and kills it after as long again.
    Interrupts reach the main thread alone; and a handler that is not Python's own (another ``held`` further out, or a
    debugger's) is left in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    count = 0
    last = ExitStack()

    def interrupt() -> None:
        nonlocal count
        count += 1
        on_interrupt(count)

    def note(signum: int, frame: FrameType | None) -> None:
        interrupt()
        if count == 1:
            last.enter_context(termination_held(interrupt))

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        last.close()
        if count:
            raise RunInterrupted(stopped(logs())) from None  # whatever it made of the work it interrupted


@contextmanager
def termination_held(on_termination: Callable[[], object]) -> Iterator[None]:
    """Have ``on_termination`` called at SIGTERM, which ends this process only at the end.

    Otherwise it would do so while runs are being ended and recorded. A handler that is somebody's is left in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    came = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        on_termination()

    signal.signal(signal.SIGTERM, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGTERM)
