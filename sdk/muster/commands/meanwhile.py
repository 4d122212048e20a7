"""Words at a terminal while a command does something that may take long, and shows nothing yet."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

from muster.runtime.outlet import takes_escapes, write_within

CHECKING = "checking what the run needs ..."
SECONDS = 1.0  # that something takes before it is said
SECONDS_TO_WRITE = 0.5  # that a terminal may take for it
REMOVED = "\r\x1b[K"  # moves the cursor to the line's beginning, and empties the line


@contextlib.contextmanager
def saying(text: str) -> Iterator[None]:
    """Show ``text`` while the block takes longer than a second, if standard error is a terminal."""
    stream, done = sys.stderr, threading.Event()
    if not takes_escapes(stream):
        yield
        return

    def show() -> None:
        if not done.wait(SECONDS):
            write_within(stream, text, SECONDS_TO_WRITE)
            done.wait()
            write_within(stream, REMOVED, SECONDS_TO_WRITE)

    thread = threading.Thread(target=show, name="muster-meanwhile", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
