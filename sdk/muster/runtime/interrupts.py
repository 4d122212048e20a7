"""Handling of interrupts (Ctrl-C, the stop button of a notebook) during work that must not be broken off."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType

from muster.errors import RunInterrupted


def cancelled(text: str) -> asyncio.CancelledError:
    """Return the cancellation of an awaited run, with a text that says what has become of the run.

    It is of no class of its own: ``asyncio.timeout``, and ``asyncio.wait_for`` from Python 3.12 on, raise TimeoutError
    in place of CancelledError itself, but not in place of a subclass.
    """
    error = asyncio.CancelledError(text)
    # What IPython shows: no frames, since there is nothing to look for.
    error._render_traceback_ = lambda: [f"CancelledError: {text}"]  # type: ignore[attr-defined]
    return error


@contextmanager
def held(on_interrupt: Callable[[int], None], what_became: Callable[[], str]) -> Iterator[None]:
    """Call ``on_interrupt(n)`` at the n-th interrupt, and raise KeyboardInterrupt only at the end of the block.

    Otherwise it would be raised between any two instructions, also while an earlier interrupt is being handled.
    ``on_interrupt`` is called from the signal handler, and must take no lock; ``what_became`` returns the text of the
    exception. A SIGTERM after the first interrupt counts as another one: a notebook's server, when it shuts a
    kernel down, interrupts it, sends SIGTERM 2.5 s later, and kills it after as long again.
    Only the main thread gets interrupts; and a handler that is not Python's own (of an outer ``held``, or of a
    debugger) is left in place.
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
            raise RunInterrupted(what_became()) from None  # replaces an error of the interrupted work


def deferred() -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt only at the end of the block, which is short and must not be broken off half-way."""
    return _put_off(signal.SIGINT, signal.default_int_handler, lambda: None)


def termination_held(on_termination: Callable[[], object]) -> AbstractContextManager[None]:
    """Call ``on_termination`` at SIGTERM, and let the signal end this process only at the end of the block.

    Otherwise it would end the process while runs are being ended and recorded. An existing handler is left in place.
    """
    return _put_off(signal.SIGTERM, signal.SIG_DFL, on_termination)


@contextmanager
def _put_off(
    number: signal.Signals, usual: Callable[..., object] | signal.Handlers, on_signal: Callable[[], object]
) -> Iterator[None]:
    """Call ``on_signal`` when a signal comes in the block, and let it do what is usual only at the block's end.

    Only the main thread gets signals; and a handler that is not the usual one is left in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(number) is not usual:
        yield
        return
    came = False

    def note(signum: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        on_signal()

    signal.signal(number, note)
    try:
        yield
    finally:
        signal.signal(number, usual)
        if came:
            signal.raise_signal(number)
