"""Errors of the operating system in words: which file, and why."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
# In what other programs say; the last is NumPy's, whose arrays have been written in part.
FULL_DISK = re.compile(r"No space left on device|Disk quota exceeded|\d requested and \d+ written")
OF_USERS = NO_ROOM | {errno.EROFS, errno.EACCES, errno.EPERM}  # of the user's folders, rather than defects


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Have an error of a full disk name ``path`` if it names no file, as those of writing name none."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM and error.filename is None:
            error.filename = os.fspath(path)
        raise


def in_words(error: OSError) -> str:
    """Return the file that an error is about, and the system's reason; of an error about many files, of the first.

    >>> in_words(OSError(28, "No space left on device", "/tmp/a"))
    '/tmp/a: No space left on device'
    """
    if isinstance(error, shutil.Error):
        return str(error.args[0][0][2])
    path = error.filename2 or error.filename  # of two, what was to be made
    return f"{path}: {error.strerror}" if path and error.strerror else error.strerror or str(error)


def is_of_user(error: OSError) -> bool:
    """Return whether an error is one of the user's folders, such as of a full disk, rather than a defect."""
    return isinstance(error, shutil.Error) or error.errno in OF_USERS
