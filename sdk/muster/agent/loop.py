"""A small event loop: sockets, timers and signals, in one thread.

Everything in the agent runs in one thread, because the kernel's parent-death signal counts the end of the thread that
started a process as the end of its parent. ``asyncio`` would do the same and take eight agents a second to import.
"""

import heapq
import selectors
import signal
import socket
import time

TYPE_CHECKING = False  # typing itself is not imported: it would take a tenth of the time that a worker takes to start
if TYPE_CHECKING:
    from typing import Callable, Union

    Source = Union[int, socket.socket]


class Timer:
    """A scheduled call. ``cancel`` may be called at any time."""

    def __init__(self, due: float, call: "Callable[[], object]", interval: "float | None") -> None:
        self.due = due
        self.call = call
        self.interval = interval
        self.cancelled = False

    def cancel(self) -> None:
        """Cancel the call."""
        self.cancelled = True

    def __lt__(self, other: "Timer") -> bool:
        return self.due < other.due


class Loop:
    """Calls back when sockets are ready, timers are due, or signals have come, until stopped."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: "list[Timer]" = []
        self._handlers: "dict[int, Callable[[], object]]" = {}
        self._stopped = False
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        self.on_readable(self._wakeup, self._deliver_signals)

    def on_readable(self, source: "Source", call: "Callable[[], object] | None") -> None:
        """Call ``call()`` whenever ``source`` (a socket or descriptor) has something to read; None to stop that."""
        self._register(source, selectors.EVENT_READ, call)

    def on_writable(self, source: "Source", call: "Callable[[], object] | None") -> None:
        """Call ``call()`` whenever ``source`` takes data; None to stop that."""
        self._register(source, selectors.EVENT_WRITE, call)

    def forget(self, source: "Source") -> None:
        """Stop watching ``source``. Must come before it is closed."""
        if source in self._selector.get_map():
            self._selector.unregister(source)

    def call_later(self, delay: float, call: "Callable[[], object]") -> Timer:
        """Call ``call()`` once, ``delay`` seconds from now."""
        timer = Timer(time.monotonic() + delay, call, None)
        heapq.heappush(self._timers, timer)
        return timer

    def call_every(self, interval: float, call: "Callable[[], object]") -> Timer:
        """Call ``call()`` every ``interval`` seconds, the first time after one interval."""
        timer = Timer(time.monotonic() + interval, call, interval)
        heapq.heappush(self._timers, timer)
        return timer

    def on_signal(self, signum: int, call: "Callable[[], object]") -> None:
        """Call ``call()`` from the loop after signal ``signum`` has come; of several the one set first goes first."""
        self._handlers[signum] = call
        signal.signal(signum, _noted)

    def has_come(self, signum: int) -> bool:
        """Return whether a signal has come that is yet to be acted on."""
        try:
            return signum in self._wakeup.recv(4096, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def run(self) -> None:
        """Run until ``stop``, which may have come before."""
        while not self._stopped:
            ready = self._selector.select(self._call_due_timers())
            # Signals first: whether the agent is told to leave decides how other events are to be understood.
            ready.sort(key=lambda found: found[0].fileobj is not self._wakeup)
            for key, events in ready:
                for event, call in key.data.items():
                    if events & event and not self._stopped and self._is_watched(key, event, call):
                        call()

    def stop(self) -> None:
        """Make ``run`` return after the current call."""
        self._stopped = True

    def close(self) -> None:
        """Close the selector and the signals' wake-up."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wakeup.close()
        self._waker.close()

    def _register(self, source: "Source", event: int, call: "Callable[[], object] | None") -> None:
        calls = dict(self._selector.get_map()[source].data) if source in self._selector.get_map() else {}
        if call is None:
            calls.pop(event, None)
        else:
            calls[event] = call
        self.forget(source)
        if calls:
            self._selector.register(source, sum(calls), calls)

    def _is_watched(self, key: selectors.SelectorKey, event: int, call: "Callable[[], object]") -> bool:
        """Return whether a source that was found ready still is to be called: a call before may have closed it."""
        now = self._selector.get_map().get(key.fd)
        return now is not None and now.fileobj is key.fileobj and now.data.get(event) == call

    def _call_due_timers(self) -> "float | None":
        """Make all due calls, and return the seconds until the next one; None if there is none."""
        now = time.monotonic()
        while self._timers and (self._timers[0].cancelled or self._timers[0].due <= now):
            timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            if timer.interval is not None:
                timer.due = now + timer.interval
                heapq.heappush(self._timers, timer)
            timer.call()
        if self._stopped:
            return 0
        return max(0.0, self._timers[0].due - time.monotonic()) if self._timers else None

    def _deliver_signals(self) -> None:
        come = self._wakeup.recv(4096)
        for signum, call in list(self._handlers.items()):
            if signum in come:
                call()


def _noted(signum: int, frame: object) -> None:
    """Do nothing: the interpreter has written the signal's number to the wake-up socket; the loop does the rest."""
