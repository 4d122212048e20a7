"""Bounds of what agents may tell, since it is kept, and looked through at every change."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

logger = logging.getLogger("muster")

MOST_NOTES = 20  # of what processes say about themselves,
NOTES_OF_EACH = 8  # and of what those of one worker say: others are to be heard, too
MOST_METRICS = 1000  # names that are kept of what all processes report
MOST_STAGES = 16  # that an agent may tell of for each process
SPARE_PROCESSES = 64  # that an agent may tell of beyond those that its worker is to have
FAILURES_OF_EACH = 4  # that an agent may tell of for each of them


class AgentBounds:
    """Counts of what each agent of a run has told so far, which say whether it may tell more.

    Args:
        expected: returns how many processes a worker is to have.
    """

    def __init__(self, expected: Callable[[str], int]) -> None:
        self._expected = expected
        self._doubted: set[tuple[str, str]] = set()
        self._failures: Counter[str] = Counter()
        self._stages: Counter[str] = Counter()
        self._reporting: dict[str, set[int | None]] = {}  # ranks that tell of progress
        self._noted: set[str] = set()
        self._notes_of: Counter[str] = Counter()

    def doubt(self, worker: str, what: str) -> None:
        """Log something that makes no sense, once for each worker: whoever says it once may say it without end."""
        if (worker, what) not in self._doubted:
            self._doubted.add((worker, what))
            logger.warning("%s %s", worker, what)

    def most_processes(self, worker: str) -> int:
        """Return how many processes an agent may tell of."""
        return self._expected(worker) + SPARE_PROCESSES

    def allow_process(self, worker: str, rank: int | None, known: Collection[int | None]) -> bool:
        """Return whether an agent may tell that a process has started, beside those that are known of its worker."""
        has_room = rank not in known and len(known) < self.most_processes(worker)
        if not has_room:
            self.doubt(worker, "tells of more processes than anybody has asked for")
        return has_room

    def allow_failure(self, worker: str) -> bool:
        """Count a failure that an agent tells of, and return whether it is recorded."""
        return self._count(
            self._failures, worker, FAILURES_OF_EACH, "tells of more failures than its processes can have"
        )

    def allow_stage(self, worker: str) -> bool:
        """Count a stage that an agent tells of, and return whether it is told on."""
        return self._count(self._stages, worker, MOST_STAGES, "tells of more stages than anybody reads")

    def _count(self, told: Counter[str], worker: str, of_each: int, too_much: str) -> bool:
        """Count one more of a worker's, and return whether its processes may have as many."""
        told[worker] += 1
        has_room = told[worker] <= of_each * self.most_processes(worker)
        if not has_room:
            self.doubt(worker, too_much)
        return has_room

    def allow_progress(self, worker: str, rank: int | None) -> bool:
        """Return whether the progress of a rank is told on."""
        reporting = self._reporting.setdefault(worker, set())
        if rank not in reporting:
            if len(reporting) >= self.most_processes(worker):
                self.doubt(worker, "tells of the progress of more ranks than it has")
                return False
            reporting.add(rank)
        return True

    def allow_note(self, worker: str, subject: str) -> bool:
        """Return whether the user is told of something about a worker: once for each subject."""
        has_room = len(self._noted) < MOST_NOTES and self._notes_of[worker] < NOTES_OF_EACH
        if subject in self._noted or not has_room:
            return False
        self._noted.add(subject)
        self._notes_of[worker] += 1
        return True


class Metrics:
    """Values last reported, of the lowest rank that reports each: which of several comes last is chance.

    Args:
        workers: names of all that may report.

    Attributes:
        values: the value of each metric, by its name.
    """

    def __init__(self, workers: Iterable[str]) -> None:
        self.values: dict[str, float] = {}
        self._reported_by: dict[str, int] = {}
        self._names_of: dict[str, list[str]] = {worker: [] for worker in workers}  # that each told of first

    def take(self, worker: str, rank: int, values: Mapping[str, float]) -> None:
        """Keep what a rank of a worker reports."""
        for name, value in values.items():
            is_kept = name in self.values or self._has_room(worker, name)
            if is_kept and rank <= self._reported_by.get(name, rank):
                self._reported_by[name] = rank
                self.values[name] = value

    def _has_room(self, worker: str, name: str) -> bool:
        """Return whether one more name is kept: of a worker with less than its share another's gives way to it."""
        if len(self.values) >= MOST_METRICS:
            share = max(1, MOST_METRICS // len(self._names_of))
            greediest = max(self._names_of.values(), key=len)
            if len(self._names_of[worker]) >= share or len(greediest) <= share:
                return False
            given_up = greediest.pop()
            del self.values[given_up], self._reported_by[given_up]
        self._names_of[worker].append(name)
        return True
