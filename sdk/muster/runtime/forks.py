"""Clean-up in forked children of the session: of everything that they must not share with it."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable


def in_forked_children(function: Callable[[], object]) -> None:
    """Have ``function`` called in every child that this process forks, where processes can be forked at all."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def close_in_children(sock: socket.socket) -> None:
    """Close ``sock`` in every child that this process forks: its peer then sees when this process ends.

    Nor do two processes talk to one peer, which would mix up its answers.
    """
    reference = weakref.ref(sock)

    def close() -> None:
        inherited = reference()
        if inherited is not None:
            inherited.close()

    in_forked_children(close)
