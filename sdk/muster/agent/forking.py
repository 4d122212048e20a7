"""The agent of a worker as a fork of the process that has unpacked it, which spares it an interpreter's start."""

import contextlib
import gc
import os
import signal
import sys


def start_agent(config: str, environ: "dict[str, str]") -> int:
    """Fork the agent, and return its process id. From then on SIGTERM is passed on to it, which ends its processes.

    Args:
        config: path of the agent's config.
        environ: the agent's environment.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the agent, which unblocks it, is ready
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _close_all_but_standard()
            os.environ.clear()
            os.environ.update(environ)
            from .worker import main

            if hasattr(gc, "freeze"):
                gc.freeze()
            gc.enable()
            main(config)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(end.code + "\n")
        except BaseException:
            import traceback  # only here, as every worker waits for what is imported

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def pass_on(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):  # the agent has just ended
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def _close_all_but_standard() -> None:
    """Close what the agent must not hold open: locks, and connections whose other ends wait for their end."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > sys.stderr.fileno():
            with contextlib.suppress(OSError):  # the folder's own
                os.close(number)


def status_of(pid: int) -> int:
    """Wait for the end of a process, and return its exit status, or the negative number of the signal that ended it."""
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
