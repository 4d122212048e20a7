"""Reading of untrusted files, such as records of runs, logs and results of workers.

Nothing here blocks on a pipe without a writer, reads a device without end, or fails by endless recursion.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. Anything else, such as a pipe, a device or a link to itself, counts as missing.

    Raises:
        OSError: it cannot be opened; FileNotFoundError if there is no such file.
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
    """Return the contents of a regular file, or its first ``most`` bytes. Raise OSError as ``open_regular`` does."""
    with open_regular(path) as file:
        return file.read(most)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raise OSError, or ValueError if it is not JSON."""
    return parse_json(read_regular(path))


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or its lists or dicts are nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("too many lists or dicts are in one another") from error
