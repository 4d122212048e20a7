"""Code that makes a Slurm task a worker: it reports where the task runs, and runs the agent until that ends.

A program in the submission's folder runs ``unpacking.py``, then it, both from the agent's package there, and then calls
``become_worker``. Each task reports to its platform in a file of its own there, to which its agent adds later.
"""

import contextlib
import json
import os
import signal
import socket
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, ContextManager

PACKED = "agent"  # file with the agent's package in a submission's folder


def become_worker(
    unpacked: "Callable[[bytes, str, bool], ContextManager[str]]", packed: bytes, prefix: str, folder: str, session: str
) -> None:
    """Run the agent of this task until it ends, and exit with status 1 if it failed, otherwise 0.

    Args:
        unpacked: makes the agent's package importable, and a folder for it, and removes that.
        packed: the package.
        prefix: begins the name of the agent's folder.
        folder: the submission's folder.
        session: the session's address; the route to it decides which address of this node is used.
    """
    path = "{}/worker-{}".format(folder, os.environ["SLURM_PROCID"])
    early = []  # type: list[bool]  # not empty after a request to end before the agent has started
    signal.signal(signal.SIGCONT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: early.append(True))  # before this process's id is reported
    with unpacked(packed, prefix, False) as package:
        address = address_towards(session)
        node, step = os.environ.get("SLURMD_NODENAME", ""), os.environ.get("SLURM_STEP_ID", "")
        tell(path, node=node, step=step, address=address, pid=os.getpid(), at=time.time())
        from agent.forking import start_agent, status_of  # type: ignore[import-not-found]

        agent = start_agent(path + ".launch", environment(address))
        if early:
            os.kill(agent, signal.SIGTERM)
        from agent.removal import begin_to_remove_unused  # type: ignore[import-not-found]

        begin_to_remove_unused(package)
        status = status_of(agent)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # nothing is left to do except to remove the folder
        if status < 0:
            reason = "Its agent was ended by signal {}.".format(-status)
            tell(path, status="failed", exit_code=None, signal=-status, reason=reason)
        elif status and os.path.exists(path + ".stop"):  # its config may have been withdrawn before it was read
            tell(path, status="stopped", exit_code=None, signal=None, reason=None)
    sys.exit(1 if status else 0)


def tell(path: str, **news: object) -> None:
    """Append a line to the file that the platform reads about this task."""
    with os.fdopen(os.open(path + ".news", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "wb") as file:
        file.write(json.dumps(news).encode() + b"\n")


def environment(address: str) -> "dict[str, str]":
    """Return the worker's environment: the task's, without variables that make MPI launchers start ranks by Slurm."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PMI_", "PMIX_"))}
    return dict(kept, MUSTER_ADDRESS=address, MUSTER_SLURM_JOB_ID=os.environ.get("SLURM_JOB_ID", ""))


def address_towards(other: str) -> str:
    """Return the address from which this node connects to ``other``."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing; the kernel only chooses a route
        return str(probe.getsockname()[0])
    return "127.0.0.1"
