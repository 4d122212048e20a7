"""The one clock of a live view: it lets it paint when there is news, a few times a second at most."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

SECONDS_PER_TICK = 0.25
SHARE_OF_A_CORE = 0.1  # what ticks may cost at most; slower ones come more rarely

logger = logging.getLogger("muster")


class Ticker:
    """Calls ``tick`` from a thread of its own until it is closed. A tick that raises is the last one."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="muster-dashboard", daemon=True)

    def start(self) -> None:
        """Begin. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """End, and wait until no tick is under way; from a tick itself there is nothing to wait for."""
        self._closing.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.wait(pause):
            began = time.monotonic()
            try:
                self._tick()
            except Exception:  # a defect of a view, which must not end the run
                logger.exception("the dashboard failed, and shows nothing new from here on")
                return
            took = time.monotonic() - began
            pause = max(SECONDS_PER_TICK - took, took / SHARE_OF_A_CORE)
