"""The times at which workers were placed, and the reasons why others wait, as reported by their platform."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster import events
from muster.events import EventData
from muster.job import Status, Worker
from muster.runtime import clock
from muster.text.names import join_names

WAITS_SECONDS = 5.0  # least time between two reports of changed reasons


class Waits:
    """The places of expected workers, and the reasons why some of them wait.

    Args:
        emit: called with the data of an event and the name of its worker.
        changed: called when a time limit begins or no longer counts.
    """

    def __init__(self, emit: Callable[[EventData, str | None], None], changed: Callable[[], None]) -> None:
        self._emit = emit
        self._changed = changed
        self._placed_at: dict[str, float | None] = {}  # None: queued, as far as the platform says
        self._texts: dict[str, str] = {}  # the reasons that were reported last
        self._due = float("-inf")  # when a change of them may be reported next

    def submitted(self, worker: str, since: float) -> None:
        """Count a worker as placed since ``since``, on the monotonic clock, until the platform says that it is not."""
        self._placed_at[worker] = since

    def came(self, worker: str) -> None:
        """Count a worker that has said hello as placed, whatever the platform still says."""
        if self._placed_at.get(worker) is None:
            self._placed_at[worker] = clock.now()

    def is_queued(self, worker: str) -> bool:
        """Return whether the platform has no place for a worker yet."""
        return self._placed_at.get(worker, 0.0) is None

    def placed_at(self, worker: str) -> float:
        """Return the time, on the monotonic clock, at which a worker that is not queued was found to be placed."""
        return self._placed_at.get(worker) or clock.now()

    def polled(self, worker: Worker) -> None:
        """Handle the platform's answer about a worker that has not connected yet."""
        if worker.placed_at is None and worker.status is Status.SCHEDULING:
            if self._placed_at.get(worker.name) is not None:  # its limit is another one from now on
                self._changed()
            self._placed_at[worker.name] = None
        elif self._placed_at.get(worker.name) is None:
            self._placed_at[worker.name] = clock.now()
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
