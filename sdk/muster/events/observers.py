"""Observers of a run: functions that are told every event, and can neither change nor hold up the run.

Muster's own, which return at once, are told on the thread of the runs. Everybody else's get events from a queue, on a
thread of their own each: one that sleeps, or waits for a terminal or a network, is late and keeps nobody else waiting.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

from muster.events import Event, EventKind, Note, Observer, Output, ProcessStacks

MOST_EVENTS = 10_000  # that wait for one observer
MOST_CHARACTERS = 16 << 20  # of output and stacks in them
FREQUENT = frozenset({EventKind.OUTPUT, EventKind.USAGE, EventKind.PROGRESS, EventKind.TRANSFER})

logger = logging.getLogger("muster")


class Observers:
    """List of those who are told every event of a run, in the order in which they were added.

    Args:
        observers: told on the thread of whoever tells, and so to return at once.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._tellers: list[tuple[Observer, Observer]] = [(observer, observer) for observer in observers]

    def add(self, observer: Observer, *, first: bool = False) -> None:
        """Tell ``observer`` every event from now on, at once, and before all others if ``first``."""
        self._tellers.insert(0 if first else len(self._tellers), (observer, observer))

    def add_queued(self, observer: Observer) -> None:
        """Tell ``observer`` every event from now on, on a thread of its own."""
        self._tellers.append((observer, QueuedObserver(observer)))

    def drop(self, observer: Observer) -> None:
        """Tell ``observer`` no more; fine if nobody has."""
        for pair in [pair for pair in list(self._tellers) if pair[0] == observer][:1]:
            with contextlib.suppress(ValueError):  # it has dropped itself meanwhile
                self._tellers.remove(pair)
            if isinstance(pair[1], QueuedObserver):
                pair[1].end()

    def tell(self, event: Event) -> None:
        """Tell everybody. One that raises is logged and dropped; but an interrupt is the caller's."""
        for observer, teller in list(self._tellers):
            try:
                teller(event)
            except BaseException as error:  # SystemExit and CancelledError among them, which would end the event loop
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                logger.exception("an observer failed and is dropped")
                self.drop(observer)

    def are_calling(self) -> bool:
        """Return whether the caller is one of these observers, on its own thread."""
        return any(queued.is_calling() for queued in self._queued())

    def close(self) -> None:
        """Take no more events. Those that wait will be told all the same."""
        for queued in self._queued():
            queued.close()

    def are_done(self) -> bool:
        """Return whether all has been told, once these are closed."""
        return all(queued.is_done() for queued in self._queued())

    def end(self) -> None:
        """Tell nothing more, and log how much has not been told."""
        for queued in self._queued():
            if not queued.is_done() and (left := queued.end()):
                logger.warning("an observer is too slow: the last %d events of its run are not told", left)

    def _queued(self) -> list[QueuedObserver]:
        return [teller for _, teller in list(self._tellers) if isinstance(teller, QueuedObserver)]


class QueuedObserver:
    """Calls ``observer`` with event after event, on a thread of its own.

    Where more wait than it may have it is not told of some: of output, usage, progress and transfers first, of anything
    else but the run's end only where twice as many wait. A ``note`` in their place says how many.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._waiting: deque[Event] = deque()
        self._characters = 0
        self._left_out = 0  # since the last event that waits
        self._is_closed = False
        self._news = threading.Condition()  # held for moments only, never while the observer is called
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        """Have the observer told after all else that waits."""
        with self._news:
            if self._is_closed:
                return
            if self._has_no_room(event.kind):
                self._left_out += 1
                return
            self._note_gap(event.time)
            self._put(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="muster-observer", daemon=True)
                self._thread.start()
            self._news.notify()

    def is_calling(self) -> bool:
        """Return whether the caller is the observer."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """Accept no more events; those that wait are still delivered."""
        with self._news:
            if not self._is_closed:
                self._note_gap(time.time())
            self._is_closed = True
            self._news.notify()

    def is_done(self) -> bool:
        """Return whether the observer is called no more, once this is closed."""
        return self._thread is None or not self._thread.is_alive()

    def end(self) -> int:
        """Take nothing more, and tell nothing more. Return how many events are dropped so."""
        with self._news:
            left = len(self._waiting)
            self._is_closed = True
            self._waiting.clear()
            self._news.notify()
            return left

    def _has_no_room(self, kind: str) -> bool:
        most = 1 if kind in FREQUENT else 2
        is_full = len(self._waiting) >= most * MOST_EVENTS or self._characters > most * MOST_CHARACTERS
        return is_full and kind != EventKind.RUN_ENDED

    def _note_gap(self, when: float) -> None:
        """Say how many events are missing here, where some are."""
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._put(Event.of(Note(f"{count} events are left out here: this observer is too slow."), when=when))

    def _put(self, event: Event) -> None:
        self._waiting.append(event)
        self._characters += _size(event)

    def _next(self) -> Event | None:
        """The next event; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._is_closed)
            if not self._waiting:
                return None
            event = self._waiting.popleft()
            self._characters -= _size(event)
            return event

    def _run(self) -> None:
        while (event := self._next()) is not None:
            try:
                self._observer(event)
            except BaseException:  # also SystemExit, which would only end this thread
                logger.exception("an observer failed and is dropped")
                self.end()


def _size(event: Event) -> int:
    data: Any = event.data
    has_text = type(data) is Output or type(data) is ProcessStacks  # isinstance of a mapping's class takes longer
    return len(data.text or "") if has_text else 0
