"""Observers of a run: functions that are called with every event, and can neither change nor delay the run.

Muster's own observers return at once, and are called on the thread of the runs. Each of the others gets its events from
a queue, on a separate thread: one that sleeps, or waits for a terminal or a network, gets them late but delays nobody.
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

MOST_EVENTS = 10_000  # in the queue of one observer
MOST_CHARACTERS = 16 << 20  # of output and stacks in that queue
FREQUENT = frozenset({EventKind.OUTPUT, EventKind.USAGE, EventKind.PROGRESS, EventKind.TRANSFER})

logger = logging.getLogger("muster")


class Observers:
    """The observers of a run, called with every event in the order in which they were added.

    Args:
        observers: called on the thread that calls ``tell``, so that they must return at once.
    """

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._tellers: list[tuple[Observer, Observer]] = [(observer, observer) for observer in observers]

    def add(self, observer: Observer, *, first: bool = False) -> None:
        """Call ``observer`` with every event from now on, directly, and before all others if ``first``."""
        self._tellers.insert(0 if first else len(self._tellers), (observer, observer))

    def add_queued(self, observer: Observer) -> None:
        """Call ``observer`` with every event from now on, on a separate thread."""
        self._tellers.append((observer, QueuedObserver(observer)))

    def drop(self, observer: Observer) -> None:
        """Remove ``observer``; do nothing if it was never added."""
        for pair in [pair for pair in list(self._tellers) if pair[0] == observer][:1]:
            with contextlib.suppress(ValueError):  # another thread has removed it meanwhile
                self._tellers.remove(pair)
            if isinstance(pair[1], QueuedObserver):
                pair[1].end()

    def tell(self, event: Event) -> None:
        """Give an event to all observers. One that raises is logged and removed; Ctrl-C is raised to the caller."""
        for observer, teller in list(self._tellers):
            try:
                teller(event)
            except BaseException as error:  # SystemExit and CancelledError among them, which would end the event loop
                if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                    raise
                logger.exception("an observer failed and is dropped")
                self.drop(observer)

    def are_calling(self) -> bool:
        """Return whether this is called by one of the queued observers, on its thread."""
        return any(queued.is_calling() for queued in self._queued())

    def close(self) -> None:
        """Accept no more events; queued ones are still delivered."""
        for queued in self._queued():
            queued.close()

    def are_done(self) -> bool:
        """Return whether all queued events have been delivered, after ``close``."""
        return all(queued.is_done() for queued in self._queued())

    def end(self) -> None:
        """Deliver nothing more, and log how many events have not been delivered."""
        for queued in self._queued():
            if not queued.is_done() and (left := queued.end()):
                logger.warning("an observer is too slow: the last %d events of its run are not told", left)

    def _queued(self) -> list[QueuedObserver]:
        return [teller for _, teller in list(self._tellers) if isinstance(teller, QueuedObserver)]


class QueuedObserver:
    """Calls ``observer`` with one event after the other, on a separate thread.

    If its queue is full, events are left out: output, usage, progress and transfers first, and any others, except the
    run's end, only if the queue is twice as long. A ``note`` in their place says how many.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._waiting: deque[Event] = deque()
        self._put_in = 0  # characters, in all
        self._taken_out = 0  # the same, counted on the observer's thread alone
        self._left_out = 0  # events since the last one in the queue
        self._is_closed = False
        # Held for moments only, never while the observer is called. It is entered directly, not through the condition:
        # an interrupt within the condition's Python code could leave it taken.
        self._lock = threading.RLock()
        self._news = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None

    def __call__(self, event: Event) -> None:
        """Add an event to the queue."""
        with self._lock:
            if self._is_closed:
                return
            if self._has_no_room(event.kind):
                self._left_out += 1
                return
            if self._left_out:
                self._note_gap(event.time)
            self._put(event)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="muster-observer", daemon=True)
                self._thread.start()
            self._news.notify()

    def is_calling(self) -> bool:
        """Return whether this is called by the observer."""
        return self._thread is threading.current_thread()

    def close(self) -> None:
        """Accept no more events; queued ones are still delivered."""
        with self._lock:
            if not self._is_closed:
                self._note_gap(time.time())
            self._is_closed = True
            self._news.notify()

    def is_done(self) -> bool:
        """Return whether the observer will not be called again, after ``close``."""
        return self._thread is None or not self._thread.is_alive()

    def end(self) -> int:
        """Accept and deliver nothing more; return the number of events that were not delivered."""
        with self._lock:
            left = len(self._waiting)
            self._is_closed = True
            self._waiting.clear()
            self._news.notify()
            return left

    def _has_no_room(self, kind: str) -> bool:
        events, characters = len(self._waiting), self._put_in - self._taken_out
        if events < MOST_EVENTS and characters <= MOST_CHARACTERS:
            return False
        most = 1 if kind in FREQUENT else 2
        is_full = events >= most * MOST_EVENTS or characters > most * MOST_CHARACTERS
        return is_full and kind != EventKind.RUN_ENDED

    def _note_gap(self, when: float) -> None:
        """Add a note that says how many events are missing here, if any are."""
        if self._left_out:
            count, self._left_out = self._left_out, 0
            self._put(Event.of(Note(f"{count} events are left out here: this observer is too slow."), when=when))

    def _put(self, event: Event) -> None:
        self._waiting.append(event)
        self._put_in += _size(event)

    def _next(self) -> Event | None:
        """Wait for the next event and return it; return None at the end."""
        while True:
            try:
                event = self._waiting.popleft()  # without the lock, for which the two threads would wait by turns
            except IndexError:
                with self._lock:
                    self._news.wait_for(lambda: self._waiting or self._is_closed)
                    if not self._waiting:
                        return None
            else:
                self._taken_out += _size(event)
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
