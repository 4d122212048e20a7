"""Writing to a stream that may block: a terminal after Ctrl-S, an ssh connection that hangs, a full pipe.

A write to such a stream may block without end. So it is made from a separate thread, which holds no lock that others
need, not even that of a buffer of Python, for which the interpreter waits when it exits.
"""

from __future__ import annotations

import contextlib
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
MOST_TEXTS = 10_000  # texts that may wait for a stream that blocks; older ones are dropped

logger = logging.getLogger("muster")


def takes_escapes(stream: TextIO) -> bool:
    """Return whether ``stream`` is a terminal that shows colours, and whose cursor can be moved."""
    try:
        is_terminal = stream.isatty()
    except Exception:  # an object of the user's that can only write, as to a file; or it is closed
        return False
    return is_terminal and os.environ.get("TERM", "") not in WITHOUT_ESCAPES


def write(stream: TextIO, text: str) -> None:
    """Write all of ``text``, however long the stream takes.

    Raises:
        OSError, ValueError: the stream has no reader any more, or is closed.
        Exception: whatever an object of the user's raises.
    """
    descriptor = _descriptor(stream)
    if descriptor is None:
        stream.write(text)
        with contextlib.suppress(AttributeError):  # an object of the user's that can only write
            stream.flush()
        return
    stream.flush()  # text that others have written before
    errors = stream.errors or "strict"
    data = memoryview(text.encode(stream.encoding or "utf-8", "replace" if errors == "strict" else errors))
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # another process that shares it has made it nonblocking
            select.select([], [descriptor], [], 1.0)


def fill_standard_streams() -> None:
    """Open the null device in place of each standard stream that this process was started without, as by ``>&-``.

    Otherwise the next file or connection that is opened would get its number, also in processes that are started.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(null, True)
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def write_within(stream: TextIO, text: str, seconds: float) -> None:
    """Write ``text``, but wait no longer than ``seconds`` for a stream that blocks."""
    outlet = Outlet(stream)
    outlet.put(text)
    outlet.close(seconds)


def _descriptor(stream: TextIO) -> int | None:
    """Return the descriptor of a stream of the system; None for another kind of stream, as in a notebook."""
    if not isinstance(stream, io.TextIOWrapper):
        return None
    try:
        return stream.fileno()
    except (OSError, ValueError):
        return None


def started(run: Callable[[], object], name: str) -> threading.Thread | None:
    """Start and return a daemon thread.

    Return None where it cannot be started: the system allows no more, or the interpreter is about to end (Python 3.12
    and later).
    """
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return None
    return thread


def _takes_more(stream: TextIO, seconds: float) -> bool:
    """Return whether a stream can be written to within ``seconds``."""
    descriptor = _descriptor(stream)
    return descriptor is None or bool(select.select([], [descriptor], [], seconds)[1])


class Outlet:
    """A queue of texts that are written to ``stream`` from a separate thread, so that ``put`` never blocks."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._texts: deque[str] = deque()
        self._left_out = 0
        # Held for moments only, never while something is written. It is entered directly, not through the condition: an
        # interrupt within the condition's Python code could leave it taken.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._closing = False
        self._thread: threading.Thread | None = None

    def put(self, text: str) -> None:
        """Queue ``text`` to be written; drop it once the outlet is closed, or the stream has no reader any more."""
        with self._lock:
            if self._closing:
                return
            self._texts.append(text)
            if len(self._texts) > MOST_TEXTS:
                self._texts.popleft()
                self._left_out += 1
            if self._thread is None or not self._thread.is_alive():  # a forked child does not have it
                self._thread = started(self._run, "muster-outlet")
            self._news.notify()

    def close(self, seconds: float) -> None:
        """Accept no more texts, and wait until all are written, but no longer than ``seconds``. Idempotent."""
        with self._lock:
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
            except Exception as error:  # no reader is left (`... | head`), or the stream is a class of the user's
                with self._lock:
                    self._closing = True
                    self._texts.clear()
                if isinstance(error, OSError) and error.errno in DISK_IS_FULL:
                    logger.warning("The output cannot be written: %s. The run goes on without it.", error.strerror)
                return

    def _next(self) -> str | None:
        """Wait for texts and return all of them joined; None at the end."""
        with self._lock:
            self._news.wait_for(lambda: self._texts or self._closing)
            said = f"[… {self._left_out} lines left out: nobody read them]\n" if self._left_out else ""
            text = said + "".join(self._texts)
            self._texts.clear()
            self._left_out = 0
            return text or None


class OutletHandler(logging.Handler):
    """A handler that writes log records to standard error, like Python's handler of last resort, but never blocks.

    The background thread logs, and standard error may be a terminal that blocks. If the root logger has handlers, this
    handler does nothing.
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
        """Wait a moment for records that have yet to be written."""
        if self._outlet is not None:
            self._outlet.close(SECONDS_AT_EXIT)
        super().close()
