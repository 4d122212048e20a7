"""Code that makes a guard of a login to a host: unpacks the agent, which is not installed there, and runs its guard.

It is sent through the login's standard input, with the agent's package behind it as a zip. Everything lies in one
folder, which goes with the guard; what one that was killed has left is removed by the next.
"""

import sys

if sys.version_info < (3, 6):
    sys.exit("muster: python3 is Python {}.{}.{}".format(*sys.version_info[:3]))

import fcntl
import io
import os
import re
import shutil
import stat
import tempfile
import zipfile

PREFIX = "muster-host-"
MADE = re.compile(PREFIX + r"[a-z0-9_]{8}\Z")  # as mkdtemp names folders: others may begin like that, and be the user's


def become_guard():
    # type: () -> None
    """Run the guard until it ends."""
    source = sys.stdin.buffer.raw  # type: ignore[union-attr]
    size = int(source.readline())
    packed = b""
    while len(packed) < size:
        piece = source.read(size - len(packed))
        if not piece:  # whoever called has gone again
            return
        packed += piece
    try:
        folder, lock = make_folder()
        try:
            zipfile.ZipFile(io.BytesIO(packed)).extractall(folder)
            sys.path.insert(0, folder)
            from agent.host_guard import main  # type: ignore[import-not-found]

            sweep()
            main(folder)
        finally:
            remove(folder)
            os.close(lock)
    except OSError as error:
        sys.exit("muster: the agent cannot be put into {}: {}".format(tempfile.gettempdir(), error.strerror or error))


def make_folder():
    # type: () -> tuple[str, int]
    """A new folder, mode 0700, and a descriptor of it that holds its lock, by which others see that it is in use."""
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.path.isdir(folder):  # nobody has swept it before it was locked
            return folder, lock
        os.close(lock)


def sweep():
    # type: () -> None
    """Remove the folders of this user's guards that have been killed, or went down with the machine."""
    around = tempfile.gettempdir()
    for name in os.listdir(around):
        path = os.path.join(around, name)
        if not MADE.match(name):
            continue
        try:
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            found = os.fstat(folder)
            if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
        except OSError:  # in use
            pass
        finally:
            os.close(folder)


def remove(folder):
    # type: (str) -> None
    """Remove a folder, whatever scripts have left in it."""
    try:
        from agent.removal import remove_folder  # type: ignore[import-not-found]
    except ImportError:  # it was never unpacked, so that there are no scripts' files either
        shutil.rmtree(folder, ignore_errors=True)
    else:
        remove_folder(folder)


become_guard()
