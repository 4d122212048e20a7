"""Writing to a stream that may stop taking anything: a terminal after Ctrl-S, an ssh that hangs, a full pipe.

Whoever waits for such a stream waits for as long as it likes. So it is written to from threads of its own, which hold
no lock that anybody else needs: also none of Python's buffers, which the interpreter waits for when it exits.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import TextIO

SECONDS_AT_EXIT = 1.0
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WITHOUT_ESCAPES = ("", "dumb", "unknown")  # values of TERM
MOST_TEXTS = 10_000  # that wait for a stream that takes nothing; older ones are left out

logger = logging.getLogger("muster")


def takes_escapes(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that shows colours, and whose cursor can be moved."""
    return stream.isatty() and os.environ.get("TERM", "") not in WITHOUT_ESCAPES


def write(stream: TextIO, text: str) -> None:
    """Write all of ``text``, however long the stream takes.

    Raises:
        OSError, ValueError: nobody reads it any more, or it is closed.
    """
    descriptor = _descriptor(stream)
    stream.flush()  # what others have written before
    if descriptor is None:
        stream.write(text)
        stream.flush()
        return
    errors = stream.errors or "strict"
    data = memoryview(text.encode(stream.encoding or "utf-8", "replace" if errors == "strict" else errors))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody who shares it has made it so
            select.select([], [descriptor], [], 1.0)


def fill_standard_streams() -> None:
    """Have nothing read and written where this process was started without a standard stream, as by ``>&-``.

    Else the next file or connection that is opened would be taken for that stream, also by what is started.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            os.set_inheritable(null, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def write_within(stream: TextIO, text: str, seconds: float) -> None:
    """Write ``text``, but wait no longer than ``seconds`` for a stream that takes nothing."""
    outlet = Outlet(stream)
    outlet.put(text)
    outlet.close(seconds)


def _descriptor(stream: TextIO) -> int | None:
    """The file behind a stream of the system's own; None where what is written goes elsewhere, as in a notebook."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def started(run: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a thread that the end of the process does not wait for.

    None where that cannot be: the system has none left, or the interpreter is about to end (Python 3.12 and later).
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _takes_more(stream: TextIO, seconds: float) -> bool:
    """Return whether a stream takes something within so many seconds."""
    descriptor = _descriptor(stream)
    return descriptor is None or bool(select.select([], [descriptor], [], seconds)[1])


class Outlet:
    """Takes texts at once, and writes them to ``stream`` from a thread of its own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: deque[str] = deque()
        self._left_out = 0
        self._news = threading.Condition()  # held for moments only, never while something is written
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, text: str) -> None:
        """Have ``text`` written after all others; nothing once it is closed, or nobody reads any more."""
        with self._news:
            if self._closing:
                return
            self._texts.append(text)
            if len(self._texts) > MOST_TEXTS:
                self._texts.popleft()
                self._left_out += 1
            if self._thread is None or not self._thread.is_alive():  # it stays behind in the parent of a fork
                self._thread = started(self._run, "muster-outlet")
            self._news.notify()

    def close(self, seconds: float) -> None:
        """Take nothing more, and wait until all is written, but no longer than ``seconds``. Idempotent."""
        with self._news:
            self._closing = True
            self._news.notify()
        if self._thread is not None:
            self._thread.join(seconds)
        elif _takes_more(self._stream, seconds):
            self._run()

    def _run(self) -> None:
        while (text := self._next()) is not None:
            try:
                write(self._stream, text)
            except (OSError, ValueError) as error:  # nobody reads any more (`... | head`), which must not end the run
                with self._news:
                    self._closing = True
                    self._texts.clear()
                if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
                    logger.warning("The output cannot be written: %s. The run goes on without it.", error.strerror)
                return

    def _next(self) -> str | None:
        """All that waits; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._texts or self._closing)
            said = f"[… {self._left_out} lines left out: nobody read them]\n" if self._left_out else ""
            text = said + "".join(self._texts)
            self._texts.clear()
            self._left_out = 0
            return text or None


class OutletHandler(logging.Handler):
    """Writes what is logged to standard error as Python does where nobody has set up logging, but waits for nobody.

    The thread of the runs logs, and standard error may be a terminal that takes nothing. Where others handle what is
    logged this handler does nothing.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._outlet: Outlet | None = None
        self._stream: TextIO | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the text of a record to be written."""
        if logging.getLogger().handlers:
            return
        if self._outlet is None or self._stream is not sys.stderr:
            self._stream = sys.stderr
            self._outlet = Outlet(sys.stderr)
        self._outlet.put(self.format(record) + "\n")

    def close(self) -> None:
        """Wait a moment for what has yet to be written."""
        if self._outlet is not None:
            self._outlet.close(SECONDS_AT_EXIT)
        super().close()
