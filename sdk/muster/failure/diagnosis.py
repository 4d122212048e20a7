"""The errors of failed runs: they say which worker failed first, why, where its log is, and what to try."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from muster.errors import (
    LauncherFailed,
    LaunchRefused,
    RunFailed,
    RunStalled,
    RunTimeout,
    ScriptFailed,
    ServersNotListening,
    StartTimeout,
    WorkerCancelled,
    WorkerKilled,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerPreempted,
    WorkersMissing,
)
from muster.failure.advice import (
    OPEN_PORT,
    advice_on_exception,
    advice_on_exit,
    advice_on_launcher,
    advice_on_loss,
    advice_on_missing,
    advice_on_signal,
)
from muster.failure.failures import OF_LAUNCHER, OF_PROCESS, Failure, FailureKind
from muster.failure.logs import crash_report, tail
from muster.failure.waiting import Verdict
from muster.job import memory_argument
from muster.text.arguments import Argument, ArgumentText
from muster.text.names import join_names, process_label, signal_name
from muster.text.shown import Stacks

GONE = {
    FailureKind.LOST: (WorkerLost, "was lost"),
    FailureKind.STOPPED: (WorkerLost, "was lost"),
    FailureKind.PREEMPTED: (WorkerPreempted, "was taken away"),
    FailureKind.OVERTIME: (RunTimeout, "ran out of time"),
    FailureKind.CANCELLED: (WorkerCancelled, "was cancelled"),
}
AGENT_LEFT = "its agent was told to end, and not by this session"
OF_HOROVODRUN = re.compile("Horovod detected that one or more|Terminating remaining workers")  # about a rank's end
MPI_ABORT = re.compile(r"^Abort\(\d+\) on node (\d+) .*", re.MULTILINE)  # MPICH's message about a rank's abort


def explain(
    failure: Failure,
    logs: Path,
    *,
    alike: int = 1,
    total: int = 1,
    ties: Sequence[Failure] = (),
    is_python: bool = True,
    has_copy: bool = False,
) -> RunFailed:
    """Return the error for a cause: what happened, to which worker, where its log is, and what to try.

    Args:
        alike: number of processes that raised the same exception, or ended in the same way.
        total: number of all processes that could have.
        ties: failures that may just as well have come first.
        is_python: whether the script is a Python script, not another program.
        has_copy: whether the script runs in a copy of the project's files, as its worker shares none with the session.
    """
    words = _words_of_loss(failure) if failure.kind in GONE else None
    together = [other for other in ties if words is not None and _words_of_loss(other) == words]
    ties = [other for other in ties if words is None or _words_of_loss(other) != words]
    error = _explained(failure, logs, alike, total, ties, is_python, has_copy)
    if together:  # such as when their guard is gone, which is not one worker's failure
        error.message = _lost_together(failure, together)
    are_named = alike == 1 or failure.kind is not FailureKind.EXCEPTION
    named = [*together, *(ties if are_named else ())]
    error.failure = error.failure or failure.to_data(other.source for other in named)
    if ties and are_named:
        error.message = f"{error.message} {_ties_text(failure, ties, alike)}"
    return error


def _explained(
    failure: Failure, logs: Path, alike: int, total: int, ties: Sequence[Failure], is_python: bool, has_copy: bool
) -> RunFailed:
    name = process_label(failure.worker or "the launcher", failure.rank)
    log = _log_of(failure, logs)
    if failure.kind is FailureKind.EXCEPTION:
        error: RunFailed = ScriptFailed(
            f"{_raised_by(failure, alike, total)}: {failure.type}: {_first_line(failure.message)}",
            worker=failure.worker, log=log, details=failure.traceback, advice=advice_on_exception(failure, has_copy),
        )  # fmt: skip
    elif failure.kind is FailureKind.MEMORY and failure.used is None:
        error = WorkerOutOfMemory(
            f"{name} was ended for its memory: {failure.message}", worker=failure.worker, log=log, details=tail(log),
            advice=failure.advice
            or ArgumentText("a larger ", Argument(memory_argument(failure.worker)), ", or smaller batches"),
        )  # fmt: skip
    elif failure.kind is FailureKind.MEMORY:
        used = math.ceil((failure.used or 0) / 1e7) / 100  # up, so that it is more than the limit
        limit = (failure.limit or 0) / 1e9
        error = WorkerOutOfMemory(
            f"{name} used {used:.2f} GB of memory and was given {limit:g} GB, so it was ended.",
            worker=failure.worker, log=log, details=tail(log),
            advice=ArgumentText(
                Argument(memory_argument(failure.worker), max(limit + 1, round(used * 1.5 + 0.5))),
                ", or smaller batches",
            ),
        )  # fmt: skip
    elif failure.kind is FailureKind.SIGNAL:
        error = WorkerKilled(
            _ended(failure, alike, total, ties), worker=failure.worker, log=log, details=crash_report(log) or tail(log),
            advice=advice_on_signal(failure.signal, is_python),
        )  # fmt: skip
    elif failure.kind in GONE:
        kind, what = GONE[failure.kind]
        error = kind(
            f"{name} {what}: {failure.message or AGENT_LEFT}",
            worker=failure.worker, log=log, details=tail(log),
            advice=failure.advice or advice_on_loss(failure.message),
        )  # fmt: skip
    elif failure.kind in OF_LAUNCHER:
        return (_aborted(logs) if failure.kind is FailureKind.HUNG_UP else None) or _launcher_failed(failure, logs)
    else:
        words = tail(log) or tail(logs / "launcher.log")  # Open MPI prints its library's messages there
        if OF_HOROVODRUN.search(words):
            words = ""
        error = ScriptFailed(
            f"{name} ended, which a server never does by itself."
            if failure.kind is FailureKind.ENDED
            else _ended(failure, alike, total, ties),
            worker=failure.worker, log=log, details=words, advice=advice_on_exit(failure, is_python),
        )  # fmt: skip
    error.rank = failure.rank
    return error


def _words_of_loss(failure: Failure) -> tuple[FailureKind, str]:
    return failure.kind, failure.message


def _lost_together(failure: Failure, others: Sequence[Failure]) -> str:
    """Return a message that several workers were lost at once, for the same reason."""
    workers = {str(one.worker) for one in (failure, *others)}
    names = join_names(sorted(workers, key=lambda name: (len(name), name)))  # worker-2 before worker-10
    why = failure.message or AGENT_LEFT
    why = f"; of each, {why}" if why.startswith("its ") else f": {why}"  # which is said of one worker
    return f"{names} {GONE[failure.kind][1].replace('was', 'were')}{why}"


def _ties_text(failure: Failure, ties: Sequence[Failure], alike: int) -> str:
    """Return a sentence that names the others that may have failed first: times of ends are known only roughly."""
    named = [failure, *ties] if alike > 1 else ties
    names = join_names([process_label(other.worker or "the launcher", other.rank) for other in named])
    within = max(abs(other.time - failure.time) for other in ties) * 1000
    verb = "failed" if len(named) > 1 else _how_it_failed(ties[0])
    return f"Within {max(within, 1):.0f} ms {names} {verb}; nothing tells which of them came first."


def _how_it_failed(failure: Failure) -> str:
    if failure.kind is FailureKind.EXCEPTION:
        return f"raised {failure.type}"
    return f"ended with {_how(failure)}" if failure.kind in OF_PROCESS else "failed"


def _raised_by(failure: Failure, alike: int, total: int) -> str:
    """Return words for the process that raised first, and how many raised the same."""
    name = process_label(failure.worker or "the launcher", failure.rank)
    if alike == 1:
        return f"{name} failed first"
    return f"{_count_of(failure, alike, total)} failed alike, {name} first"


def _ended(failure: Failure, alike: int, total: int, ties: Sequence[Failure]) -> str:
    """Return a sentence about the process that ended first, how it ended, and how many ended in the same way."""
    name = process_label(failure.worker or "the launcher", failure.rank)
    were, was = ("were ended by", "was ended by") if failure.signal else ("ended with", "ended with")
    if alike == 1:
        return f"{name} {was} {_how(failure)}."
    first = "" if ties else f", {name} first"
    return f"{_count_of(failure, alike, total)} {were} {_how(failure)}{first}."


def _count_of(failure: Failure, alike: int, total: int) -> str:
    kind = "workers" if failure.rank is None else "ranks"
    count = f"{alike} of {total}" if alike < total else "Both" if alike == 2 else f"All {alike}"
    return f"{count} {kind}"


def _log_of(failure: Failure, logs: Path) -> Path:
    """Return the log to read about a failure: the rank's own, if its worker has several ranks."""
    own = logs / "ranks" / f"rank-{failure.rank}.log"
    return own if own.exists() else logs / f"{failure.worker or 'launcher'}.log"


