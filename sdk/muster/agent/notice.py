"""The notice that a worker of the run is about to be taken away: a file in the scratch folder of each worker.

``muster.training.preempted`` looks for it. So a script needs no signal handler, and checks at a moment of its choice.
"""

import contextlib
import os
import socket

NAME = "preempted"


def leave(scratch: str) -> None:
    """Leave a notice for the processes of the worker with this scratch folder; ignore errors."""
    with contextlib.suppress(OSError), open(os.path.join(scratch, NAME), "w"):
        pass


def take_away(scratch: str) -> None:
    """Remove the notice, as processes that start from now on belong to another attempt."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(scratch, NAME))


def is_stopped_by_guard(upstream: int) -> bool:
    """Return whether the guard has ordered the agent to end, or is gone, so that SIGTERM is not the platform's.

    Args:
        upstream: descriptor of an agent's socket to the guard, or of a file where it has none.
    """
    try:
        with socket.socket(fileno=os.dup(upstream)) as guard:
            guard.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # it is not a socket
        return False
    return True
