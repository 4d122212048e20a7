"""The one among the failures of a run that is the cause of the others.

The order in which failures become known is misleading: when one rank ends, the others lose their peer, and report that
before anybody has noticed the end. So each process has one timeline (when it raised, when it ended, by one clock), each
failure is weighed by whether the end of a peer can lead to it, and the cause is the earliest that nothing else
explains. The rules and their reasons are in ``docs/fault-tests.md``.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import Any

from muster.failure.failures import OF_LAUNCHER, OF_PROCESS, OF_WORKER, SENT, Bearing, Failure, FailureKind

# Seconds by which the end of a process may become known later than it happened: if only its time makes it the cause,
# and if another process reports a broken connection.
LATE, LATEST = 0.05, 0.5
NOTICING = 0.02  # seconds by which the delays in noticing two ends of processes may differ
DROPPED = 0.2  # seconds that an agent leaves to a rank that the launcher has dropped (`HANG_UP_DELAY` there)
INSTANT = 1e-6  # seconds to put between two ends whose order is known
UNWINDING = 0.02  # seconds in which a process that raises may close its connections before it reports the exception


def root_cause(failures: Iterable[Failure]) -> Failure | None:
    """Return the failure that explains the others; None if there are no failures.

    >>> root_cause([Failure(FailureKind.EXCEPTION, 1.001, "worker-0", 0, type="ConnectionResetError", ended=1.02),
    ...             Failure(FailureKind.EXIT, 1.003, "worker-1", 1, exit_code=7)]).worker
    'worker-1'
    """
    return min(_first(failures), key=_echo_likeness, default=None)


def ties(cause: Failure, failures: Iterable[Failure]) -> list[Failure]:
    """Return failures that may just as well have come before ``cause``, earliest first."""
    return [other for other in _first(failures) if (other.worker, other.rank) != (cause.worker, cause.rank)]


def alike(cause: Failure, failures: Iterable[Failure]) -> int:
    """Return the number of processes that raised, exited or crashed in the same way as ``cause``, which is included.

    For other kinds of failure it is 1, as the kill of one process leads to kills of others.
    """
    if cause.kind is FailureKind.SIGNAL and cause.bearing is Bearing.CRASHED:
        return len({other.source for other in failures if other.kind is cause.kind and other.signal == cause.signal})
    if cause.kind not in (FailureKind.EXCEPTION, FailureKind.EXIT):
        return 1

    def words(failure: Failure) -> tuple[object, ...]:
        status = failure.exit_code if failure.kind is FailureKind.EXIT else None
        return failure.kind, failure.type, failure.message, status

    return sum(words(failure) == words(cause) for failure in _timelines(failures))


# -- one failure beside another ---------------------------------------------------------------------------------------


def _first(failures: Iterable[Failure]) -> list[Failure]:
    """Return the earliest failure that no other leads to, or several if it is not known which of them came first."""
    candidates = sorted(_unexplained(_timelines(_in_order(failures))), key=_order)
    if not candidates:
        return []
    first = candidates[0]
    return [
        failure
        for failure in candidates
        if _order(failure)[0] == _order(first)[0] and failure.time - first.time <= _blur(failure, first)
    ]


def _unexplained(timelines: Sequence[Failure]) -> list[Failure]:
    """Return the failures that no other leads to, or all if there is an explanation for each.

    Of two that may explain each other, as their times are too close, the one of lower bearing stays, or both.
    """

    def explains(cause: Failure, echo: Failure) -> bool:
        return _leads_to(cause, echo) and (cause.bearing < echo.bearing or not _leads_to(echo, cause))

    # By bearing, the earliest first, as these explain most others: this is quick even with ten thousand failures.
    by_bearing: dict[Bearing, list[Failure]] = {}
    for failure in sorted(timelines, key=lambda failure: failure.time):
        by_bearing.setdefault(failure.bearing, []).append(failure)

    def is_explained(echo: Failure) -> bool:
        groups = [causes for bearing, causes in by_bearing.items() if _can_lead_to(bearing, echo)]
        return any(explains(cause, echo) for causes in groups for cause in causes)

    return [failure for failure in timelines if not is_explained(failure)] or list(timelines)


def _can_lead_to(bearing: Bearing, echo: Failure) -> bool:
    """Return whether failures of this bearing may lead to another one, without regard to their times."""
    if bearing >= Bearing.COLLECTIVE or echo.bearing is Bearing.OWN:
        return False
    if echo.bearing >= Bearing.COLLECTIVE or bearing is Bearing.OWN:
        return True
    if bearing in (Bearing.BROKEN, Bearing.RAISED):
        return echo.bearing is not bearing
    return echo.kind is FailureKind.EXCEPTION or echo.is_call  # of two ends without a message the earlier one counts


def _leads_to(cause: Failure, echo: Failure) -> bool:
    """Return whether one failure may have led to another, by their bearings and their times."""
    if cause is echo or not _can_lead_to(cause.bearing, echo):
        return False
    if echo.bearing >= Bearing.COLLECTIVE:
        return True
    if cause.bearing is Bearing.OWN:
        return _began(cause, LATE if echo.bearing is Bearing.RAISED else LATEST) - _slack(cause, echo) <= echo.time
    if cause.bearing is Bearing.BROKEN:
        return _was_gone(cause, echo)
    if cause.bearing is Bearing.RAISED:
        if echo.bearing is Bearing.BROKEN:
            return _began(cause, LATE) - _slack(cause, echo) <= echo.time
        return _was_gone(cause, echo) or cause.time + LATE + _slack(cause, echo) < echo.time
    # A process's end is noticed a moment after its connections are closed: a peer that then calls `os._exit` may seem
    # to have ended earlier.
    overtaking = _slack(cause, echo) + (NOTICING if echo.is_call else 0.0)
    has_outlived = echo.ended is not None and echo.ended + overtaking < cause.time
    late = LATEST if echo.bearing is Bearing.BROKEN else LATE
    return not has_outlived and _began(cause, late) - _slack(cause, echo) <= echo.time


def _began(failure: Failure, late: float) -> float:
    """Return the earliest time at which it may have happened, if ends become known at most ``late`` seconds later."""
    is_exact = failure.kind is FailureKind.EXCEPTION or failure.is_call
    began = failure.time - (UNWINDING if is_exact else late)
    # On a busy machine the session may read a message long after it has arrived.
    return began if failure.since is None else min(began, failure.since)


def _was_gone(cause: Failure, echo: Failure) -> bool:
    """Return whether a process that had raised had also ended before another failed."""
    return cause.ended is not None and cause.ended - _slack(cause, echo) < echo.time


def _slack(one: Failure, other: Failure) -> float:
    """Return the seconds within which the clocks of two machines cannot tell which of two failures came first."""
    return 0.0 if one.worker == other.worker else one.uncertainty + other.uncertainty


def _blur(one: Failure, other: Failure) -> float:
    """Return the seconds within which it is not known which failure came first; 0 if the kernel has told the order."""
    if one.place is not None and other.place is not None:
        earlier, later = sorted((one, other), key=lambda failure: failure.place or 0)
        # The connections of a process are closed a moment before it counts as ended: on a busy machine a peer that
        # loses it may end before it. So one that may be a consequence is not known to have come first, unless the
        # other is more like one.
        if earlier.bearing is Bearing.OWN or _echo_likeness(earlier)[0] < _echo_likeness(later)[0]:
            return 0.0
    are_ends = FailureKind.EXCEPTION not in (one.kind, other.kind)
    return _slack(one, other) + (NOTICING if are_ends else 0.0)


def _echo_likeness(failure: Failure) -> tuple[Any, ...]:
    """Return a sort key, lower for failures that are rarely echoes. Libraries that lose a peer abort or exit 1."""
    if failure.signal == signal.SIGABRT:
        return (Bearing.SILENT + 0.6, *_order(failure)[1:])
    exits_alike = failure.kind is FailureKind.EXIT and failure.exit_code == 1
    return (failure.bearing + (0.5 if exits_alike else 0.0), *_order(failure)[1:])


def _order(failure: Failure) -> tuple[Any, ...]:
    """Return a sort key for candidates: the earliest first, but consequences of other failures last."""
    weight = max(Bearing.BROKEN, failure.bearing) + (failure.kind is not FailureKind.HUNG_UP) / 2
    who = failure.worker or "", -1 if failure.rank is None else failure.rank
    return weight, failure.time, who, str(failure.kind), failure.type, failure.message


# -- one process ------------------------------------------------------------------------------------------------------


def _in_order(failures: Iterable[Failure]) -> list[Failure]:
    """Return the failures with times of ends changed to the kernel's order, as agents may notice them in another."""
    known = list(failures)
    ends = {failure.place: failure.time for failure in known if failure.place is not None}
    latest = float("inf")
    for place in sorted(ends, reverse=True):
        latest = ends[place] = min(ends[place], latest - INSTANT)
    return [failure if failure.place is None else replace(failure, time=ends[failure.place]) for failure in known]


