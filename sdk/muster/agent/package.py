"""The agent's package as files, for other processes of its worker."""

import os

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")  # for other processes


def program() -> str:
    """Return the path of the agent's program; a package that is only in memory is written first. Raises OSError."""
    write = getattr(__spec__.loader, "write", None)  # of the package that ``unpacking.py`` has made
    if write is not None:
        write()
    return PROGRAM
