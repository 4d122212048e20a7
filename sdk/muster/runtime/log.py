"""Delivery of Muster's log records to handlers that the user has set up, which may block and raise.

The background thread logs, and so do other threads that a run depends on. So their records are handed over to a
separate thread; on the main thread, which is the user's, handlers are called at once. Callers of the logger do not get
the errors of handlers.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque

from muster.runtime.forks import in_forked_children
from muster.runtime.outlet import OutletHandler, started
from muster.text.cleaning import clean

MOST_RECORDS = 1000  # records that may wait for handlers that block; later ones are dropped
SECONDS_AT_EXIT = 1.0

logger = logging.getLogger("muster")


class HandOver(logging.Filter):
    """A filter that stops every record, and passes it to the handlers itself where they cannot block a run.

    Control characters are removed from the text, which may quote hosts, backends and scripts.
    """

    def __init__(self) -> None:
        super().__init__()
        self._telling = threading.local()  # ``now`` is true on a thread while it passes a record to handlers
        self._forget()

    def _forget(self) -> None:
        """Reset the state, as in a forked child, which does not have the thread."""
        self._waiting: deque[logging.LogRecord] = deque()
        self._left_out = 0
        self._is_telling = False
        # Held for moments only, never while a handler is called. It is entered directly, not through the condition: an
        # interrupt within the condition's Python code could leave it taken.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the logger is to call its handlers with the record now."""
        if getattr(self._telling, "now", False):
            return True
        if threading.current_thread() is threading.main_thread():
            self._tell(record)
        else:
            self._hand_over(record)
        return False

    def wait(self, seconds: float) -> None:
        """Wait until handlers have been called with all records, but no longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        while self._thread is None and self._waiting:  # no thread could be started
            self._tell(self._waiting.popleft())
        while not self.is_done() and time.monotonic() < deadline:
            time.sleep(0.002)

    def is_done(self) -> bool:
        """Return whether handlers have been called with all records that were handed over."""
        return not self._waiting and not self._is_telling

    def _hand_over(self, record: logging.LogRecord) -> None:
        with self._lock:
            if len(self._waiting) >= MOST_RECORDS:
                self._left_out += 1
                return
            self._waiting.append(record)
            if self._thread is None:
                self._thread = started(self._run, "muster-log")
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._is_telling = False
                self._news.wait_for(lambda: self._waiting)
                self._is_telling = True
                record, left_out = self._waiting.popleft(), 0
                if not self._waiting:
                    left_out, self._left_out = self._left_out, 0
            self._tell(record)
            if left_out:
                text = f"{left_out} warnings are left out here: the handlers of the log are too slow"
                self._tell(logger.makeRecord(logger.name, logging.WARNING, __file__, 0, text, (), None))

    def _tell(self, record: logging.LogRecord) -> None:
        """Have the logger call its handlers, and ignore or report what they raise."""
        self._telling.now = True
        try:
            record.msg, record.args = clean(record.getMessage()), None
            if record.exc_info:
                record.exc_text = clean(logging.Formatter().formatException(record.exc_info))
            logger.handle(record)
        except Exception:
            logging.Handler().handleError(record)  # as handlers report their own errors
        except BaseException:  # of a handler: it must not end this thread
            if threading.current_thread() is threading.main_thread():
                raise
        finally:
            self._telling.now = False


_hand_over = HandOver()
in_forked_children(_hand_over._forget)
atexit.register(_hand_over.wait, SECONDS_AT_EXIT)


def has_told() -> bool:
    """Return whether handlers have been called with everything that was logged."""
    return _hand_over.is_done()


def log_without_waiting() -> None:
    """Set Muster's logger up so that no handler, of Muster or of the user, can block a thread that logs. Idempotent."""
    logger.addFilter(_hand_over)
    if not any(isinstance(handler, OutletHandler) for handler in logger.handlers):
        logger.addHandler(OutletHandler())
