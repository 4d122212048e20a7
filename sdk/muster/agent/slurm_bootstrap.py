"""Code that makes a worker of a task of Slurm's: says where it is, and runs the agent until that ends.

It is sent as text, with ``unpacking.py`` above it and a call of ``become_worker`` below it. What a task tells its
platform goes into a file of its own in the submission's folder, before its agent adds to that.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ContextManager


def become_worker(unpacked: "ContextManager[str]", folder: str, session: str) -> None:
    """Run the agent of this task until it ends, and exit as it did.

    Args:
        unpacked: makes the folder with the agent's package, and removes it.
        folder: of the submission.
        session: the session's address, by the route to which this node's address is chosen.
    """
    path = "{}/worker-{}".format(folder, os.environ["SLURM_PROCID"])
    agents = []  # type: list[int]  # its agent's process id, once that has started
    early = []  # type: list[bool]  # requests to end before that

    def end(*_: object) -> None:
        if agents:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(agents[0], signal.SIGTERM)  # it ends its processes first, then itself
        else:
            early.append(True)

    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end)  # before anybody can know whom to send it to
    with unpacked as package:
        address = address_towards(session)
        node, step = os.environ.get("SLURMD_NODENAME", ""), os.environ.get("SLURM_STEP_ID", "")
        tell(path, node=node, step=step, address=address, pid=os.getpid(), at=time.time())
        agents.append(start_agent(path + ".launch", environment(address)))
        if early:
            os.kill(agents[0], signal.SIGTERM)
        from agent.removal import begin_to_remove_unused  # type: ignore[import-not-found]

        begin_to_remove_unused(package)
        status = status_of(agents[0])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only the folder is left to be removed
        if status < 0:
            reason = "Its agent was ended by signal {}.".format(-status)
            tell(path, status="failed", exit_code=None, signal=-status, reason=reason)
        elif status and os.path.exists(path + ".stop"):  # its config may have been taken back before it could read it
            tell(path, status="stopped", exit_code=None, signal=None, reason=None)
    sys.exit(1 if status else 0)


def start_agent(config: str, environ: "dict[str, str]") -> int:
    """Fork the agent, which spares it an interpreter's start and most imports, and return its process id.

    Args:
        config: path of what it must know.
        environ: its environment.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the agent, which unblocks it, is ready
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(environ)
            from agent.worker import main  # type: ignore[import-not-found]

            main(config)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                sys.stderr.write(end.code + "\n")
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return pid


def status_of(pid: int) -> int:
    """Wait for the end of a process, and return its status; a signal that ended it as a negative number."""
    _, status = os.waitpid(pid, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def tell(path: str, **news: object) -> None:
    """Add a line to what the platform reads of this task."""
    with os.fdopen(os.open(path + ".news", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
        file.write(json.dumps(news).encode() + b"\n")


def environment(address: str) -> "dict[str, str]":
    """The task's environment, without what makes launchers of MPI believe that Slurm is to start their ranks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PMI_", "PMIX_"))}
    return dict(kept, MUSTER_ADDRESS=address, MUSTER_SLURM_JOB_ID=os.environ.get("SLURM_JOB_ID", ""))


def address_towards(other: str) -> str:
    """The address that this node shows to ``other``."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing; the kernel only chooses a route
        return str(probe.getsockname()[0])
    return "127.0.0.1"
