"""Everything that Muster raises, in one tree::

    MusterError                      what happened, to which worker, where the log is, what to try
    ├── JobError (ValueError)        bad input; no worker has been started
    │   ├── ScriptError              the script is missing, does not compile, or has no entry point
    │   ├── InterpreterError         python= cannot be run, or lacks what the job needs
    │   ├── CallError (TypeError)    a call lacks an argument, or has one that is not known
    │   ├── ResourceError            more cores, memory or GPUs than there are, or a senseless number
    │   └── ExtraMissing             a package is not installed that only some parts of Muster need
    ├── PlatformError                the platform cannot do what was asked
    │   ├── PlatformUnsupported      this system cannot host the platform at all
    │   ├── LaunchRefused            a worker was refused; those already started have been stopped
    │   ├── HostUnreachable          a host cannot be used over ssh: it does not answer, or has no python3
    │   └── TrustError               a host cannot be logged in to without a prompt
    │       ├── HostKeyUnknown       nobody has said that its key is the right one; the error has its fingerprint
    │       ├── HostKeyChanged       its key is not the one that is known
    │       └── LoginRefused         it takes none of our keys, nor the password
    ├── StartTimeout (TimeoutError)  the deadline passed before the cluster was up
    │   ├── WorkersMissing           some workers never reported their address
    │   └── ServersNotListening      a process runs, but nothing listens on its port
    ├── RunFailed                    the run started and then failed
    │   ├── ScriptFailed             a script raised, or exited with a status other than 0
    │   ├── WorkerKilled             a signal ended a process
    │   ├── WorkerOutOfMemory        a worker went over its memory and was ended for it
    │   ├── WorkerLost               a worker's agent vanished
    │   │   └── WorkerPreempted      its platform took its place away for others
    │   ├── WorkerCancelled          somebody had the platform end a worker
    │   ├── RunStalled               nothing moved for stall_seconds; details has the stacks of all ranks
    │   ├── RunTimeout               the run took longer than run_timeout, or than its platform allows
    │   └── LauncherFailed           horovodrun or mpiexec itself failed
    ├── RunStopped                   somebody stopped the run before it ended
    ├── StillRunning (TimeoutError)  the run has not ended in the time that somebody waited for it; it goes on
    ├── TensorBoardFailed            TensorBoard is not installed, or did not come up
    ├── RunLost                      the process that the run lived in is gone, and left no result
    ├── RunNotFound                  no recorded run of that name
    └── RunUnreachable               a run under way does not answer other processes

Foreign errors (of ssl, paramiko, subprocess, ...) are turned into these where the foreign call is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from muster.text.arguments import each_part
from muster.text.cleaning import clean
from muster.text.traceback import shown_in_notebooks, with_cells

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


class MusterError(Exception):
    """Base of all errors that Muster raises.

    Args:
        message: what happened, in one sentence.
        worker: name of the worker it happened to, such as ``worker-1``.
        log: the log to read next.
        advice: what to try. Where that is to change arguments, an ``ArgumentText``.
        details: longer material, such as a traceback or the end of a log.

    What would steer a terminal is left out of all of them: they say what scripts and hosts have said.

    Attributes:
        failure: of a run that has failed, what did, as plain data: ``kind``, ``worker`` and ``rank``; of what is known
            ``type`` (of an exception), ``message`` (why a worker is gone), ``exit_code`` and ``signal``; and as
            ``others`` the processes that are named besides, which may as well have failed first, were lost together
            with it, or are the other end of a link that is cut. Else empty.
    """

    failure: Mapping[str, Any] = MappingProxyType({})

    def __init__(
        self,
        message: str,
        *,
        worker: str | None = None,
        log: Path | None = None,
        advice: str | None = None,
        details: str | None = None,
    ) -> None:
        super().__init__(clean(message))
        self.message = each_part(message, clean)
        self.worker = None if worker is None else clean(worker)
        self.log = log
        self.advice = None if advice is None else each_part(advice, clean)
        self.details = None if details is None else with_cells(clean(details))

    def __str__(self) -> str:
        parts = [self.message]
        if self.details and not self.details.isspace():
            parts.append("\n" + self.details.rstrip() + "\n")
        if self.log:
            parts.append(f"Log: {self.log}")
        if self.advice:
            parts.append(f"Try: {self.advice}")
        return "\n".join(parts)

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the line of the cell, and the message, without the frames between."""
        return shown_in_notebooks(self)