def _launcher_failed(failure: Failure, logs: Path) -> RunFailed:
    """Return the error for a launcher, or for its process on a worker, with the end of the launcher's log."""
    log = logs / "launcher.log"
    advice = advice_on_launcher(tail(log))
    if failure.kind is FailureKind.HUNG_UP:
        name = process_label(str(failure.worker), failure.rank)
        message = f"The launcher dropped {name}: what it had started on {failure.worker} ended before the rank did."
    elif failure.kind is FailureKind.LAUNCHER:
        message = f"{failure.message or 'The launcher'} itself failed: it ended with {_how(failure)}"
        message += " before all ranks had been started." if failure.exit_code == 0 else "."
    elif failure.signal:
        message = f"What the launcher starts on {failure.worker} was ended by {signal_name(failure.signal)}."
        advice = advice_on_signal(failure.signal, is_python=False)
    else:
        message = f"What the launcher starts on {failure.worker} cannot be run there."
        advice = "the workers need the same MPI as the session, in the same place"
    error = LauncherFailed(message, worker=failure.worker, log=log, details=tail(log), advice=advice)
    error.rank = failure.rank
    return error


def _aborted(logs: Path) -> RunFailed | None:
    """Return the error for a rank that called ``MPI_Abort``: MPICH then drops all ranks, and only a log names it."""
    for log in sorted(logs.glob("worker-*.log")):
        found = MPI_ABORT.search(tail(log))
        if found:
            rank = int(found.group(1))
            error = ScriptFailed(
                f"{process_label(log.stem, rank)} ended all: {found.group()}", worker=log.stem, log=log
            )
            error.rank = rank
            error.failure = Failure(FailureKind.EXIT, 0.0, log.stem, rank).to_data()
            return error
    return None


