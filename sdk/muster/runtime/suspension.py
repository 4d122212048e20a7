"""Suspension by Ctrl-Z, and the background of a terminal, in which a display must not paint over other jobs' output."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TextIO


def is_in_background(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal in which another job than this one is in the foreground."""
    try:
        return os.tcgetpgrp(stream.fileno()) != os.getpgrp()
    except (AttributeError, OSError, ValueError):  # no terminal, or not the one that controls this process
        return False


def when_suspended(before: Callable[[], object], after: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """Call ``before`` when Ctrl-Z is pressed, and ``after`` once this process goes on.

    Only the main thread can handle signals: on others this does nothing. Callbacks that are set later are nested inside
    those set earlier.

    Returns:
        A function that ends this.
    """
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    earlier = signal.getsignal(signal.SIGTSTP)
    if earlier is signal.SIG_IGN or earlier is None:
        return lambda: None
    is_over = False

    def handle(number: int, frame: FrameType | None) -> None:
        if not is_over:
            before()
        if callable(earlier):
            earlier(number, frame)
        else:
            os.kill(os.getpid(), signal.SIGSTOP)
        if not is_over:
            after()

    def end() -> None:
        nonlocal is_over
        is_over = True
        with contextlib.suppress(ValueError):  # on another thread the handler stays, and only suspends the process
            if signal.getsignal(signal.SIGTSTP) is handle:
                signal.signal(signal.SIGTSTP, earlier)

    signal.signal(signal.SIGTSTP, handle)
    return end
