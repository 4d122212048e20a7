"""Code that runs a guard in a login to a host, with the agent's package from the login's standard input.

It is sent as text, with ``unpacking.py`` before it and a call of ``become_guard`` after it. It says which bytecode its
interpreter reads, and is then sent the packed package.
"""

import gc
import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, ContextManager

PREFIX = "muster-host-"
READS = "\0muster reads {}\n"  # follows what a host prints at a login


def become_guard(unpacked: "Callable[[bytes, str, bool], ContextManager[str]]", guard: str) -> None:
    """Receive the agent's package, and run the guard until it ends.

    Args:
        unpacked: makes the package importable, and a folder for it, and removes that.
        guard: the module of the package that has the guard's ``main``.
    """
    source = sys.stdin.buffer.raw  # type: ignore[union-attr]
    os.write(1, READS.format(sys.implementation.cache_tag).encode())
    size = int(source.readline())
    packed = b""
    while len(packed) < size:
        piece = source.read(size - len(packed))
        if not piece:  # the platform has hung up already
            return
        packed += piece
    with unpacked(packed, PREFIX, True) as folder:
        main = importlib.import_module("agent." + guard).main
        from agent.removal import remove_unused  # type: ignore[import-not-found]

        remove_unused(folder)
        gc.enable()
        main(folder)
