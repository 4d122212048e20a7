"""The jobs of a user, from Slurm's queue, which is polled rarely, and once for all runs that share a ``Queue``."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from muster.errors import PlatformError
from muster.platforms.slurm.commands import Commands
from muster.platforms.slurm.words import OVER, WAITING, state_word

POLL_SECONDS = 2.0  # between two polls at least
LONGEST_PAUSE = 30.0  # limit of the pause after Slurm has not answered, which doubles each time
PLACE_SECONDS = 30.0  # between two polls of all users' jobs, which tell how many come first
FIELDS = "%i|%T|%r|%S|%P|%k"
AHEAD = "%i|%P"
OWNED = "muster:"  # what the comments of Muster's jobs begin with
T = TypeVar("T")
End = tuple[str, dict[str, str]]  # a job's state, and its other fields


@dataclass(frozen=True)
class QueuedJob:
    """A job as the queue shows it.

    Attributes:
        state: Slurm's state, such as ``PENDING``.
        reason: Slurm's reason for that state.
        starts_at: when it started, or is expected to, in seconds since the epoch; None where that is not known.
        comment: the comment that it was submitted with.
    """

    id: str
    state: str
    reason: str
    starts_at: float | None
    partition: str
    comment: str

    @property
    def is_waiting(self) -> bool:
        """True while it has no nodes yet."""
        return self.state in WAITING

    @property
    def owner(self) -> str:
        """Label of the process that the job was submitted for; empty for jobs that are not Muster's."""
        return self.comment[len(OWNED) :] if self.comment.startswith(OWNED) else ""

    @property
    def is_over(self) -> bool:
        """True once it has ended."""
        return self.state in OVER


class Queue:
    """Slurm's queue, with the answers of its last polls.

    Args:
        commands: Slurm's commands.

    Attributes:
        looks: number of polls so far.
    """

    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._lock = threading.Lock()
        self._jobs: dict[str, QueuedJob] = {}
        self._looked_at = float("-inf")  # when that was polled
        self._asked_at = float("-inf")  # when Slurm was last asked for anything
        self._ends: dict[str, tuple[float, End | None]] = {}  # by job, with the time of the question
        self._ahead: dict[str, int] = {}
        self._placed_at = float("-inf")
        self._trouble: PlatformError | None = None  # why Slurm could not be asked the last time
        self._pause = 0.0  # seconds for which it is not asked after that
        self._again_at = float("-inf")
        self.looks = 0

    def look(self) -> Mapping[str, QueuedJob]:
        """Poll the queue now, and return this user's jobs by id. Raises PlatformError where Slurm cannot be asked."""
        with self._lock:
            self._look()
            return self._jobs

    def jobs(self) -> tuple[Mapping[str, QueuedJob], float]:
        """Return this user's jobs by id, and the monotonic time of the poll that they are from.

        Raises:
            PlatformError: Slurm cannot be asked.
        """
        with self._lock:
            if time.monotonic() >= self._asked_at + POLL_SECONDS:
                waits = any(job.is_waiting for job in self._jobs.values())
                if waits and time.monotonic() >= self._placed_at + PLACE_SECONDS:
                    self._look_at_everybody()
                else:
                    self._patiently(self._look)
            return self._jobs, self._looked_at

    def end_of(self, job: str) -> End | None:
        """Return a job's end as the function ``end_of`` does, asking Slurm once for all workers of the job.

        Raises:
            SlurmGone: Slurm does not answer.
        """
        with self._lock:
            now = time.monotonic()
            self._ends = {known: end for known, end in self._ends.items() if end[0] + POLL_SECONDS > now}
            if job not in self._ends:
                self._ends[job] = now, self._patiently(lambda: end_of(self._commands, job))
            return self._ends[job][1]

    def before(self, job: str) -> int | None:
        """Return the number of pending jobs before this user's in its partitions; None where that is not known."""
        return self._ahead.get(job)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask Slurm, but after a failure raise the same error for a while without asking again."""
        if self._trouble is not None and time.monotonic() < self._again_at:
            raise self._trouble.with_traceback(None)
        try:
            found = ask()
        except PlatformError as error:
            self._pause = min(max(2 * self._pause, POLL_SECONDS), LONGEST_PAUSE)
            self._again_at = time.monotonic() + self._pause
            self._trouble = error
            raise
        self._trouble, self._pause = None, 0.0
        return found

    def _look(self) -> None:
        asked_at = time.monotonic()
        self.looks += 1
        # With -a, also the jobs in hidden partitions, which would seem to have ended otherwise.
        command = ("squeue", "--me", "-a", "-h", "-t", "all", "-o", FIELDS)
        out = self._commands.ask(*command, what="The queue could not be looked at")
        self._asked_at = self._looked_at = asked_at
        found = [_job(line) for line in out.splitlines() if line.count("|") >= FIELDS.count("|")]
        self._jobs = {job.id: job for job in found}

    def _look_at_everybody(self) -> None:
        """Count the pending jobs before each of this user's, in place of a poll, which is as much work for Slurm."""
        self._placed_at = self._asked_at = time.monotonic()
        self.looks += 1
        with contextlib.suppress(PlatformError):  # the numbers are only shown
            out = self._commands.ask(
                "squeue", "-a", "-h", "-t", "PD", "-S", "-p", "-o", AHEAD, what="The queue could not be read"
            )
            seen: dict[frozenset[str], int] = {}  # by the partitions that the jobs may go to
            ahead: dict[str, int] = {}
            for line in out.splitlines():
                job, _, names = line.partition("|")
                partitions = frozenset(names.split(","))
                if job in self._jobs:  # for all jobs it would take seconds on a large cluster
                    ahead[job] = sum(count for others, count in seen.items() if others & partitions)
                seen[partitions] = seen.get(partitions, 0) + 1
            self._ahead = ahead


def _job(line: str) -> QueuedJob:
    number, state, reason, start, partition, comment = line.split("|", 5)
    return QueuedJob(number, state, reason, float(start) if start.isdecimal() else None, partition, comment)


def end_of(commands: Commands, job: str) -> End | None:
    """Return a job's state and other fields, from scontrol or else from accounting; None where neither knows it.

    Raises:
        SlurmGone: Slurm does not answer.
    """
    code, out, _ = commands.run("scontrol", "-o", "show", "job", job)
    if code == 0 and "JobState=" in out:
        said = dict(word.split("=", 1) for word in out.split() if "=" in word)
        state = said["JobState"]
        by_whom = _accounted(commands, job) if state == "CANCELLED" else None  # who cancelled it, only accounting tells
        return by_whom[0] if by_whom and state_word(by_whom[0]) == state else state, said
    return _accounted(commands, job)


def _accounted(commands: Commands, job: str) -> End | None:
    """Return a job's end from accounting; None where there is no accounting, or no end of the job in it yet."""
    with contextlib.suppress(PlatformError):
        code, out, _ = commands.run("sacct", "-n", "-P", "-X", "-j", job, "-o", "State,ExitCode,Reason")
        if code == 0 and "|" in out:
            state, exit_code, reason = out.splitlines()[-1].split("|", 2)
            if state_word(state) in OVER:
                return state, {"ExitCode": exit_code, "Reason": reason}
    return None
