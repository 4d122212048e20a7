"""The times at which workers were placed, and the reasons why others wait, as reported by their platform."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

from muster import events
from muster.events import EventData
from muster.job import Status, Worker
from muster.runtime import clock
from muster.text.names import join_names

WAITS_SECONDS = 5.0  # least time between two reports of changed reasons


class Waits:
    """The places of expected workers, and the reasons why some of them wait.

    Its answers take no longer where there are thousands of workers, since they are asked for at every change.

    Args:
        emit: called with the data of an event and the name of its worker.
        changed: called when a time limit begins or no longer counts.

    Attributes:
        last_placed: when the last of the workers that are here was placed, on the monotonic clock; None if none is.
    """

    def __init__(self, emit: Callable[[EventData, str | None], None], changed: Callable[[], None]) -> None:
        self._emit = emit
        self._changed = changed
        self.last_placed: float | None = None
        self._placed_at: dict[str, float | None] = {}  # None: queued, as far as the platform says
        self._settled: set[str] = set()  # workers that have come or are left out, perhaps before they were submitted
        self._queued: set[str] = set()  # others, without a place
        self._in_order: list[tuple[float, str]] = []  # a heap of when each was placed, with some that is out of date
        self._texts: dict[str, str] = {}  # the reasons that were reported last
        self._due = float("-inf")  # when a change of them may be reported next

    def submitted(self, worker: str, since: float) -> None:
        """Count a worker as placed since ``since``, on the monotonic clock, until the platform says that it is not."""
        self._place(worker, since)

    def came(self, worker: str) -> None:
        """Count a worker that is here as placed, whatever the platform still says."""
        placed_at = self._placed_at.get(worker)
        if placed_at is None:
            placed_at = self._placed_at[worker] = clock.now()
        self.last_placed = placed_at if self.last_placed is None else max(self.last_placed, placed_at)
        self.left_out(worker)

    def left_out(self, worker: str) -> None:
        """Expect a worker no longer."""
        self._settled.add(worker)
        self._queued.discard(worker)

    def is_queued(self, worker: str) -> bool:
        """Return whether the platform has no place yet for a worker that is expected."""
        return worker in self._queued

    @property
    def are_any_queued(self) -> bool:
        """True if the platform has no place yet for some of the workers that are expected."""
        return bool(self._queued)

    @property
    def first_placed(self) -> float | None:
        """Time at which the first of the expected workers was placed, on the monotonic clock; None if none is."""
        order = self._in_order
        while order and (order[0][1] in self._settled or self._placed_at[order[0][1]] != order[0][0]):
            heapq.heappop(order)
        return order[0][0] if order else None

    def _place(self, worker: str, at: float) -> None:
        self._placed_at[worker] = at
        self._queued.discard(worker)
        heapq.heappush(self._in_order, (at, worker))

    def polled(self, worker: Worker) -> None:
        """Handle the platform's answer about a worker that has not connected yet."""
        if worker.placed_at is None and worker.status is Status.SCHEDULING:
            if self._placed_at.get(worker.name) is not None:  # its limit is another one from now on
                self._changed()
            self._placed_at[worker.name] = None
            self._queued.add(worker.name)
        elif self._placed_at.get(worker.name) is None:
            self._place(worker.name, clock.now())
            self._changed()

    def tell(self, reasons: Mapping[str, str], statuses: Mapping[str, Status]) -> None:
        """Emit the reasons why workers wait, where they have changed; not more often than people can read."""
        changed = {name: text for name, text in reasons.items() if text != self._texts.get(name, "")}
        if not changed or clock.now() < self._due:
            return
        self._texts.update(changed)
        self._due = clock.now() + WAITS_SECONDS
        for name, text in changed.items():
            self._emit(events.WorkerState(status=str(statuses[name]), reason=text), name)

    def of(self, workers: Iterable[str]) -> list[str]:
        """Return the reasons why these workers wait: each text once, with names where the texts differ."""
        texts: dict[str, list[str]] = {}
        for name in workers:
            if self._texts.get(name):
                texts.setdefault(self._texts[name], []).append(name)
        return [text if len(texts) == 1 else f"{join_names(names)}: {text}" for text, names in texts.items()]
