"""The thread of a live view, which has the view paint a few times a second at most."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from muster.runtime.background import on_background_thread
from muster.runtime.latch import Latch

SECONDS_PER_TICK = 0.25
SHARE_OF_A_CORE = 0.1  # that ticks may use; those that need more come more rarely
LONGEST_PAUSE = 1.0  # a view that hears nothing for two seconds takes its session for gone
SECONDS_TO_FINISH = 3.0  # that closing a view waits for its last picture
SECONDS_ON_THE_BACKGROUND_THREAD = 0.5  # the same on the background thread, which all runs need

logger = logging.getLogger("muster")


def seconds_to_finish() -> float:
    """Return the seconds for which this thread waits when it closes a view."""
    return SECONDS_ON_THE_BACKGROUND_THREAD if on_background_thread() else SECONDS_TO_FINISH


def pause_after(took: float, used: float) -> float:
    """Return the seconds to wait after a tick that took so many seconds, and used so many of a core.

    On a busy machine a tick takes much longer than it uses, and the view would seem to stand still.
    """
    return min(max(SECONDS_PER_TICK - took, used / SHARE_OF_A_CORE), LONGEST_PAUSE)


class Ticker:
    """Calls ``tick`` from a separate thread until it is closed, and ``finish`` there at the end.

    A tick that raises is the last one. A tick that never returns blocks nobody: ``close`` waits for a while only.
    """

    def __init__(self, tick: Callable[[], None], finish: Callable[[], None] = lambda: None) -> None:
        self._tick = tick
        self._finish = finish
        self._closing: Latch[bool] = Latch()
        self._thread = threading.Thread(target=self._run, name="muster-dashboard", daemon=True)

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End the ticks, and wait for a while until ``finish`` is done, unless called from a tick. Idempotent."""
        self._closing.set(True)
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds_to_finish())

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            began, used = time.monotonic(), time.thread_time()
            if not self._call(self._tick):
                break
            pause = pause_after(time.monotonic() - began, time.thread_time() - used)
        self._closing.wait()
        self._call(self._finish)

    def _call(self, function: Callable[[], None]) -> bool:
        try:
            function()
        except (OSError, ValueError) as error:  # the output was closed
            logger.debug("the dashboard shows nothing new from here on: %s", error)
            return False
        except Exception:  # a defect of a view, which must not end the run
            logger.exception("the dashboard failed, and shows nothing new from here on")
            return False
        return True
