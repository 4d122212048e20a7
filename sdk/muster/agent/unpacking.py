"""Code that puts the agent onto a machine where it is not installed: into a folder that goes with whoever uses it.

It is sent as text, with what uses the folder below it. As long as that runs the folder is locked, by which others see
that it is in use; what one that was killed has left is removed by the next (``removal.remove_unused``).
"""

import sys

if sys.version_info < (3, 6):
    sys.exit("muster: python3 is Python {}.{}.{}; workers need 3.6".format(*sys.version_info[:3]))

import contextlib
import fcntl
import io
import os
import shutil
import tempfile
import zipfile
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

LONGEST = 40  # characters of the path around it: sockets inside need paths of less than 108
TROUBLE = "muster: the agent cannot be put into {}: {}"


@contextlib.contextmanager
def unpacked(packed: bytes, prefix: str) -> "Iterator[str]":
    """The folder, mode 0700, with the agent's package in it; removed with all that is in it by then.

    Args:
        packed: the package, as a zip.
        prefix: what the folder's name begins with.

    Raises:
        SystemExit: it cannot be made.
    """
    around = tempfile.gettempdir()
    if len(around) > LONGEST or " " in around:
        around = "/tmp"
    # Folders may be shared with other machines, whose locks are not seen on every file system: theirs have other names.
    prefix += "{:08x}-".format(zlib.crc32(os.uname().nodename.encode()))
    try:
        folder, lock = _make_folder(prefix, around)
    except OSError as error:
        sys.exit(TROUBLE.format(around, error.strerror or error))
    try:
        try:
            zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
        except OSError as error:
            sys.exit(TROUBLE.format(around, error.strerror or error))
        sys.path.insert(0, folder)
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _make_folder(prefix: str, around: str) -> "tuple[str, int]":
    """A new folder, and a descriptor of it that holds its lock."""
    while True:
        folder = tempfile.mkdtemp(prefix=prefix, dir=around)
        with contextlib.suppress(FileNotFoundError):  # somebody has swept it before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # of a file system without locks nothing is swept either
                fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)


def _remove(folder: str) -> None:
    try:
        from agent.removal import remove_folder  # type: ignore[import-not-found]
    except ImportError:  # it was never unpacked, so that there are no scripts' files either
        shutil.rmtree(folder, ignore_errors=True)
    else:
        remove_folder(folder)
