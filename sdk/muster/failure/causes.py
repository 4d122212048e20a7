"""What went wrong in a run, and which of it is the cause.

The order of exits lies: when one rank raises, the others lose their peer and may well exit before it. So failures are
sorted by how much they look like the echo of another, and of those that look least so the earliest is the cause.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace

# What the survivors say when somebody else has failed.
ECHOES = re.compile(
    r"Horovod has been shut ?down|HorovodInternalError|Connection reset by peer|Connection closed by peer|"
    r"Broken pipe|Read error \[|Socket closed|failed to connect to all addresses|UnavailableError|AbortedError|"
    r"CancelledError|Cancelled by|RST_STREAM|Connection refused|session .*is not found|Step was cancelled",
    re.IGNORECASE,
)
OTHERS_DOING = {"stopped", "hung_up"}  # kinds of failures that say nothing about the process itself
# Somebody ended it, or what it wrote to had ended: most often a peer. One that broke a pipe of its own is still named,
# unless its peers then fail in a way that looks more like a cause.
OTHERS_SIGNALS = {signal.SIGTERM, signal.SIGPIPE}
KNOWN_LATER = 0.5  # seconds by which a kill may be known later than what it has led to
OWN_CONNECTIONS = {"ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError"}


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong in a run.

    Attributes:
        kind: ``exception``, ``exit``, ``signal``, ``memory``, ``lost``, ``ended`` (a server that should not end did),
            ``stopped`` (its agent ended it, and not because the session said so), ``hung_up`` (the launcher let go of
            it), ``daemon`` (what the launcher starts on a worker was killed, or cannot run there), or ``driver``, whose
            name is in ``message``.
        time: when it happened, seconds since the epoch by the clock nearest to it.
        worker, rank: to whom; None for the driver.
        type, message, traceback: of the exception.
        exit_code, signal: of the process.
        used, limit: memory in bytes.
    """

    kind: str
    time: float
    worker: str | None = None
    rank: int | None = None
    type: str = ""
    message: str = ""
    traceback: str = ""
    exit_code: int | None = None
    signal: int | None = None
    used: int | None = None
    limit: int | None = None

    @property
    def is_echo(self) -> bool:
        """Whether it looks like the consequence of another failure."""
        if self.kind == "exception":
            # The built-in ones come from the script's own connections; frameworks raise their own.
            return self.type not in OWN_CONNECTIONS and bool(ECHOES.search(f"{self.type}: {self.message}"))
        if self.kind == "driver":
            return self.signal is None  # with a status it tells of a rank's end; a signal met itself
        return self.kind in OTHERS_DOING or (self.kind in {"signal", "daemon"} and self.signal in OTHERS_SIGNALS)


def root_cause(failures: Iterable[Failure]) -> Failure | None:
    """The failure that explains the others; None where there is none.

    A process that raised and then exited failed once: its exit takes on the exception. An exit without an exception
    beside somebody else's exception or signal may be an echo that could not speak, so those come after. And a process
    whose own connection broke, or that aborted, is believed unless somebody was killed in that moment.

    >>> root_cause([Failure("exit", 1.0, "worker-0", 0, exit_code=1),
    ...             Failure("exception", 2.0, "worker-1", 1, type="ValueError")]).worker
    'worker-1'
    """
    merged = _merge(failures)
    if not merged:
        return None
    cause = min(merged, key=lambda failure: (_distance(failure), failure.time))
    has_aborted = cause.kind == "signal" and cause.signal == signal.SIGABRT
    if cause.type in OWN_CONNECTIONS or has_aborted:
        kills = [failure for failure in merged if _is_kill(failure) and failure.time - cause.time < KNOWN_LATER]
        cause = min(kills, key=lambda failure: failure.time, default=cause)
    return cause


def alike(cause: Failure, failures: Iterable[Failure]) -> int:
    """How many processes have raised just what ``cause`` did, its own among them."""
    return sum(
        (failure.kind, failure.type, failure.message) == (cause.kind, cause.type, cause.message)
        for failure in _merge(failures)
    )


def _distance(failure: Failure) -> int:
    """How far a kind of failure is from being a cause."""
    if failure.kind == "stopped" or (failure.kind == "driver" and failure.is_echo):
        return 3  # it names nobody
    return 2 if failure.is_echo else int(failure.kind in {"exit", "ended", "daemon", "driver"})


def _is_kill(failure: Failure) -> bool:
    """Whether a process was ended in a way that no other failure leads to."""
    if failure.kind == "signal":
        return not failure.is_echo and failure.signal != signal.SIGABRT
    return failure.kind in {"memory", "lost"}


def _merge(failures: Iterable[Failure]) -> list[Failure]:
    """One failure per process: the exception if it raised one, else how it ended. A lost agent covers its ranks."""
    failures = sorted(failures, key=lambda failure: failure.time)
    lost = {failure.worker for failure in failures if failure.kind == "lost"}
    first: dict[tuple[str | None, int | None], Failure] = {}
    for failure in failures:
        source = (failure.worker, failure.rank if failure.worker not in lost else None)
        known = first.get(source)
        if (
            known is None
            or (known.kind in OTHERS_DOING and failure.kind not in OTHERS_DOING)
            or (failure.kind == "memory" and known.kind == "signal")
            or (failure.kind == "lost" and known.is_echo)
        ):
            first[source] = failure
        elif known.kind == "exception" and known.exit_code is None:
            first[source] = replace(known, exit_code=failure.exit_code, signal=failure.signal)
    return list(first.values())
