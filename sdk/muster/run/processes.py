"""The processes of a run's workers, and which worker has which rank, as far as agents have told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from muster.runtime import clock

Source = tuple[str, int | None]  # a process: its worker, and its rank, which is None for a process without a rank
RANK_NAME = re.compile(r"rank-(\d{1,9})")


@dataclass
class ProcessState:
    """One process of a worker.

    Attributes:
        pid: its process id.
        heard_at: when it last showed a sign of life, on the monotonic clock.
        exit_status: how it ended, minus the number of a signal; None while it runs.
        was_stopped: whether its agent ended it.
        has_returned: whether its script has returned and it only serves other processes until it is released.
        stage: the stage before its first step that it reported last.
    """

    pid: int
    heard_at: float
    exit_status: int | None = None
    was_stopped: bool = False
    has_returned: bool = False
    stage: str = ""


class RunProcesses:
    """All processes of a run.

    Args:
        workers: names of the run's workers.

    Attributes:
        ranks: the worker of each rank, as planned; empty before there is a plan.
    """

    def __init__(self, workers: Iterable[str]) -> None:
        self.ranks: Mapping[int, str] = {}
        self._of: dict[str, dict[int | None, ProcessState]] = {worker: {} for worker in workers}
        self._expected: Mapping[str, int] = {}
        self._are_ranks_ordered = False  # whether the session starts the ranks, so that each is where it was planned
        self._rank_on: dict[int, str] = {}  # the worker of each rank that has been started

    def of(self, worker: str) -> dict[int | None, ProcessState]:
        """Return the processes of a worker that have been started, by rank."""
        return self._of[worker]

    def expected(self, worker: str) -> int:
        """Return how many processes a worker must have started before it can be over: 1 where the plan says nothing."""
        return self._expected.get(worker, 1)

    @property
    def started(self) -> set[Source]:
        """Processes that have been started, whether or not they still run."""
        return {(worker, rank) for worker, processes in self._of.items() for rank in processes}

    def count_started(self) -> int:
        """Return how many processes have been started."""
        return sum(map(len, self._of.values()))

    @property
    def running(self) -> dict[Source, ProcessState]:
        """Processes that have not ended."""
        return {
            (worker, rank): process
            for worker, processes in self._of.items()
            for rank, process in processes.items()
            if process.exit_status is None
        }

    @property
    def exits(self) -> dict[Source, int]:
        """Exit status of every process that has ended; minus the number of a signal that ended it."""
        return {
            (worker, rank): process.exit_status
            for worker, processes in self._of.items()
            for rank, process in processes.items()
            if process.exit_status is not None
        }

    def is_over(self, worker: str) -> bool:
        """Return whether all processes that a worker is to have were started and have ended."""
        processes = self._of[worker].values()
        return len(processes) >= self.expected(worker) and all(p.exit_status is not None for p in processes)

    def have_returned(self, worker: str) -> bool:
        """Return whether all processes of a worker have ended, or have returned and only serve other processes."""
        processes = self._of[worker].values()
        return self.is_over(worker) or (bool(processes) and all(process.has_returned for process in processes))

    def run_on(self, worker: str) -> bool:
        """Return whether any process of a worker runs."""
        return any(process.exit_status is None for process in self._of[worker].values())

    def place(self, ranks: Mapping[int, str], *, are_ordered: bool) -> None:
        """Record which worker is to run which ranks.

        Args:
            ranks: the worker of each rank, as planned.
            are_ordered: whether the session itself orders their start; a launcher may place ranks elsewhere.
        """
        self.ranks, self._are_ranks_ordered = ranks, are_ordered
        self._expected = Counter(ranks.values())
        for worker, processes in self._of.items():
            for rank in [rank for rank in processes if not self.is_expected(worker, rank)]:
                del processes[rank]

    def owner_of(self, name: str) -> str | None:
        """Return the worker of this name, or the worker that runs the rank of this name (``rank-0``); None if none."""
        rank = RANK_NAME.fullmatch(name)
        if rank is None:
            return name if name in self._of else None
        planned = self.ranks.get(int(rank[1]))
        return planned if self._are_ranks_ordered else self._rank_on.get(int(rank[1]), planned)

    def done_on(self, worker: str) -> list[str]:
        """Return the names of a worker's processes (``rank-0``, or its own) that have done what they were to do."""
        done = [rank for rank, process in self._of[worker].items() if process.has_returned or process.exit_status == 0]
        return [worker if rank is None else f"rank-{rank}" for rank in done]

    def has(self, worker: str, rank: int | None) -> bool:
        """Return whether a worker has started a rank, as its agent must have before it reports of it."""
        return rank is None or rank in self._of[worker]

    def is_expected(self, worker: str, rank: int | None) -> bool:
        """Return whether a worker is to run this process, as far as is planned: its agent must not tell of any other.

        What an agent makes up would never end, and keep the run going. Before there is a plan, all are expected.
        """
        if rank is None:
            return not self.ranks
        if not self.ranks:
            return not self._are_ranks_ordered
        if rank not in self.ranks:
            return False
        return self.ranks[rank] == worker or not (self._are_ranks_ordered or self._rank_on.get(rank, worker) != worker)

    def add(self, worker: str, rank: int | None, pid: int) -> None:
        """Record that a process has been started."""
        if rank is not None:
            before = self._rank_on.get(rank, worker)
            if before != worker:  # another worker has claimed the rank although it is not planned there
                self._of[before].pop(rank, None)
            self._rank_on[rank] = worker
        self._of[worker][rank] = ProcessState(pid, clock.now())

    def touch(self, worker: str, rank: int | None = None) -> None:
        """Record a sign of life of one rank, or of all processes of a worker where the rank is not known."""
        now = clock.now()
        for its_rank, process in self._of[worker].items():
            if rank is None or rank == its_rank:
                process.heard_at = now
