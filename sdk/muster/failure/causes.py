"""The failures of a run, and the one among them that is the cause.

The order in which failures become known lies: when one rank ends, the others lose their peer, and say so before anybody
has noticed the end. So each process has one timeline (when it raised, when it ended, by one clock), each failure is
weighed by whether the end of a peer can lead to it, and the cause is the earliest that nothing else explains. The rules
and their reasons stand in ``docs/fault-tests.md``.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

from muster.text.cleaning import clean


class FailureKind(str, Enum):
    """Kind of a failure."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    LOST = "lost"  # the worker's agent is gone
    PREEMPTED = "preempted"  # the same, as others took its place
    OVERTIME = "overtime"  # its platform ended it for the time that it took
    CANCELLED = "cancelled"  # somebody had the platform end it
    ENDED = "ended"  # a server that should not end did
    STOPPED = "stopped"  # its agent ended it, and not because the session said so
    HUNG_UP = "hung_up"  # its launcher hung up
    DAEMON = "daemon"  # what the launcher starts on a worker was killed, or cannot run there
    LAUNCHER = "launcher"  # the launcher itself ended; its name is in ``message``

    def __str__(self) -> str:
        return self.value


# Messages of programs that have lost a peer. Whose own connection it was, only time tells.
BROKEN_CONNECTION = re.compile(
    r"ConnectionError|ConnectionRefusedError|ConnectionResetError|ConnectionAbortedError|BrokenPipeError|EOFError|TimeoutError|"
    r"IncompleteReadError|Connection reset by peer|Connection closed by peer|Broken pipe|Connection timed out|"
    r"Transport endpoint is not connected|No route to host|Network is unreachable|Connection refused|data was truncated"
)
# Messages of frameworks about others: no process that failed first ever had one.
COLLECTIVE = re.compile(
    r"Horovod has been shut ?down|HorovodInternalError|Read error \[|Socket closed|failed to connect to all addresses|"
    r"UnavailableError|AbortedError|CancelledError|Cancelled by|RST_STREAM|session .{0,100}is not found|"
    r"Step was cancelled|Connection (?:closed|reset) by peer \[|pair\.cc",
    re.IGNORECASE,
)
EXCEPTION_LINE = re.compile(r"^[A-Za-z_][\w.]*(?::.*)?$", re.MULTILINE)
SENT = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}  # how one process asks another to end
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}  # how compiled code ends itself

OF_LAUNCHER = {FailureKind.LAUNCHER, FailureKind.HUNG_UP, FailureKind.DAEMON}
OF_WORKER = {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.OVERTIME, FailureKind.CANCELLED}
OF_PROCESS = {FailureKind.EXIT, FailureKind.SIGNAL, FailureKind.STOPPED}
OF_SIGNALS = {FailureKind.SIGNAL, FailureKind.DAEMON, FailureKind.LAUNCHER}  # which signals may end

# Seconds by which the end of a process may be known later than it happened, where nothing but its time speaks for it,
# and where another process says that a connection has broken.
LATE, LATEST = 0.05, 0.5
NOTICING = 0.02  # seconds by which one end of a process is noticed later than another
INSTANT = 1e-6  # seconds between two ends of which the order is known
UNWINDING = 0.02  # seconds in which a process that has raised may have closed its connections before it could say so


