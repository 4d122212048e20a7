"""Code that unpacks the agent on a machine where it is not installed, into a folder that is removed after its use.

It is sent as text, followed by the code that uses the folder. While that runs, the folder is locked, which shows others
that it is in use. If the process is killed, the next one removes the folder (``removal.remove_unused``). Where many
workers start at once on few cores, all wait for what each one imports: so there is little of that.
"""

import sys

if sys.version_info < (3, 6):
    sys.exit("muster: python3 is Python {}.{}.{}; workers need 3.6".format(*sys.version_info[:3]))

import contextlib
import fcntl
import marshal
import os
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Iterator

LONGEST = 40  # characters of the path of the folder around it: paths of sockets inside must be shorter than 108
TROUBLE = "muster: the agent cannot be put into {}: {}"


@contextlib.contextmanager
def unpacked(packed: bytes, prefix: str) -> "Iterator[str]":
    """Provide a folder, mode 0700, with the agent's package in it; remove it at the end, with all of its contents.

    Args:
        packed: the package, as the session has packed it.
        prefix: the beginning of the folder's name.

    Raises:
        SystemExit: the folder cannot be made.
    """
    around = _temporary_folder()
    # The folder around it may be shared with other machines, whose locks not every file system shows; so the names of
    # their folders begin with another prefix.
    prefix += "{:08x}-".format(zlib.crc32(os.uname().nodename.encode()))
    try:
        folder, lock = _make_folder(prefix, around)
    except OSError as error:
        sys.exit(TROUBLE.format(around, error.strerror or error))
    try:
        try:
            unpack(packed, folder)
        except OSError as error:
            sys.exit(TROUBLE.format(around, error.strerror or error))
        sys.path.insert(0, folder)
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def _temporary_folder() -> str:
    """Return a folder for temporary files whose path is short enough, if there is one that can be used."""
    own = os.path.abspath(os.environ.get("TMPDIR") or "/tmp")
    short = [own] if len(own) <= LONGEST and " " not in own else []
    return next((folder for folder in [*short, "/tmp", "/var/tmp"] if os.access(folder, os.W_OK | os.X_OK)), "/tmp")


def unpack(packed: bytes, folder: str) -> None:
    """Write the agent's package into a folder: the sources, and bytecode where there is some for this Python.

    Raises OSError.
    """
    files_for = marshal.loads(zlib.decompress(packed))
    package = os.path.join(folder, "agent")
    os.makedirs(os.path.join(package, "__pycache__"))
    for name, content in dict(files_for[""], **files_for.get(sys.implementation.cache_tag, {})).items():
        with open(os.path.join(package, name), "wb") as file:
            file.write(content)


def _make_folder(prefix: str, around: str) -> "tuple[str, int]":
    """Make a folder, and return its path and a descriptor of it that holds its lock."""
    while True:
        folder = os.path.join(around, prefix + os.urandom(4).hex())
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            continue
        with contextlib.suppress(FileNotFoundError):  # another process removed it as unused before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            with contextlib.suppress(OSError):  # without locks, nothing is removed as unused either
                fcntl.flock(lock, fcntl.LOCK_SH)
            if os.path.isdir(folder):
                return folder, lock
            os.close(lock)


def _remove(folder: str) -> None:
    try:
        from agent.removal import remove_folder  # type: ignore[import-not-found]
    except ImportError:  # it was not unpacked, so no script has left files here
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    else:
        remove_folder(folder)
