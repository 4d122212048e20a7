"""The controller of a detached run: a process that hosts the run, independent of the process that asked for it.

It reads the request from its standard input, goes into the background, writes to its standard output which run it has
begun, and ends with the run: at the end of the script, when somebody stops it, or when its time is over.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.errors import JobError, MusterError, PlatformError, RunInterrupted
from muster.events.observers import Observers
from muster.platforms.base import Platform
from muster.records.result import recorded_error
from muster.records.runs import Run
from muster.records.sessions import note_begun
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.execution import Execution
from muster.run.request import RunRequest
from muster.runtime import children
from muster.text.arguments import Argument, ArgumentText

PACKAGES = Path(__file__).resolve().parents[2]  # the folder that this package is imported from
PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from muster.run.controller import main; main()"
LOG = "controller.log"  # in the run's folder: what the controller itself prints, which should be nothing
INTERRUPTED = "The start of the detached run was interrupted; nothing of it is left."
SECONDS_TO_BEGIN = 60.0
SECONDS_TO_END = 10.0  # for a controller that has not begun in time, until it is killed
SECONDS_PER_LOOK = 5.0  # between two checks of the clock, which goes on while the machine sleeps


def start(checked: CheckedRun) -> Run:
    """Start a run in a controller, and return it once it has begun.

    Raises:
        JobError: parts of it cannot be handed to another process.
        PlatformError: it could not be begun.
        RunInterrupted: an interrupt came before it had begun.
    """
    request = _pickle(checked)
    with tempfile.TemporaryFile() as errors:  # a pipe would be kept open by what the controller starts
        try:
            controller = subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(PACKAGES)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, cwd="/", start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise PlatformError(f"The controller of the run could not be started: {error}.") from error
        said = None
        with controller:
            try:
                said, _ = controller.communicate(request, SECONDS_TO_BEGIN)
            except subprocess.TimeoutExpired:
                _end(controller)
            except KeyboardInterrupt:
                _end(controller)
                raise RunInterrupted(INTERRUPTED) from None
        errors.seek(0)
        complaints = errors.read().decode("utf-8", errors="replace")
        if said is None:
            text = f"The controller of the run had not begun after {SECONDS_TO_BEGIN:g} s, and was ended."
            raise PlatformError(text, advice="start it again", details=complaints)
        return _begun(said, complaints)


def _end(controller: subprocess.Popen[bytes]) -> None:
    """End a controller with everything that it has started: also in the background it stays in its process group.

    If it has begun the run meanwhile, it has some time to end it. A guard that outlives the controller ends by itself.
    """
    deadline = time.monotonic() + SECONDS_TO_END
    number: int = signal.SIGTERM
    with contextlib.suppress(ProcessLookupError):  # none of the group is left
        while True:
            os.killpg(controller.pid, number)
            children.has_ended(controller)  # which reaps it
            if number == signal.SIGKILL:
                return
            number = 0 if time.monotonic() < deadline else signal.SIGKILL
            time.sleep(0.05)


def _pickle(checked: CheckedRun) -> bytes:
    """Return a pickled request for a checked run, with the script, interpreter and folder that the check found.

    A line before it has this process's ``sys.path``: the class of a strategy may come from a module found there.
    """
    import cloudpickle

    if isinstance(checked.request.platform, Platform):
        raise JobError(
            "A detached run cannot use a platform object of this session, which may end before the run.",
            advice=ArgumentText(
                "give the platform by name, such as ", Argument("platform", "local"), ", and its options as arguments"
            ),
        )
    job = checked.job
    request = replace(checked.request, script=job.script, python=job.python, cwd=job.cwd, name=job.name, kwargs=None)
    try:
        pickled: bytes = cloudpickle.dumps(request)
    except Exception as error:  # whatever the user's objects raise when pickled
        raise JobError(f"The run cannot be handed to a process of its own: {error}") from error
    return json.dumps([os.path.abspath(path) for path in sys.path]).encode() + b"\n" + pickled


def _begun(said: bytes, errors: str) -> Run:
    """Return the run that a controller says it has begun. Raises the error that the controller reports instead."""
    try:
        answer = json.loads(said)
    except ValueError:
        raise PlatformError("The controller of the run ended before it had begun it.", details=errors) from None
    if "run_dir" not in answer:
        raise recorded_error(answer) or PlatformError("The controller of the run did not begin it.", details=errors)
    begun = Run(Path(answer["run_dir"]))
    note_begun(begun.run_id)
    return begun


def main() -> None:
    """Take a request from standard input, go into the background, and live until the run has ended."""
    if "" in sys.path:  # it is absent with PYTHONSAFEPATH
        sys.path.remove("")  # no file of the working directory is taken for a module of Muster's or Python's
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # whatever it has inherited
    request = sys.stdin.buffer.read()
    answer = os.dup(1)
    if os.fork():
        os._exit(0)  # so that nobody has to wait for the child process
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    _ignore_the_terminal()
    try:
        execution, seconds = _begin(request)
    except MusterError as error:
        parts = error.advice.to_json() if isinstance(error.advice, ArgumentText) else None
        told = {"error": type(error).__name__, "reason": error.message, "details": error.details}
        _say(answer, {**told, "advice": error.advice, "advice_parts": parts})
        return
    if not _say(answer, {"run_dir": str(execution.run_dir)}):
        execution.ask_to_stop("nobody waited for it to begin")
    _live(execution, seconds)


def _say(answer: int, told: dict[str, Any]) -> bool:
    """Write the one answer to the process that started this one; return False where it does not listen any more."""
    try:
        with os.fdopen(answer, "w", encoding="utf-8") as said:
            json.dump(told, said)
    except OSError:
        return False
    return True


def _begin(request: bytes) -> tuple[Execution, float | None]:
    """Begin a run; return its execution, and how many seconds it may last (None: any time)."""
    import cloudpickle

    paths, _, pickled = request.partition(b"\n")
    sys.path += [path for path in json.loads(paths) if path not in sys.path]  # at the end: see main
    wanted: RunRequest = cloudpickle.loads(pickled)
    os.chdir(wanted.cwd)
    checked = check(wanted)
    execution = Execution(Observers())

    def stop(number: int, frame: Any) -> None:
        if not execution.run_id:  # nothing has begun that could be recorded
            sys.exit(128 + number)
        execution.ask_to_stop(f"its controller was ended by {signal.Signals(number).name}")

    signal.signal(signal.SIGTERM, stop)
    execution.begin(checked)
    log = os.open(execution.run_dir / LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    return execution, checked.limits.detached


def _ignore_the_terminal() -> None:
    """Ignore the signals of a terminal, as this process belongs to none."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def _live(execution: Execution, seconds: float | None) -> None:
    """Wait for the end of the run, and stop it when its time is over."""
    until = float("inf") if seconds is None else _now() + seconds
    while not execution.ended.is_set():
        remaining = until - _now()
        if remaining <= 0:
            execution.ask_to_stop("the time that it was detached for is over")
        wait = min(remaining, SECONDS_PER_LOOK) if remaining > 0 else SECONDS_PER_LOOK
        execution.ended.wait(wait)


def _now() -> float:
    """Return the seconds since the machine was started, including those in which it slept; this clock cannot be set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
