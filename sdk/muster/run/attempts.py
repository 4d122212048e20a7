"""The attempts of a run: after which failures all its ranks are started again, and how often."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from muster.checks.arguments import plain_bool
from muster.errors import JobError, LaunchRefused, MusterError, RunStalled
from muster.events import Event, Listening, Progress, Reached
from muster.failure.failures import CRASHES, OF_WORKER, Failure, FailureKind
from muster.job import Script
from muster.options.values import plain_texts, whole_number
from muster.text.arguments import Argument, ArgumentText
from muster.text.frozen import frozen

LOST, KILLED, MEMORY, FAILED, CRASHED, STALLED = CAUSES = ("lost", "killed", "memory", "failed", "crashed", "stalled")
BY_ITSELF = (LOST, KILLED)  # the default: causes that another attempt may well not meet
KINDS = {
    FailureKind.LOST: LOST,
    FailureKind.PREEMPTED: LOST,
    FailureKind.STOPPED: LOST,
    FailureKind.HUNG_UP: KILLED,
    FailureKind.DAEMON: KILLED,
    FailureKind.MEMORY: MEMORY,
    FailureKind.EXCEPTION: FAILED,
    FailureKind.EXIT: FAILED,
}
SAVES = re.compile(rb"checkpoint|MUSTER_ATTEMPT|BackupAndRestore", re.IGNORECASE)  # signs of a script that resumes


@frozen
class RestartPolicy:
    """A policy of restarts: how often a run is tried again, and after what.

    Attributes:
        restarts: the most attempts after the first.
        causes: those of ``CAUSES`` after which there is another attempt.
    """

    restarts: int = 0
    causes: Sequence[str] = BY_ITSELF

    @classmethod
    def checked(
        cls, restarts: object, restart_on: Iterable[str] | str | None, from_scratch: bool, script: Script | None
    ) -> RestartPolicy:
        """Return the policy that a user asked for.

        Raises:
            JobError: the number or a cause is not valid, or the script would begin again from nothing.
        """
        count = whole_number("restarts", restarts)
        if count < 0:
            raise JobError(f"restarts is {count}; it must not be negative.")
        plain_bool("from_scratch", from_scratch)
        causes = BY_ITSELF if restart_on is None else plain_texts("restart_on", restart_on)
        for cause in causes:
            if cause not in CAUSES:
                raise JobError(
                    f"restart_on has {cause!r}, which is no cause of a failure.", advice=f"one of {', '.join(CAUSES)}"
                )
        if count and not from_scratch and not _saves(script):
            raise JobError(
                "The script seems to keep no checkpoint, so that another attempt would begin from nothing.",
                advice=ArgumentText(
                    "muster.training.checkpoint in the script, or ", Argument("from_scratch", True),
                    " if it may begin again",
                ),
            )  # fmt: skip
        return cls(count, causes)


def _saves(script: Script | None) -> bool:
    """Return whether a script seems to resume from a checkpoint; True where its text cannot be read."""
    if script is None:
        return False
    if script.pickled:
        return bool(SAVES.search(script.pickled))
    try:
        return bool(SAVES.search(Path(script.target).read_bytes()))
    except OSError:  # a module, or a program: nobody knows
        return True


class Attempts:
    """The attempts of one run. An observer of the run, which remembers how far each worker has come.

    Attributes:
        policy: the policy of restarts.
        number: number of the present attempt, from 1.
    """

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        self.policy = policy or RestartPolicy()
        self.number = 1
        self._furthest: dict[str | None, Reached] = {}  # of each worker, in any attempt
        self._met: tuple[str | None, str | None, Reached] | None = None  # cause, worker, how far: the last failure
        self._alone = 0  # processes that were started again while the others went on
        self._returning: set[str | None] = set()  # workers whose restarted process does not listen yet

    def __call__(self, event: Event) -> None:
        """Remember how far each worker has come."""
        if type(event.data) is Listening:
            self._returning.discard(event.worker)
        reached = event.data.reached if type(event.data) is Progress else None
        if reached is not None:
            self._furthest[event.worker] = max(reached, self._furthest.get(event.worker, reached))

    def another(self, error: MusterError, failure: Failure | None) -> str | None:
        """Count another attempt if there is to be one, and return the reason as a text; None if there is none.

        There is none if the same worker has failed twice from the same cause at the same step.

        Args:
            error: the error that ended the last attempt.
            failure: the failure that caused it; None where there was none.
        """
        if failure is not None and failure.kind in OF_WORKER and failure.worker in self._returning:
            self._alone -= 1  # its process was not lost by itself: all of the worker was
        self._returning.clear()
        cause, reached = _cause_of(error, failure), self._furthest.get(error.worker)
        if cause not in self.policy.causes or not self._left:
            return None
        met = None if reached is None else (cause, error.worker, reached)
        if met is not None and met == self._met:
            error.message += f" It was the same the time before, at {reached} as well: no further attempt is made."
            return None
        self._met = met
        self.number += 1
        stop = "" if error.message.endswith((".", "!", "?")) else "."
        return f"{error.message}{stop} Attempt {self.number} of at most {self.number + self._left} begins."

    def alone(self, failure: Failure) -> bool:
        """Return whether a process may be started again while the others go on; if so, count it.

        Args:
            failure: the failure of the process.
        """
        if _cause_of_failure(failure) not in self.policy.causes or not self._left:
            return False
        self._alone += 1
        self._returning.add(failure.worker)
        return True

    @property
    def _left(self) -> int:
        """Number of restarts that are left."""
        return self.policy.restarts - self._alone - (self.number - 1)


def _cause_of(error: MusterError, failure: Failure | None) -> str | None:
    """Return the cause of an attempt's end, one of ``CAUSES``; None for an error that another attempt cannot fix."""
    if isinstance(error, LaunchRefused):  # another attempt would hardly be able to start it either
        return None
    if isinstance(error, RunStalled):
        return STALLED
    return None if failure is None else _cause_of_failure(failure)


def _cause_of_failure(failure: Failure) -> str | None:
    if failure.kind in (FailureKind.SIGNAL, FailureKind.LAUNCHER) and failure.signal is not None:
        return CRASHED if failure.signal in CRASHES else KILLED
    return None if _can_never_start(failure) else KINDS.get(failure.kind)


def _can_never_start(failure: Failure) -> bool:
    """Return whether an agent could not start a process, and not only for the moment."""
    is_short = any(os.strerror(number).lower() in failure.message.lower() for number in (errno.EAGAIN, errno.ENOMEM))
    return failure.kind is FailureKind.LOST and failure.message.startswith("cannot start ") and not is_short
