"""The way of what Muster logs to the handlers of whoever has set up logging: foreign code, which may wait and raise.

The thread of the runs logs, and others that a run depends on. So what they log is handed over to a thread of its own;
on the main thread, which is the user's, handlers are called at once. Nobody who logs hears of a handler's trouble.
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

MOST_RECORDS = 1000  # that wait for handlers that take nothing; later ones are left out
SECONDS_AT_EXIT = 1.0

logger = logging.getLogger("muster")


class HandOver(logging.Filter):
    """Lets no record through to the handlers: tells them itself, where they hold up nobody.

    What would steer a terminal is left out of the text: it says what hosts, backends and scripts have said.
    """

    def __init__(self) -> None:
        super().__init__()
        self._telling = threading.local()  # has ``now`` on the thread that tells handlers of a record
        self._forget()

    def _forget(self) -> None:
        """Begin with nothing, as in a forked child, where no thread is."""
        self._waiting: deque[logging.LogRecord] = deque()
        self._left_out = 0
        self._is_telling = False
        self._news = threading.Condition()  # held for moments only, never while a handler is called
        self._thread: threading.Thread | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the logger is to tell its handlers of the record now."""
        if getattr(self._telling, "now", False):
            return True
        if threading.current_thread() is threading.main_thread():
            self._tell(record)
        else:
            self._hand_over(record)
        return False

    def wait(self, seconds: float) -> None:
        """Wait until handlers have been told of all that was handed over, but no longer than ``seconds``."""
        deadline = time.monotonic() + seconds
        while self._thread is None and self._waiting:  # none could be started
            self._tell(self._waiting.popleft())
        while not self.is_done() and time.monotonic() < deadline:
            time.sleep(0.002)

    def is_done(self) -> bool:
        """Return whether handlers have been told of all that was handed over."""
        return not self._waiting and not self._is_telling

    def _hand_over(self, record: logging.LogRecord) -> None:
        with self._news:
            if len(self._waiting) >= MOST_RECORDS:
                self._left_out += 1
                return
            self._waiting.append(record)
            if self._thread is None:
                self._thread = started(self._run, "muster-log")
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
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
        """Have the logger tell its handlers, whatever they raise."""
        self._telling.now = True
        try:
            record.msg, record.args = clean(record.getMessage()), None
            if record.exc_info:
                record.exc_text = clean(logging.Formatter().formatException(record.exc_info))
            logger.handle(record)
        except Exception:
            logging.Handler().handleError(record)  # as handlers tell of their own trouble
        except BaseException:  # of a handler's: nobody here is to end by it, or to be interrupted
            if threading.current_thread() is threading.main_thread():
                raise
        finally:
            self._telling.now = False


_hand_over = HandOver()
in_forked_children(_hand_over._forget)
atexit.register(_hand_over.wait, SECONDS_AT_EXIT)


def has_told() -> bool:
    """Return whether handlers have been told of all that was logged."""
    return _hand_over.is_done()


def log_without_waiting() -> None:
    """Have what Muster logs hold up nobody who logs it, here and in handlers of the user's. Idempotent."""
    logger.addFilter(_hand_over)
    if not any(isinstance(handler, OutletHandler) for handler in logger.handlers):
        logger.addHandler(OutletHandler())
