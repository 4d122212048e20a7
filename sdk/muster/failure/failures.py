"""One failure of a run: its kind, all that is known of it, and how likely it is the consequence of another one."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from enum import Enum, IntEnum
from functools import cached_property
from typing import Any

from muster.text.cleaning import clean
from muster.text.frozen import frozen


class FailureKind(str, Enum):
    """Kind of a failure."""

    EXCEPTION = "exception"
    EXIT = "exit"
    SIGNAL = "signal"
    MEMORY = "memory"
    LOST = "lost"  # the worker's agent is gone
    PREEMPTED = "preempted"  # the same, as the platform gave its resources to others
    OVERTIME = "overtime"  # its platform ended it for the time that it took
    CANCELLED = "cancelled"  # somebody had the platform end it
    ENDED = "ended"  # a server ended, which it should not
    STOPPED = "stopped"  # its agent ended it, and not because the session said so
    HUNG_UP = "hung_up"  # its launcher closed the connection
    DAEMON = "daemon"  # the launcher's process on a worker was killed, or cannot run there
    LAUNCHER = "launcher"  # the launcher itself ended; its name is in ``message``

    def __str__(self) -> str:
        return self.value


# Patterns. They are compiled, and cached by ``re``, when a run has failed.
# Messages of programs that have lost a peer, or another connection: only the times of failures tell which.
BROKEN_CONNECTION = (
    r"ConnectionError|ConnectionRefusedError|ConnectionResetError|ConnectionAbortedError|BrokenPipeError|EOFError|TimeoutError|"
    r"IncompleteReadError|Connection reset by peer|Connection closed by peer|Broken pipe|Connection timed out|"
    r"Transport endpoint is not connected|No route to host|Network is unreachable|Connection refused|data was truncated"
)
# Messages of frameworks about other processes: the process that failed first never has one.
COLLECTIVE = (
    r"(?i)Horovod has been shut ?down|HorovodInternalError|Read error \[|"
    r"failed to connect to all addresses|UnavailableError|AbortedError|CancelledError|RST_STREAM|"
    r"Connection (?:closed|reset) by peer \[|pair\.cc"
)
# The same, but in words that a script may use as well: only in exceptions of TensorFlow's, XLA's or gRPC's.
OF_TENSORFLOW = r"(?i)Socket closed|Cancelled by|session .{0,100}is not found|Step was cancelled"
TENSORFLOW_ERRORS = {
    "AioRpcError", "DataLossError", "DeadlineExceededError", "FailedPreconditionError", "InternalError",
    "InvalidArgumentError", "NotFoundError", "OpError", "OutOfRangeError", "ResourceExhaustedError", "RpcError",
    "UnknownError", "XlaRuntimeError", "_InactiveRpcError", "_MultiThreadedRendezvous", "_Rendezvous",
}  # fmt: skip
EXCEPTION_LINE = r"(?m)^[A-Za-z_][\w.]*(?::.*)?$"
SENT = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}  # how one process asks another to end
CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}  # how compiled code ends itself

OF_LAUNCHER = {FailureKind.LAUNCHER, FailureKind.HUNG_UP, FailureKind.DAEMON}
OF_WORKER = {FailureKind.LOST, FailureKind.PREEMPTED, FailureKind.OVERTIME, FailureKind.CANCELLED}
OF_PROCESS = {FailureKind.EXIT, FailureKind.SIGNAL, FailureKind.STOPPED}
OF_SIGNALS = {FailureKind.SIGNAL, FailureKind.DAEMON, FailureKind.LAUNCHER}  # kinds that a signal may cause


class Bearing(IntEnum):
    """Likelihood that a failure is the consequence of a peer's end; the lower, the more likely it is a cause itself."""

    OWN = 0  # no peer's end leads to it: a kill, too much memory, a lost worker, a killed launcher
    RAISED = 1  # an exception that mentions no connection
    CRASHED = 2  # compiled code may crash when it loses a peer
    SILENT = 3  # an exit status without a message: the program's own, or of a library that has lost a peer
    BROKEN = 4  # its connection broke: a peer has gone, or something that only this process was connected to
    COLLECTIVE = 5  # a framework's message about another process's failure, or SIGPIPE
    NOBODY = 6  # reactions of a launcher or an agent


