"""Everything that Muster raises, in one tree::

    MusterError                      what happened, to which worker, where the log is, what to try
    ├── JobError (ValueError)        bad input; no worker has been started
    │   ├── ScriptError              the script is missing, does not compile, or has no entry point
    │   ├── InterpreterError         the interpreter python= cannot be run, or lacks a package that the job needs
    │   ├── CallError (TypeError)    a call lacks an argument, or has an unknown one
    │   ├── ResourceError            more cores, memory or GPUs than there are, or an invalid number
    │   └── ExtraMissing             a package that only some parts of Muster need is not installed
    ├── PlatformError                the platform cannot do what was asked
    │   ├── PlatformUnsupported      this system cannot host the platform at all
    │   ├── LaunchRefused            a worker was refused; those already started have been stopped
    │   ├── HostUnreachable          a host cannot be used over ssh: it does not answer, or has no python3
    │   └── TrustError               a host cannot be logged in to without a prompt
    │       ├── HostKeyUnknown       nobody has confirmed the host's key; the error has its fingerprint
    │       ├── HostKeyChanged       the host's key is not the known one
    │       └── LoginRefused         the host accepts none of the user's keys, nor the password
    ├── StartTimeout (TimeoutError)  the deadline passed before the cluster was up
    │   ├── WorkersMissing           some workers never reported their address
    │   └── ServersNotListening      a process runs, but nothing listens on its port
    ├── RunFailed                    the run started and then failed
    │   ├── ScriptFailed             a script raised, or exited with a status other than 0
    │   ├── WorkerKilled             a signal ended a process
    │   ├── WorkerOutOfMemory        a worker exceeded its memory limit and was killed
    │   ├── WorkerLost               a worker's agent vanished
    │   │   └── WorkerPreempted      the platform gave the worker's resources to other jobs
    │   ├── WorkerCancelled          somebody had the platform end a worker
    │   ├── RunStalled               no sign of progress for stall_seconds; details has the stacks of all ranks
    │   ├── RunTimeout               the run took longer than run_timeout, or than its platform allows
    │   └── LauncherFailed           horovodrun or mpiexec itself failed
    ├── RunStopped                   somebody stopped the run before it ended
    ├── StillRunning (TimeoutError)  a wait() timed out before the run ended; the run goes on
    ├── TensorBoardFailed            TensorBoard is not installed, or did not come up
    ├── RunLost                      the run's session is gone, and left no result
    ├── RunNotFound                  no recorded run of that name
    └── RunUnreachable               a run under way does not answer other processes

Errors of other libraries (ssl, paramiko, subprocess, ...) are turned into these where the library is called.
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
        advice: what to try. An ``ArgumentText`` if the advice is to change arguments.
        details: longer material, such as a traceback or the end of a log.

    Terminal control sequences are removed from all of these texts, which may quote scripts and hosts.

    Attributes:
        failure: the cause of a run's failure, as plain data: ``kind``, ``worker`` and ``rank``; where they are known,
            ``type`` (of an exception), ``message`` (why a worker is gone), ``exit_code`` and ``signal``; and as
            ``others`` the other processes that are named, which may just as well have failed first, were lost together
            with it, or are the other end of a broken connection. Empty for other errors.
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
        """Return the lines that IPython shows: the cell's line and the message, without the frames in between."""
        return shown_in_notebooks(self)


class RunInterrupted(KeyboardInterrupt):
    """An interrupt that has been handled; its text says what has become of the run."""

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows: no frames, since there is nothing to look for."""
        return [f"KeyboardInterrupt: {self}"]


def without_inner_frames(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
    """Wrap a public function so that the traceback of a MusterError that it raises ends at the function's caller.

    The frames inside Muster tell users nothing. The same holds for an interrupt that has been handled. A TypeError for
    wrong arguments becomes a CallError in the same way. Other errors keep all of their frames.
    """

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
        try:
            return function(*args, **kwargs)
        except (MusterError, RunInterrupted) as error:
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
    """The interpreter given as ``python=`` cannot be run, or lacks a package that the job needs."""


class CallError(JobError, TypeError):
    """A function of Muster's was called without a required argument, or with an unknown one."""


class ResourceError(JobError):
    """The requested resources are not available, or the numbers are invalid."""


class ExtraMissing(JobError):
    """A package that only some parts of Muster need is not installed; the advice is the command that installs it."""


class PlatformError(MusterError):
    """The platform cannot do what was asked of it."""


class PlatformUnsupported(PlatformError):
    """This system cannot host the platform."""


class LaunchRefused(PlatformError):
    """The platform refused a worker. Workers of the same launch that had already started have been stopped."""


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
    """A worker used more memory than it was given, and was killed."""


class WorkerLost(RunFailed):
    """A worker's agent vanished: killed, or its machine is gone."""


class WorkerPreempted(WorkerLost):
    """The platform ended a worker to give its resources to other jobs."""


class WorkerCancelled(RunFailed):
    """Somebody had the platform end a worker, such as by ``scancel``."""


class RunStalled(RunFailed):
    """There was no sign of progress for ``stall_seconds``. The Python stacks of all ranks are in ``details``."""


class RunTimeout(RunFailed):
    """The run took longer than ``run_timeout``, or than its platform allows."""


class LauncherFailed(RunFailed):
    """The launcher (``horovodrun``, ``mpiexec``) failed by itself, with no rank to blame."""


class RunStopped(MusterError):
    """The run was stopped before it ended."""


class StillRunning(MusterError, TimeoutError):
    """A ``wait()`` timed out before the run ended. The run goes on."""

    @classmethod
    def after(cls, timeout: float, run_id: str) -> StillRunning:
        """Return the error for a wait that timed out after ``timeout`` seconds."""
        return cls(f"Run {run_id} has not ended after {timeout:g} s, and goes on.", advice="wait() again, or stop()")


class TrustError(PlatformError):
    """A host cannot be logged in to without a prompt."""


class HostKeyUnknown(TrustError):
    """A host identifies itself by a host key that nobody has confirmed."""


class HostKeyChanged(TrustError):
    """A host identifies itself by another host key than the known one."""


class LoginRefused(TrustError):
    """A host accepts none of the user's keys, nor the password."""


class TensorBoardFailed(MusterError):
    """TensorBoard is not installed, or did not come up. Its output is in ``details``."""


class RunLost(MusterError):
    """The run's session is gone, and left no result."""


class RunNotFound(MusterError):
    """There is no recorded run of that name."""


class RunUnreachable(MusterError):
    """A run under way cannot be asked: its session hangs, is gone, or is on another machine."""
