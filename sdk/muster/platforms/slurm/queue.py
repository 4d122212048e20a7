"""The jobs of this user, by one look at Slurm's queue for all runs of this process, and rarely."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from muster.errors import PlatformError
from muster.platforms.slurm import commands
from muster.platforms.slurm.words import OVER, WAITING, state_word

POLL_SECONDS = 2.0  # between two polls at the least
LONGEST_PAUSE = 30.0  # until Slurm is asked again that does not answer: twice as long each time, up to this
PLACE_SECONDS = 30.0  # between two polls of everybody's jobs, for how many come first
FIELDS = "%i|%T|%r|%S|%P|%k"
AHEAD = "%i|%P"
T = TypeVar("T")
End = tuple[str, dict[str, str]]  # a job's state, and what else is said of it


@dataclass(frozen=True)
class QueuedJob:
    """A job as the queue shows it.

    Attributes:
        state: Slurm's word, such as ``PENDING``.
        reason: Slurm's, why it is in that state.
        starts_at: when it started, or is expected to, in seconds since the epoch; None where that is not known.
        comment: what its submission said of it.
    """

    id: str
    state: str
    reason: str
    starts_at: float | None
    partition: str
    comment: str

    @property
    def is_waiting(self) -> bool:
        """True as long as it has no nodes."""
        return self.state in WAITING

    @property
    def is_over(self) -> bool:
        """True once it has ended."""
        return self.state in OVER


class Queue:
    """Looks at the queue, and remembers what it has seen.

    Attributes:
        looks: how often it has been looked at.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, QueuedJob] = {}
        self._looked_at = float("-inf")  # when that was so
        self._asked_at = float("-inf")  # when Slurm was last asked for anything
        self._ends: dict[str, tuple[float, End | None]] = {}  # of jobs, and when they were asked for
        self._ahead: dict[str, int] = {}
        self._placed_at = float("-inf")
        self._trouble: PlatformError | None = None  # why Slurm could not be asked the last time
        self._pause = 0.0  # for which it is not asked after that
        self._again_at = float("-inf")
        self.looks = 0

    def look(self) -> Mapping[str, QueuedJob]:
        """Look now, and return this user's jobs by id. Raises PlatformError where Slurm cannot be asked."""
        with self._lock:
            self._look()
            return self._jobs

    def jobs(self) -> tuple[Mapping[str, QueuedJob], float]:
        """Return this user's jobs by id, and the monotonic time at which that was so.

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
        """Return what ``end_of`` does: asked for once for all workers of a job.

        Raises:
            SlurmGone: Slurm does not answer.
        """
        with self._lock:
            now = time.monotonic()
            self._ends = {known: end for known, end in self._ends.items() if end[0] + POLL_SECONDS > now}
            if job not in self._ends:
                self._ends[job] = now, self._patiently(lambda: end_of(job))
            return self._ends[job][1]

    def before(self, job: str) -> int | None:
        """Return how many pending jobs come before this one in its partition, as far as was last seen."""
        return self._ahead.get(job)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask Slurm, and leave it alone for a while where it does not answer. Raises what the last call has."""
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
        # With -a, also those in partitions that are hidden, from where they would seem to have gone.
        command = ("squeue", "--me", "-a", "-h", "-t", "all", "-o", FIELDS)
        out = commands.ask(*command, what="The queue could not be looked at")
        self._asked_at = self._looked_at = asked_at
        found = [_job(line) for line in out.splitlines() if line.count("|") >= FIELDS.count("|")]
        self._jobs = {job.id: job for job in found}

    def _look_at_everybody(self) -> None:
        """Count who comes first. It takes the place of a look, as it asks as much of Slurm."""
        self._placed_at = self._asked_at = time.monotonic()
        self.looks += 1
        with contextlib.suppress(PlatformError):  # nothing depends on it
            out = commands.ask(
                "squeue", "-a", "-h", "-t", "PD", "-S", "-p", "-o", AHEAD, what="The queue could not be read"
            )
            seen: dict[str, int] = {}
            ahead: dict[str, int] = {}
            for line in out.splitlines():
                job, _, partition = line.partition("|")
                ahead[job] = seen.get(partition, 0)
                seen[partition] = ahead[job] + 1
            self._ahead = ahead


def _job(line: str) -> QueuedJob:
    number, state, reason, start, partition, comment = line.split("|", 5)
    return QueuedJob(number, state, reason, float(start) if start.isdecimal() else None, partition, comment)


def end_of(job: str) -> End | None:
    """Return the state of a job, and what else is said of it, by scontrol or else accounting; None where nobody knows.

    Raises:
        SlurmGone: Slurm does not answer.
    """
    code, out, _ = commands.run("scontrol", "-o", "show", "job", job)
    if code == 0 and "JobState=" in out:
        said = dict(word.split("=", 1) for word in out.split() if "=" in word)
        state = said["JobState"]
        by_whom = _accounted(job) if state == "CANCELLED" else None  # which only accounting knows
        return by_whom[0] if by_whom and state_word(by_whom[0]) == state else state, said
    return _accounted(job)


def _accounted(job: str) -> End | None:
    """Return what accounting says of a job's end; None where there is none, or where it has not heard of that."""
    with contextlib.suppress(PlatformError):
        code, out, _ = commands.run("sacct", "-n", "-P", "-X", "-j", job, "-o", "State,ExitCode,Reason")
        if code == 0 and "|" in out:
            state, exit_code, reason = out.splitlines()[-1].split("|", 2)
            if state_word(state) in OVER:
                return state, {"ExitCode": exit_code, "Reason": reason}
    return None


queue = Queue()  # of this process: all its runs are in the one look
