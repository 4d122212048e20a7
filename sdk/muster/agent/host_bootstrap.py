"""Code that makes a guard of a login to a host, out of what is sent through the login's standard input.

It is sent as text, with ``unpacking.py`` above it, a call of ``become_guard`` below it, and the agent's package behind
that as a zip.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable, ContextManager

PREFIX = "muster-host-"


def become_guard(unpacked: "Callable[[bytes, str], ContextManager[str]]") -> None:
    """Run the guard until it ends, in a folder with the agent's package that ``unpacked`` makes, and removes."""
    source = sys.stdin.buffer.raw  # type: ignore[union-attr]
    size = int(source.readline())
    packed = b""
    while len(packed) < size:
        piece = source.read(size - len(packed))
        if not piece:  # whoever called has gone again
            return
        packed += piece
    with unpacked(packed, PREFIX) as folder:
        from agent.host_guard import main  # type: ignore[import-not-found]
        from agent.removal import remove_unused  # type: ignore[import-not-found]

        remove_unused(folder)
        main(folder)
