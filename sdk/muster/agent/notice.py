"""The notice that workers of the run are about to be taken away, where scripts find it: a file in their scratch folder.

``muster.training.preempted`` looks for it. So a script handles no signals, and is told at a moment of its own choice.
"""

import contextlib
import os
import socket

NAME = "preempted"


def leave(scratch: str) -> None:
    """Tell the processes of the worker that has this scratch folder, as far as it can be written."""
    with contextlib.suppress(OSError), open(os.path.join(scratch, NAME), "w"):
        pass


def take_away(scratch: str) -> None:
    """Tell those that start from now on nothing of it: they are another attempt's."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(scratch, NAME))


def is_stopped_by_guard(upstream: int) -> bool:
    """Return whether it was the guard that sent a signal to end, or is gone: then nobody else has a say in it.

    Args:
        upstream: descriptor of an agent's socket to the guard, or of a file where it has none.
    """
    try:
        with socket.socket(fileno=os.dup(upstream)) as guard:
            guard.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:  # it is no socket
        return False
    return True
