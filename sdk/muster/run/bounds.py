"""Bounds on what agents may report, since reports are kept, and searched at every change."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

logger = logging.getLogger("muster")

MOST_NOTES = 20  # notes about reports of all processes
NOTES_OF_EACH = 8  # notes about one worker, so that there is room for others
MOST_METRICS = 1000  # names of metrics that are kept
MOST_STAGES = 16  # stages that an agent may report for each process
SUSPENSIONS_OF_EACH = 8  # times that an agent may report each process as suspended
SPARE_PROCESSES = 64  # processes that an agent may report beyond those that its worker is to have
FAILURES_OF_EACH = 4  # failures that an agent may report for each process


class AgentBounds:
    """Counts of what each agent of a run has reported so far, which decide whether it may report more.

    Args:
        expected: returns how many processes a worker is to have.
    """

    def __init__(self, expected: Callable[[str], int]) -> None:
        self._expected = expected
        self._doubted: set[tuple[str, str]] = set()
        self._failures: Counter[str] = Counter()
        self._stages: Counter[str] = Counter()
        self._suspensions: Counter[str] = Counter()
        self._noted: set[str] = set()
        self._notes_of: Counter[str] = Counter()

    def doubt(self, worker: str, what: str) -> None:
        """Log a nonsensical report of a worker, once for each worker and text, as it may be repeated without end."""
        if (worker, what) not in self._doubted:
            self._doubted.add((worker, what))
            logger.warning("%s %s", worker, what)

    def most_processes(self, worker: str) -> int:
        """Return how many processes an agent may report."""
        return self._expected(worker) + SPARE_PROCESSES

    def allow_process(self, worker: str, rank: int | None, known: Collection[int | None]) -> bool:
        """Return whether an agent may report the start of another process, beside its worker's known ones."""
        has_room = rank not in known and len(known) < self.most_processes(worker)
        if not has_room:
            self.doubt(worker, "tells of more processes than anybody has asked for")
        return has_room

    def allow_failure(self, worker: str) -> bool:
        """Count a failure that an agent reports, and return whether to record it."""
        return self._count(
            self._failures, worker, FAILURES_OF_EACH, "tells of more failures than its processes can have"
        )

    def allow_stage(self, worker: str) -> bool:
        """Count a stage that an agent reports, and return whether to emit it."""
        return self._count(self._stages, worker, MOST_STAGES, "tells of more stages than anybody reads")

    def allow_suspension(self, worker: str) -> bool:
        """Count a suspended process that an agent reports, and return whether to tell of it."""
        return self._count(
            self._suspensions, worker, SUSPENSIONS_OF_EACH, "tells of more suspensions than anybody reads"
        )

    def _count(self, told: Counter[str], worker: str, of_each: int, too_much: str) -> bool:
        """Count one more report of a worker, and return whether that many are allowed for its processes."""
        told[worker] += 1
        has_room = told[worker] <= of_each * self.most_processes(worker)
        if not has_room:
            self.doubt(worker, too_much)
        return has_room

    def allow_note(self, worker: str, subject: str) -> bool:
        """Count a note about a worker, and return whether to emit it: each subject once."""
        has_room = len(self._noted) < MOST_NOTES and self._notes_of[worker] < NOTES_OF_EACH
        if subject in self._noted or not has_room:
            return False
        self._noted.add(subject)
        self._notes_of[worker] += 1
        return True


class Metrics:
    """Last reported values of metrics, each of the lowest rank that reports it, as the order of ranks is chance.

    Args:
        workers: names of all that may report.

    Attributes:
        values: the value of each metric, by its name.
    """

    def __init__(self, workers: Iterable[str]) -> None:
        self.values: dict[str, float] = {}
        self._reported_by: dict[str, int] = {}
        self._names_of: dict[str, list[str]] = {worker: [] for worker in workers}  # metrics that each reported first

    def take(self, worker: str, rank: int, values: Mapping[str, float]) -> None:
        """Keep what a rank of a worker reports."""
        for name, value in values.items():
            is_kept = name in self.values or self._has_room(worker, name)
            if is_kept and rank <= self._reported_by.get(name, rank):
                self._reported_by[name] = rank
                self.values[name] = value

    def _has_room(self, worker: str, name: str) -> bool:
        """Return whether a worker's new metric is kept, once there are ``MOST_METRICS`` by dropping another one for it.

        That one is of the worker with the most metrics, and is dropped if that worker has more than its share and this
        worker has fewer.
        """
        if len(self.values) >= MOST_METRICS:
            share = max(1, MOST_METRICS // len(self._names_of))
            greediest = max(self._names_of.values(), key=len)
            if len(self._names_of[worker]) >= share or len(greediest) <= share:
                return False
            given_up = greediest.pop()
            del self.values[given_up], self._reported_by[given_up]
        self._names_of[worker].append(name)
        return True
