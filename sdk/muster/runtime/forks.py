"""Clean-up in forked children of the session: of everything that they must not share with it."""

from __future__ import annotations

import os
from collections.abc import Callable


def in_forked_children(function: Callable[[], object]) -> None:
    """Have ``function`` called in every child that this process forks, where processes can be forked at all."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)