def did_not_come_up(failure: Failure, logs: Path) -> LaunchRefused:
    """Return the error for a worker that ended before anything was started on it."""
    log = logs / f"{failure.worker}.log"
    why = failure.message or "it ended before it was started"
    error = LaunchRefused(
        f"{failure.worker} did not come up: {why}",
        worker=failure.worker,
        log=log if log.exists() else None,
        details=tail(log),
        advice=failure.advice or (OPEN_PORT if "cannot reach the session" in why else None),
    )
    error.failure = failure.to_data()
    return error


def workers_missing(
    missing: Mapping[str, object],
    total: int,
    seconds: float,
    logs: Path,
    trouble: str = "",
    waits: Sequence[str] = (),
    *,
    is_here: bool = False,
) -> WorkersMissing:
    """Return the error for workers that never reported an address.

    Args:
        missing: their status by name; None if not launched.
        waits: what the workers are waiting for, in the platform's words.
        trouble: the last error of the platform when it was asked about the workers.
        is_here: whether they run on this machine, so that nothing can block their connection to the session.
    """
    by_status: dict[str, list[str]] = {}
    for name, status in missing.items():
        by_status.setdefault(str(status or "not launched"), []).append(name)
    known = "; ".join(
        f"{join_names(names)} {'is' if len(names) == 1 else 'are'} {status}" for status, names in by_status.items()
    )
    first = next(iter(missing))
    log = logs / f"{first}.log"
    return WorkersMissing(
        f"{len(missing)} of {total} workers did not report an address within {seconds:g} s: {known}."
        + _waits_text(waits),
        worker=first,
        log=log if log.exists() else None,
        details=f"The platform could not be asked about them.\n{trouble}" if trouble else None,
        advice=ArgumentText("see to what they wait for, or a longer ", Argument("timeout_seconds"))
        if waits
        else advice_on_missing(missing, total, seconds, is_here),
    )


