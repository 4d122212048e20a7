"""The workers of a run that do not go on, as far as is known: silent agents, and suspended processes."""

from __future__ import annotations

from collections.abc import Callable

from muster import events
from muster.events import EventData
from muster.runtime import clock

NO_ANSWER = "has not answered"
SUSPENDED = "is suspended, by SIGSTOP or a debugger,"


class Silences:
    """The workers of a run that do not go on: their agents are silent, or processes suspended. That ends nothing.

    Args:
        emit: called with an event and its worker, where what is known has changed.

    Attributes:
        suspected: what the platform says why running workers may be silent, by worker.
    """

    def __init__(self, emit: Callable[[EventData, str], None]) -> None:
        self._emit = emit
        self.suspected: dict[str, str] = {}
        self._silent_since: dict[str, float] = {}  # when such agents were last heard, in seconds since the epoch
        self._suspended_since: dict[str, dict[int | None, float]] = {}  # processes, by worker and rank
        self._told: dict[str, events.Silence] = {}  # as last told, of the workers that do not go on

    @property
    def are_any_silent(self) -> bool:
        """True if there are agents that do not answer."""
        return bool(self._silent_since)

    def begin(self, worker: str, seconds: float, why: str | None = None) -> None:
        """Record that a worker's agent has not answered for so long, and why, if that is known."""
        self._silent_since[worker] = clock.wall_time() - seconds
        self._tell(worker, why)

    def explain(self, worker: str, why: str | None) -> None:
        """Record what the platform says of a worker, if its agent does not answer."""
        if worker in self._silent_since:
            self._tell(worker, why)

    def end(self, worker: str) -> None:
        """Record that the agent of such a worker answers again, or need not answer any more."""
        if self._silent_since.pop(worker, None) is not None:
            self._tell(worker)

    def suspended(self, worker: str, rank: int | None) -> None:
        """Record that a process is suspended."""
        self._suspended_since.setdefault(worker, {}).setdefault(rank, clock.wall_time())
        self._tell(worker)

    def resumed(self, worker: str, rank: int | None) -> None:
        """Record that a process is not, or no longer, suspended."""
        if self._suspended_since.get(worker, {}).pop(rank, None) is not None:
            self._tell(worker)

    def why(self, worker: str) -> str | None:
        """Return why a worker does not go on; None if that is not known, or it does."""
        return self._told[worker].why if worker in self._told else None

    def _tell(self, worker: str, why: str | None = None) -> None:
        """Tell that a worker is silent, and why, or that it goes on, where that is new."""
        before = self._told.get(worker, events.Silence())
        suspended = self._suspended_since.get(worker, {})
        if worker in self._silent_since:
            found = events.Silence(self._silent_since[worker], NO_ANSWER, why or before.why)
        elif suspended:
            rank, since = next(iter(suspended.items()))
            found = events.Silence(since, SUSPENDED if rank is None else f"(rank {rank}) {SUSPENDED}")
        else:
            found = events.Silence()
        if found == before:
            return
        self._told[worker] = found
        if not found:
            del self._told[worker]
        self._emit(found, worker)
