"""The echo of a terminal, which would disturb a display that is being painted when keys are pressed."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from muster.runtime.suspension import when_suspended


@contextmanager
def without_echo() -> Iterator[None]:
    """Turn the terminal's echo off during the block. Pressed keys still reach the next reader.

    The echo is on while the process is suspended. Nothing changes where standard input and output are no terminal, or
    this process is in the terminal's background.
    """
    descriptor = _terminal()
    if descriptor is None or not _set_echo(descriptor, on=False):
        yield
        return
    end = when_suspended(partial(_set_echo, descriptor, on=True), partial(_set_echo, descriptor, on=False))
    try:
        yield
    finally:
        end()
        _set_echo(descriptor, on=True)


def _terminal() -> int | None:
    """Return the descriptor of the terminal of standard input and output; None where there is none."""
    try:
        descriptor = sys.stdin.fileno()
        return descriptor if os.isatty(descriptor) and sys.stdout.isatty() else None
    except Exception:  # a process without them, a notebook, or objects of the user's in their place
        return None


def _set_echo(descriptor: int, *, on: bool) -> bool:
    """Turn the echo on or off, and return whether it changed. In the background the kernel would stop the process."""
    with contextlib.suppress(OSError, termios.error):
        if os.tcgetpgrp(descriptor) == os.getpgrp():
            attributes = termios.tcgetattr(descriptor)
            was_on = bool(attributes[3] & termios.ECHO)
            if was_on != on:
                attributes[3] ^= termios.ECHO
                termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
                return True
    return False