class Bearing(IntEnum):
    """The bearing of a peer's end on a kind of failure; the lower, the more a failure speaks for itself."""

    OWN = 0  # no peer's end leads to it: a kill, too much memory, a lost worker, a killed launcher
    RAISED = 1  # an exception that tells of no connection
    CRASHED = 2  # compiled code may crash when it loses a peer
    SILENT = 3  # an exit status without a word: the program's own, or of a library that has lost a peer
    BROKEN = 4  # its connection broke: a peer has gone, or something that only this process was connected to
    COLLECTIVE = 5  # a framework's word for another's failure, or SIGPIPE
    NOBODY = 6  # what a launcher and an agent do in consequence


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong in a run.

    Attributes:
        kind: what it was.
        time: when it happened, seconds by the session's monotonic clock.
        worker, rank: to whom; None for the launcher.
        type, message, traceback: of the exception; for a worker that is gone ``message`` says why.
        advice: what to try, where the platform knows.
        exit_code, signal: of the process.
        used, limit: memory in bytes.
        ended: when the process ended that had raised, or called ``sys.exit``; None where it has not, and for
            everything else.
        peer_was_gone: whether the other end had closed a connection of the process when it raised, or called
            ``sys.exit`` or ``os._exit``; None if not known.
        since: the last moment at which all was well as far as anybody knows; None where ``time`` is good enough.
        place: of the end in the order in which processes ended, where the kernel of the session's machine has told it.
        uncertainty: how far ``time`` may be from the truth, in seconds, because its clock is another machine's.
    """

    kind: FailureKind
    time: float
    worker: str | None = None
    rank: int | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    advice: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    used: int | None = None
    limit: int | None = None
    ended: float | None = None
    peer_was_gone: bool | None = None
    since: float | None = None
    place: int | None = None
    uncertainty: float = 0.0

    @property
    def source(self) -> tuple[str | None, int | None]:
        """The process that it happened to: its worker and rank."""
        return self.worker, self.rank

    def to_data(self, others: Iterable[tuple[str | None, int | None]] = ()) -> dict[str, Any]:
        """The failure as ``MusterError.failure`` has it, with the other processes that its error names."""
        why = "" if self.type else clean(self.message)  # of an exception it is in the error, and may be long
        told = {"type": clean(self.type), "message": why, "exit_code": self.exit_code, "signal": self.signal}
        named = {"kind": str(self.kind), "worker": self.worker, "rank": self.rank}
        beside = [{"worker": worker, "rank": rank} for worker, rank in others]
        return {**named, **{name: value for name, value in told.items() if value not in (None, "")}, "others": beside}

    @cached_property
    def is_echo(self) -> bool:
        """True if it looks like the consequence of another failure."""
        return self.bearing >= Bearing.BROKEN or self.was_asked_to_end

    @property
    def was_asked_to_end(self) -> bool:
        """True if what ended was asked to, by somebody: perhaps by whoever ended the worker with all that is on it."""
        return self.kind in OF_SIGNALS and self.signal in SENT

    @cached_property  # texts are searched for it, and each failure is compared with all others
    def bearing(self) -> Bearing:
        """The bearing that a peer's end may have on it."""
        if self.kind is FailureKind.EXCEPTION:
            return _bearing_of_exception(self)
        if self.kind in (FailureKind.SIGNAL, FailureKind.DAEMON):
            return _bearing_of_signal(self.signal)
        if self.kind is FailureKind.LAUNCHER:  # with a status it tells of a rank's end; a signal met itself
            return Bearing.OWN if self.signal else Bearing.NOBODY
        if self.kind in (FailureKind.STOPPED, FailureKind.HUNG_UP):
            return Bearing.NOBODY
        if self.is_call:
            return Bearing.BROKEN if self.peer_was_gone else Bearing.OWN
        return Bearing.SILENT if self.kind in (FailureKind.EXIT, FailureKind.ENDED) else Bearing.OWN

    @property
    def is_call(self) -> bool:
        """True if it is a call of ``sys.exit`` or ``os._exit``, and known how its process's connections were then."""
        return self.kind is FailureKind.EXIT and self.peer_was_gone is not None


def root_cause(failures: Iterable[Failure]) -> Failure | None:
    """The failure that explains the others; None where there is none.

    >>> root_cause([Failure(FailureKind.EXCEPTION, 1.001, "worker-0", 0, type="ConnectionResetError", ended=1.02),
    ...             Failure(FailureKind.EXIT, 1.003, "worker-1", 1, exit_code=7)]).worker
    'worker-1'
    """
    return min(_first(failures), key=_echo_likeness, default=None)


def ties(cause: Failure, failures: Iterable[Failure]) -> list[Failure]:
    """Failures that may as well have come first, since nothing tells them from ``cause``; earliest first."""
    return [other for other in _first(failures) if (other.worker, other.rank) != (cause.worker, cause.rank)]


def alike(cause: Failure, failures: Iterable[Failure]) -> int:
    """Return the number of processes that have raised, exited or crashed just as ``cause`` did; its own included.

    That is 1 for everything else: a kill of one has others killed.
    """
    if cause.kind is FailureKind.SIGNAL and cause.bearing is Bearing.CRASHED:
        return len({other.source for other in failures if other.kind is cause.kind and other.signal == cause.signal})
    if cause.kind not in (FailureKind.EXCEPTION, FailureKind.EXIT):
        return 1

    def words(failure: Failure) -> tuple[object, ...]:
        status = failure.exit_code if failure.kind is FailureKind.EXIT else None
        return failure.kind, failure.type, failure.message, status

    return sum(words(failure) == words(cause) for failure in _timelines(failures))