def _timelines(failures: Iterable[Failure]) -> list[Failure]:
    """Return one failure per process: its exception with its end, or else its end; for a lost worker only the loss.

    Signals to end that came after the launcher had failed count as the launcher's, as do crashes, connections that
    broke and collectives that failed after it had dropped ranks, whose agents then end them: they are not failures of
    the process. The same holds for signals to end processes on a lost worker: whoever ends a worker sends them to its
    agent and its processes alike, and the end of the processes becomes known first.
    """
    ordered = sorted(failures, key=_order)
    lost = {failure.worker for failure in ordered if failure.kind in OF_WORKER}
    known = [_with_its_worker(failure, lost) for failure in ordered]
    of_launcher = [failure.time + failure.uncertainty for failure in known if failure.kind in OF_LAUNCHER]
    launcher_failed_at = min(of_launcher, default=float("inf"))
    by_process: dict[tuple[object, ...], list[Failure]] = {}
    for failure in known:
        if _may_follow_launcher(failure) and launcher_failed_at < _latest_possible_cause(failure):
            failure = replace(failure, kind=FailureKind.STOPPED)
        rank = None if failure.worker in lost else failure.rank
        by_process.setdefault((failure.worker, rank, failure.kind is FailureKind.DAEMON), []).append(failure)
    return [_timeline(of_one) for of_one in by_process.values()]


