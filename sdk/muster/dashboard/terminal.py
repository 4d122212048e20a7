"""The live dashboard of a terminal, repainted by a separate thread."""

from __future__ import annotations

import io
import itertools
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from rich.console import Console
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType
from rich.text import Text

from muster.dashboard.fold import fold
from muster.dashboard.run import RunView
from muster.dashboard.screen import Screen
from muster.dashboard.ticker import Ticker
from muster.events import Event, EventKind
from muster.runtime import outlet
from muster.runtime.suspension import is_in_background, when_suspended

SECONDS_TO_LEAVE = 1.0  # at most, that Ctrl-Z waits until the dashboard has released the terminal
IDLE_SECONDS = 1.0  # between frames if nothing changes but the elapsed time


class TerminalDashboard:
    """Shows a run live in a terminal, from its first event until it has ended or ``close`` is called.

    Events only update the view. A separate thread paints frames into memory, for which it holds a lock for a moment,
    and then writes them to the terminal. A terminal that stops reading misses frames, and blocks no other thread.

    Args:
        stream: the terminal; standard output by default.
        clock: returns the current time as events give it, in seconds since the epoch.
    """

    def __init__(self, *, stream: TextIO | None = None, clock: Callable[[], float] = time.time) -> None:
        self.view = RunView(clock=clock)
        self._stream = stream or sys.stdout
        self._frames = _Frames(self._stream)
        self._lock = threading.Lock()  # guards the view: events come from one thread, frames are painted in others
        self._screen = Screen(self.view, is_last=False, lock=self._lock)
        self._console = Console(file=self._frames, force_terminal=True)
        self._live = self._new_frame()
        self._is_closed = False
        self._painted = (-1, float("-inf"))
        self._size = self._console.size
        self._scrolled_away = 0  # number of the frame's lines above the top of the terminal
        self._suspending, self._left = threading.Event(), threading.Event()
        self._ticker = Ticker(self._tick, self._finish)
        self._stop_watching = when_suspended(self._leave, self._suspending.clear)

    def __call__(self, event: Event) -> None:
        """Take one event into account, and show it with the next frame."""
        if self._is_closed:
            return
        with self._lock:
            fold(self.view, event)
        self._ticker.start()
        if event.kind == EventKind.RUN_ENDED:
            self.close()

    observe = __call__

    def close(self) -> None:
        """Paint the last frame, print where the logs are, and release the terminal, if it takes the output in time."""
        self._is_closed = True
        self._ticker.close()
        self._stop_watching()

    def _new_frame(self) -> Live:
        """Return a live view that paints its first frame below all earlier output, and the next ones over it."""
        return Live(self._screen, console=self._console, auto_refresh=False, redirect_stderr=False)

    def _tick(self) -> None:
        is_suspending = self._suspending.is_set()
        if is_suspending or is_in_background(self._stream):
            self._leave_frame()
        else:
            self._paint()
        self._frames.pass_on()
        if is_suspending:
            self._left.set()  # only now that the terminal has the output: a stopped process writes nothing

    def _leave(self) -> None:
        """Have the painting thread release the terminal until this process is no longer suspended."""
        self._left.clear()
        self._suspending.set()
        self._left.wait(SECONDS_TO_LEAVE)  # with a limit, as the terminal may accept no output

    def _leave_frame(self) -> None:
        """Leave the frame on the screen as it is, and begin the next one below the output of other programs."""
        if self._live.is_started:
            self._frames.pass_on()
            self._live.stop()
            self._frames.forget()
            self._console.show_cursor(True)
            self._screen.widths, self._scrolled_away = [], 0
            self._live = self._new_frame()
            self._painted = (-1, float("-inf"))

    def _paint(self) -> None:
        version, painted_at = self._painted
        now = time.monotonic()
        if not self._live.is_started:
            self._live.start()
        if self.view.version != version or now - painted_at >= IDLE_SECONDS:
            self._painted = (self.view.version, now)
            self._fit()
            self._live.refresh()

    def _fit(self) -> None:
        """Erase the lines of the last frame that a resized terminal shows above those that Rich paints over.

        A narrower terminal wraps the frame's lines into more than Rich goes up. (If it cuts them instead, as many lines
        above the frame are lost.) A terminal with fewer lines scrolls the first ones away, and may bring them back when
        it grows again; if it does not, the frame is at the top of the terminal, with nothing above that could be lost.
        """
        before, self._size = self._size, self._console.size
        if before == self._size:
            return
        width, rows = self._size
        heights = [max(-(-painted // width), 1) if width < before.width else 1 for painted in self._screen.widths]
        more = sum(heights) - len(heights)
        scrolled_away = sum(end <= sum(heights) - rows for end in itertools.accumulate(heights))
        brought_back = min(self._scrolled_away, max(rows - before.height, 0))
        for _ in range(more + brought_back):
            self._console.control(Control((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)))
        self._scrolled_away += scrolled_away - brought_back

    def _finish(self) -> None:
        logs = f"Logs: {self.view.logs_command}" if self.view.logs_command else ""
        self._screen.is_last = True
        self._screen.lines_below = 1 + -(-len(logs) // self._console.width)  # for the prompt, or a message
        self._live.start()  # without effect if it has started
        self._fit()
        self._live.stop()  # paints the last frame
        if logs:
            self._console.print(Text(logs), soft_wrap=True)
        self._frames.pass_on()


class _Frames(io.StringIO):
    """Buffer of frames painted by Rich that are not yet written to the terminal, and of other output meanwhile."""

    def __init__(self, terminal: TextIO) -> None:
        super().__init__()
        self._terminal = terminal
        self._taking = threading.Lock()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # Rich chooses its characters by the encoding
        return self._terminal.encoding or "utf-8"

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        with self._taking:
            return super().write(text)

    def forget(self) -> None:
        """Discard the output that has not been passed on."""
        with self._taking:
            self.seek(0)
            self.truncate()

    def pass_on(self) -> None:
        """Write everything to the terminal, however long that takes."""
        with self._taking:
            text = self.getvalue()
            self.seek(0)
            self.truncate()
        if text:
            outlet.write(self._terminal, text)