def tells_of_another(type: str, message: str) -> bool:
    """Return whether an exception is a framework's word for another process's failure.

    >>> tells_of_another("UnknownError", "Horovod has been shut down."), tells_of_another("ValueError", "no data")
    (True, False)
    """
    return COLLECTIVE.search(f"{type}: {message}") is not None


# -- one failure by itself --------------------------------------------------------------------------------------------


def _bearing_of_exception(failure: Failure) -> Bearing:
    """Return the bearing of an exception: by its type and words, and by those of the exceptions that it came from."""
    if tells_of_another(failure.type, failure.message):
        return Bearing.COLLECTIVE
    chain = [f"{failure.type}: {failure.message}", *_raised_before(failure.traceback)]
    if failure.peer_was_gone or any(BROKEN_CONNECTION.search(text) for text in chain):
        return Bearing.BROKEN
    return Bearing.RAISED if failure.peer_was_gone is None else Bearing.OWN


def _raised_before(traceback: str) -> list[str]:
    """The exceptions of a traceback, with their messages: lines that are not indented, and end no heading."""
    return EXCEPTION_LINE.findall(traceback)


def _bearing_of_signal(number: int | None) -> Bearing:
    if number == signal.SIGPIPE:
        return Bearing.COLLECTIVE
    if number in CRASHES:
        return Bearing.CRASHED
    return Bearing.OWN if number else Bearing.SILENT


# -- one failure beside another ---------------------------------------------------------------------------------------


def _first(failures: Iterable[Failure]) -> list[Failure]:
    """The earliest failures that no other leads to; several where nobody can tell which of them came first."""
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
    """The failures that no other leads to, or all where each leads to another.

    Of two that may explain each other, as the clocks do not tell, the one that speaks more for itself stays, or both.
    """

    def explains(cause: Failure, echo: Failure) -> bool:
        return _leads_to(cause, echo) and (cause.bearing < echo.bearing or not _leads_to(echo, cause))

    # By bearing, and the earliest first, which lead to most: ten thousand may have failed.
    by_bearing: dict[Bearing, list[Failure]] = {}
    for failure in sorted(timelines, key=lambda failure: failure.time):
        by_bearing.setdefault(failure.bearing, []).append(failure)

    def is_explained(echo: Failure) -> bool:
        groups = [causes for bearing, causes in by_bearing.items() if _can_lead_to(bearing, echo)]
        return any(explains(cause, echo) for causes in groups for cause in causes)

    return [failure for failure in timelines if not is_explained(failure)] or list(timelines)


def _can_lead_to(bearing: Bearing, echo: Failure) -> bool:
    """Return whether failures of this bearing may have led to another by what both are, whenever they happened."""
    if bearing >= Bearing.COLLECTIVE or echo.bearing is Bearing.OWN:
        return False
    if echo.bearing >= Bearing.COLLECTIVE or bearing is Bearing.OWN:
        return True
    if bearing in (Bearing.BROKEN, Bearing.RAISED):
        return echo.bearing is not bearing
    return echo.kind is FailureKind.EXCEPTION or echo.is_call  # of two ends without a word the earlier one counts


def _leads_to(cause: Failure, echo: Failure) -> bool:
    """Return whether one failure may have led to another: by what both are, and by when both happened."""
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
    # A process counts as ended a moment after its connections are closed: who calls `os._exit` on that may be sooner.
    overtaking = _slack(cause, echo) + (NOTICING if echo.is_call else 0.0)
    has_outlived = echo.ended is not None and echo.ended + overtaking < cause.time
    late = LATEST if echo.bearing is Bearing.BROKEN else LATE
    return not has_outlived and _began(cause, late) - _slack(cause, echo) <= echo.time


def _began(failure: Failure, late: float) -> float:
    """The earliest moment at which it may have happened, if ends of processes become known that late at most."""
    is_exact = failure.kind is FailureKind.EXCEPTION or failure.is_call
    began = failure.time - (UNWINDING if is_exact else late)
    # What has last been heard may have waited to be read, too, where the session's machine is busy.
    return began if failure.since is None else min(began, failure.since)


def _was_gone(cause: Failure, echo: Failure) -> bool:
    """Return whether a process that had raised had also ended before another failed."""
    return cause.ended is not None and cause.ended - _slack(cause, echo) < echo.time


def _slack(one: Failure, other: Failure) -> float:
    """Seconds within which the clocks of two machines do not tell which of two failures came first."""
    return 0.0 if one.worker == other.worker else one.uncertainty + other.uncertainty


