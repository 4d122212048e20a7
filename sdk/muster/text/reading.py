"""Reading files that anybody may have written or put in another's place: records of runs, logs, results of workers.

Nothing here waits for a pipe to which nobody writes, reads a device without end, or is led into endless recursion.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. Anything else, such as a pipe, a device or a link to itself, counts as not there.

    Raises:
        OSError: it cannot be opened; FileNotFoundError where there is none.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, "it is a link to itself", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
        return open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int = -1) -> bytes:
    """The contents of a regular file, or the first ``most`` bytes of them. Raises as ``open_regular``."""
    with open_regular(path) as file:
        return file.read(most)


def read_json(path: Path) -> Any:
    """The value in a file of JSON. Raises OSError, or ValueError where it is none."""
    return parse_json(read_regular(path))


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return the value that a JSON text holds.

    Raises:
        ValueError: it is none, or has too many lists or dicts in one another.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("too many lists or dicts are in one another") from error
