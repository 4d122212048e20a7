"""Clean-up in forked children of the session, of everything that they must not share with it."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable


def in_forked_children(function: Callable[[], object]) -> None:
    """Call ``function`` in every child that this process forks, on systems with fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def close_in_children(sock: socket.socket) -> None:
    """Close ``sock`` in every child that this process forks, so that its peer notices when this process ends.

    It also keeps two processes from using one connection, which would mix up the answers.
    """
    reference = weakref.ref(sock)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.close()

    in_forked_children(close)