def _may_follow_launcher(failure: Failure) -> bool:
    """Return whether a failure that came after the launcher's is a consequence of that.

    An exit status may be that of ``MPI_Abort``, which tells the launcher first.
    """
    was_sent = failure.kind is FailureKind.SIGNAL and failure.signal in SENT
    return was_sent or failure.bearing in (Bearing.CRASHED, Bearing.BROKEN, Bearing.COLLECTIVE)


def _latest_possible_cause(failure: Failure) -> float:
    """Return the latest time at which the launcher may have failed, if the failure is a consequence of that.

    A rank that ends by a signal as it loses others does so once their agents have ended them, `DROPPED` after the
    launcher dropped these. If it ended first, MPICH's launcher may have heard of it a moment before its agent noticed.
    """
    if failure.kind is not FailureKind.SIGNAL:
        return failure.time
    return failure.time - failure.uncertainty - DROPPED / 2


def _with_its_worker(failure: Failure, lost: Set[str | None]) -> Failure:
    """Return the failure, or, if a process was asked to end as its worker was lost, one of kind ``STOPPED``."""
    is_lost = failure.worker in lost if failure.worker else bool(lost)  # the launcher's worker is not known
    return replace(failure, kind=FailureKind.STOPPED) if is_lost and failure.was_asked_to_end else failure


def _timeline(failures: Sequence[Failure]) -> Failure:
    """Return the most informative failure of a process; if it is an exception, with the end of the process."""
    raised = [failure for failure in failures if failure.kind is FailureKind.EXCEPTION]
    ends = [failure for failure in failures if failure.kind in OF_PROCESS]
    calls = [failure for failure in ends if failure.is_call]
    others = [failure for failure in failures if not ((raised and failure in ends) or (calls and _is_mute(failure)))]
    first = min(others, key=_order_within_process)
    if first.kind in OF_WORKER:  # its consequences may begin when its first process is stopped
        stopped = [failure.time for failure in ends if failure.kind is FailureKind.STOPPED]
        return replace(first, since=min([first.time if first.since is None else first.since, *stopped]))
    if first.is_call:
        return replace(first, ended=min((end.time for end in ends if not end.is_call), default=None))
    if first.kind is not FailureKind.EXCEPTION or not ends:
        return first
    end = min(ends, key=lambda failure: failure.time)
    return replace(first, exit_code=end.exit_code, signal=end.signal, ended=end.time)


def _is_mute(failure: Failure) -> bool:
    return failure.kind is FailureKind.EXIT and not failure.is_call


def _order_within_process(failure: Failure) -> tuple[int, float]:
    """Return a sort key: an end for too much memory first, then the earliest, and consequences of others last."""
    if failure.kind is FailureKind.MEMORY:
        return -1, failure.time
    return max(Bearing.SILENT, failure.bearing), failure.time