def _blur(one: Failure, other: Failure) -> float:
    """Seconds within which nothing tells: ends of processes are noticed now sooner, now later; some in their order."""
    if one.place is not None and other.place is not None:
        earlier, later = sorted((one, other), key=lambda failure: failure.place or 0)
        # The connections of a process are closed a moment before it counts as ended: on a busy machine one that has
        # lost it may overtake it. So one that is more like an echo than the next is not known to have come first.
        if _echo_likeness(earlier)[0] <= _echo_likeness(later)[0]:
            return 0.0
    are_ends = FailureKind.EXCEPTION not in (one.kind, other.kind)
    return _slack(one, other) + (NOTICING if are_ends else 0.0)


def _echo_likeness(failure: Failure) -> tuple[Any, ...]:
    """Sort key: the rarer echoes of its kind are, the lower. Libraries that lose a peer abort, or exit with 1."""
    if failure.signal == signal.SIGABRT:
        return (Bearing.SILENT + 0.6, *_order(failure)[1:])
    exits_alike = failure.kind is FailureKind.EXIT and failure.exit_code == 1
    return (failure.bearing + (0.5 if exits_alike else 0.0), *_order(failure)[1:])


def _order(failure: Failure) -> tuple[Any, ...]:
    """Sort key of candidates: the earliest first, but last those that only tell of others."""
    weight = max(Bearing.BROKEN, failure.bearing) + (failure.kind is not FailureKind.HUNG_UP) / 2
    who = failure.worker or "", -1 if failure.rank is None else failure.rank
    return weight, failure.time, who, str(failure.kind), failure.type, failure.message


# -- one process ------------------------------------------------------------------------------------------------------


def _in_order(failures: Iterable[Failure]) -> list[Failure]:
    """The failures, with each end before the next in the kernel's order: agents may notice them otherwise."""
    known = list(failures)
    ends = {failure.place: failure.time for failure in known if failure.place is not None}
    latest = float("inf")
    for place in sorted(ends, reverse=True):
        latest = ends[place] = min(ends[place], latest - INSTANT)
    return [failure if failure.place is None else replace(failure, time=ends[failure.place]) for failure in known]


def _timelines(failures: Iterable[Failure]) -> list[Failure]:
    """One failure per process: what it raised, with its end, or else how it ended. A lost agent covers its own.

    Requests to end that came after a launcher had failed count as the launcher's, and so do connections that broke
    after it had let go of ranks, which their agents end then: they say nothing of the process. Nor do requests to end
    what is on a worker that is lost: whoever has a worker ended sends them to its agent and its processes alike, and
    the end of these is known first.
    """
    ordered = sorted(failures, key=_order)
    lost = {failure.worker for failure in ordered if failure.kind in OF_WORKER}
    known = [_with_its_worker(failure, lost) for failure in ordered]
    launcher_failed_at = min((failure.time for failure in known if failure.kind in OF_LAUNCHER), default=float("inf"))
    by_process: dict[tuple[object, ...], list[Failure]] = {}
    for failure in known:
        was_sent = failure.kind is FailureKind.SIGNAL and failure.signal in SENT
        if launcher_failed_at < failure.time and (was_sent or failure.bearing is Bearing.BROKEN):
            failure = replace(failure, kind=FailureKind.STOPPED)
        rank = None if failure.worker in lost else failure.rank
        by_process.setdefault((failure.worker, rank, failure.kind is FailureKind.DAEMON), []).append(failure)
    return [_timeline(of_one) for of_one in by_process.values()]


def _with_its_worker(failure: Failure, lost: Set[str | None]) -> Failure:
    """The failure, or what is told of a process in its place that was asked to end, as its worker is lost."""
    is_lost = failure.worker in lost if failure.worker else bool(lost)  # it is not known on which the launcher ran
    return replace(failure, kind=FailureKind.STOPPED) if is_lost and failure.was_asked_to_end else failure


def _timeline(failures: Sequence[Failure]) -> Failure:
    """Return the failure that says most of a process, with the time of its end where that was an exception."""
    raised = [failure for failure in failures if failure.kind is FailureKind.EXCEPTION]
    ends = [failure for failure in failures if failure.kind in OF_PROCESS]
    calls = [failure for failure in ends if failure.is_call]
    others = [failure for failure in failures if not ((raised and failure in ends) or (calls and _is_mute(failure)))]
    first = min(others, key=_order_within_process)
    if first.kind in OF_WORKER:  # what its end leads to may begin with that of its first process
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
    """Sort key: that it was ended for its memory counts first, then what came first, and last what tells of others."""
    if failure.kind is FailureKind.MEMORY:
        return -1, failure.time
    return max(Bearing.SILENT, failure.bearing), failure.time