def _waits_text(waits: Sequence[str]) -> str:
    return "".join(f" {text}" for text in waits)


def still_queued(queued: Sequence[str], total: int, seconds: float, waits: Sequence[str] = ()) -> WorkersMissing:
    """Return the error for workers that the platform had no place for in time, with what they were waiting for."""
    return WorkersMissing(
        f"{len(queued)} of {total} workers were still queued after {seconds:g} s: {join_names(queued)}."
        + _waits_text(waits),
        worker=queued[0],
        advice=ArgumentText("a longer ", Argument("queue_timeout"), ", fewer or smaller workers, or another time"),
    )


def not_up(
    missing: Sequence[tuple[str, int | None]], launcher: str | None, seconds: float | None, logs: Path
) -> StartTimeout:
    """Return the error for ranks that the launcher (None: the agent) never started, or servers that never listened."""
    names = join_names([process_label(worker, rank) for worker, rank in missing])
    log = logs / ("launcher.log" if launcher else f"{missing[0][0]}.log")
    are_ranks = missing[0][1] is not None
    was, its, port = ("was", "its", "port") if len(missing) == 1 else ("were", "their", "ports")
    what = f"{was} not started by {launcher or f'{its} agent'}" if are_ranks else f"{was} not listening on {its} {port}"
    kind = StartTimeout if are_ranks else ServersNotListening
    return kind(
        f"After {seconds:g} s {names} {what}.",
        worker=missing[0][0],
        log=log,
        details=tail(log),
        advice=ArgumentText(
            "a longer ",
            Argument("timeout_seconds"),
            ": a busy machine takes longer" if are_ranks else ", if it has more to do before; imports do not count",
        ),
    )


def stalled(verdict: Verdict, seconds: float | None, stacks: Mapping[str, str], logs: Path) -> RunStalled:
    """Return the error for a run without progress, with the process that the others wait for."""
    worker, rank = verdict.source
    names = process_label(*verdict.source) + (f" and {process_label(*verdict.other)}" if verdict.other else "")
    have = "have" if verdict.other else "has"
    error = RunStalled(
        f"{names} {have} shown no progress for {seconds:.4g} s. {verdict.why}".rstrip(),
        worker=worker,
        log=logs / f"{worker}.log",
        details=_joined(stacks),
        advice="see in the stacks where each rank stands: one that is not in a collective holds up the others"
        if len(stacks) > 1
        else "see in the stack where it stands: nothing else runs any more that it could wait for",
    )
    error.rank = rank
    others = [] if verdict.other is None else [{"worker": verdict.other[0], "rank": verdict.other[1]}]
    error.failure = {"kind": "stalled", "worker": worker, "rank": rank, "others": others}
    return error


def timed_out(seconds: float | None, stacks: Mapping[str, str], logs: Path) -> RunTimeout:
    """Return the error for a run that took too long."""
    message = f"The run took longer than its {seconds:g} s."
    return RunTimeout(
        message, log=logs, details=_joined(stacks), advice=ArgumentText("a longer ", Argument("run_timeout"))
    )


def _joined(stacks: Mapping[str, str]) -> str:
    return "\n".join(f"--- {name}\n{text}" for name, text in Stacks(stacks).items())


def _how(failure: Failure) -> str:
    return signal_name(failure.signal) if failure.signal else f"exit status {failure.exit_code}"


def _first_line(text: str) -> str:
    """Return the first line of a message, and the second if the first is a heading that ends in a colon."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]) if lines else "(no message)"