def without_inner_frames(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Have what a public function raises of Muster's begin at its caller: the frames inside say nothing to users.

    So does what Python says of wrong arguments. Other errors keep all of their frames.
    """

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except MusterError as error:
            raise error.with_traceback(None) from None
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # raised in the function
                raise
            raise CallError(f"{error}.") from None

    return call


class JobError(MusterError, ValueError):
    """The job cannot be run as described. No worker has been started."""


class ScriptError(JobError):
    """The script is missing, does not compile, or has no entry point."""


class InterpreterError(JobError):
    """The interpreter given as ``python=`` cannot be run, or lacks what the job needs."""


class CallError(JobError, TypeError):
    """A function of Muster's was called without an argument that it needs, or with one that it does not know."""


class ResourceError(JobError):
    """The resources asked for are not there, or make no sense."""


class ExtraMissing(JobError):
    """A package is not installed that only some parts of Muster need; the advice is the command that installs it."""


class PlatformError(MusterError):
    """The platform cannot do what was asked of it."""


class PlatformUnsupported(PlatformError):
    """This system cannot host the platform."""


class LaunchRefused(PlatformError):
    """A worker was refused. Those of the same launch that had started have been stopped."""


class HostUnreachable(PlatformError):
    """A host cannot be used over ssh: it does not answer, has no python3, or its login ended."""


class StartTimeout(MusterError, TimeoutError):
    """The deadline (``timeout_seconds``) passed before the cluster was up."""


class WorkersMissing(StartTimeout):
    """Some workers never reported their address."""


class ServersNotListening(StartTimeout):
    """Processes were started, but nothing listens on their ports."""


class RunFailed(MusterError):
    """The run started and then failed. ``rank`` is the rank that failed first, where there are ranks."""

    rank: int | None = None


class ScriptFailed(RunFailed):
    """A script raised an exception, or exited with a status other than 0."""


class WorkerKilled(RunFailed):
    """A signal that Muster did not send ended a process."""


class WorkerOutOfMemory(RunFailed):
    """A worker used more memory than it was given, and was ended for it."""


class WorkerLost(RunFailed):
    """A worker's agent vanished: killed, or its machine is gone."""


class WorkerPreempted(WorkerLost):
    """A worker's platform took its place away for others."""


class WorkerCancelled(RunFailed):
    """Somebody had the platform end a worker, such as by ``scancel``."""


class RunStalled(RunFailed):
    """Nothing moved for ``stall_seconds``. The Python stacks of all ranks are in ``details``."""


class RunTimeout(RunFailed):
    """The run took longer than ``run_timeout``, or than its platform allows."""


class LauncherFailed(RunFailed):
    """The launcher (``horovodrun``, ``mpiexec``) failed by itself, with no rank to blame."""


class RunStopped(MusterError):
    """The run was stopped before it ended."""


class StillRunning(MusterError, TimeoutError):
    """The run has not ended in the time that somebody waited for it. It goes on."""

    @classmethod
    def after(cls, timeout: float, run_id: str) -> StillRunning:
        """Return the error for a wait of this many seconds."""
        return cls(f"Run {run_id} has not ended after {timeout:g} s, and goes on.", advice="wait() again, or stop()")


class TrustError(PlatformError):
    """A host cannot be logged in to without a prompt."""


class HostKeyUnknown(TrustError):
    """A host proves itself by a key that nobody has said to be the right one."""


class HostKeyChanged(TrustError):
    """A host proves itself by another key than the one that is known."""


class LoginRefused(TrustError):
    """A host takes none of our keys, nor the password."""


class TensorBoardFailed(MusterError):
    """TensorBoard is not installed, or did not come up. What it said is in ``details``."""


class RunLost(MusterError):
    """The process that the run lived in is gone, and left no result."""


class RunNotFound(MusterError):
    """There is no recorded run of that name."""


class RunUnreachable(MusterError):
    """A run under way cannot be asked: its session hangs, is gone, or is on another machine."""