@frozen
class Failure:
    """One thing that went wrong in a run.

    Attributes:
        kind: its kind.
        time: when it happened, in seconds by the session's monotonic clock.
        worker, rank: the process that failed; None for the launcher.
        type, message, traceback: of the exception; for a worker that is gone ``message`` says why.
        advice: what to try, if the platform knows.
        exit_code, signal: exit status of the process, or the signal that ended it.
        used, limit: memory in bytes.
        ended: when a process that raised, or called ``sys.exit``, ended; None if it has not, and for other failures.
        peer_was_gone: whether the other end had closed a connection of the process when it raised, or called
            ``sys.exit`` or ``os._exit``; None if not known.
        since: the last time at which the process is known to have been well; None if ``time`` is exact enough.
        place: number of this end in the order in which processes ended, if the kernel of the session's machine has
            reported it.
        is_told: whether the platform knows that the worker was taken away, so that it did not fail to start.
        uncertainty: greatest error of ``time``, in seconds, because it is by another machine's clock.
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
    is_told: bool = False
    uncertainty: float = 0.0

    @property
    def source(self) -> tuple[str | None, int | None]:
        """The process that failed: its worker and rank."""
        return self.worker, self.rank

    def to_data(self, others: Iterable[tuple[str | None, int | None]] = ()) -> dict[str, Any]:
        """Return the value of ``MusterError.failure``, with the other processes that the error names."""
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
        """True if a signal asked the process to end, perhaps because somebody ended its worker with all processes."""
        return self.kind in OF_SIGNALS and self.signal in SENT

    @cached_property  # computing it searches texts, and each failure is compared with all others
    def bearing(self) -> Bearing:
        """Likelihood that it is the consequence of a peer's end."""
        if self.kind is FailureKind.EXCEPTION:
            return _bearing_of_exception(self)
        if self.kind in (FailureKind.SIGNAL, FailureKind.DAEMON):
            return _bearing_of_signal(self.signal)
        if self.kind is FailureKind.LAUNCHER:  # an exit status reports a rank's end; a signal was its own end
            return Bearing.OWN if self.signal else Bearing.NOBODY
        if self.kind in (FailureKind.STOPPED, FailureKind.HUNG_UP):
            return Bearing.NOBODY
        if self.is_call:
            return Bearing.BROKEN if self.peer_was_gone else Bearing.OWN
        return Bearing.SILENT if self.kind in (FailureKind.EXIT, FailureKind.ENDED) else Bearing.OWN

    @property
    def is_call(self) -> bool:
        """True if it is a call of ``sys.exit`` or ``os._exit``, with the state of the process's connections known."""
        return self.kind is FailureKind.EXIT and self.peer_was_gone is not None


def tells_of_another(type: str, message: str) -> bool:
    """Return whether an exception is a framework's message about another process's failure.

    >>> tells_of_another("UnknownError", "Horovod has been shut down."), tells_of_another("ValueError", "no data")
    (True, False)
    """
    is_told = type in TENSORFLOW_ERRORS and re.search(OF_TENSORFLOW, message) is not None
    return is_told or re.search(COLLECTIVE, f"{type}: {message}") is not None


def _bearing_of_exception(failure: Failure) -> Bearing:
    """Return the bearing of an exception by its type and message, and those of the exceptions that led to it."""
    if tells_of_another(failure.type, failure.message):
        return Bearing.COLLECTIVE
    chain = [f"{failure.type}: {failure.message}", *_raised_before(failure.traceback)]
    if failure.peer_was_gone or any(re.search(BROKEN_CONNECTION, text) for text in chain):
        return Bearing.BROKEN
    return Bearing.RAISED if failure.peer_was_gone is None else Bearing.OWN


def _raised_before(traceback: str) -> list[str]:
    """Return the exceptions of a traceback with their messages: the lines that are not indented, and not headings."""
    return re.findall(EXCEPTION_LINE, traceback)


def _bearing_of_signal(number: int | None) -> Bearing:
    if number == signal.SIGPIPE:
        return Bearing.COLLECTIVE
    if number in CRASHES:
        return Bearing.CRASHED
    return Bearing.OWN if number else Bearing.SILENT
