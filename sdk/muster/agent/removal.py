"""Removal of folders, whatever scripts have left in them: deeply nested folders, or folders without permissions."""

import _thread
import contextlib
import fcntl
import os
import re
import stat
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
NAMED = 8  # random characters at the end of mkdtemp's names; similar names of another form may be the user's
MADE = "[a-z0-9_]{%d}\\Z" % NAMED
OWNER = "owner.json"  # file in a folder that says who owns it
SWEEP_SECONDS = 10.0  # time limit of the removal of unused folders; the next call goes on


def remove_folder(path: "str | os.PathLike[Any]") -> bool:
    """Remove a folder with all that is in it, as far as it can be, and return whether nothing of it is left.

    Links in it are removed and not followed. However deep it is, this needs few descriptors and no recursion: inner
    folders are moved up, and then emptied in turn. The file ``owner.json`` is removed last, so that the owner of the
    rest is known if the removal is interrupted.
    """
    with contextlib.suppress(OSError):
        folder = _open(os.fspath(path), None)
        try:
            _empty(folder)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(OWNER, dir_fd=folder)
        finally:
            os.close(folder)
        os.rmdir(path)
    return not os.path.lexists(path)


def lock(folder: str) -> int:
    """Lock a folder against ``remove_unused``, and return the descriptor that holds the lock. Raises OSError."""
    found = os.open(folder, FOLDER | os.O_RDONLY)
    with contextlib.suppress(OSError):  # on a file system without locks nothing is removed either
        fcntl.flock(found, fcntl.LOCK_SH)
    return found


def begin_to_remove_unused(own: str) -> None:
    """Call ``remove_unused`` on a thread, as unused folders may be large, and their disk slow."""
    _thread.start_new_thread(remove_unused, (own,))  # nobody waits for it, and threading takes a while to import


def remove_unused(own: str) -> None:
    """Remove folders beside ``own`` that are named like it and not locked: the processes that used them were killed.

    Args:
        own: the caller's folder, made by ``tempfile.mkdtemp``; others like it have the same prefix and permissions.
    """
    around, name = os.path.split(own)
    like_it = re.compile(re.escape(name[:-NAMED]) + MADE)
    deadline = time.monotonic() + SWEEP_SECONDS
    try:
        others = os.listdir(around)
    except OSError:  # it may be written to, and not read
        return
    for other in others:
        if time.monotonic() > deadline:
            return
        if other != name and like_it.match(other):
            with contextlib.suppress(OSError):  # in use, or a link, or gone
                _remove_unused(os.path.join(around, other))


def _remove_unused(path: str) -> None:
    """Remove a folder, if it belongs to this user. Raises OSError where it is in use."""
    folder = os.open(path, FOLDER | os.O_RDONLY)
    try:
        found = os.fstat(folder)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o700:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_folder(path)
    finally:
        os.close(folder)


def _empty(root: int) -> None:
    """Remove the contents of a folder. Raises OSError where it cannot be listed."""
    waiting = _remove_files(root, OWNER)
    name_of_moved = ".removed-{}-{{}}".format(os.urandom(8).hex()).format
    count = 0
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(OSError):
            folder = _open(name, root)
            try:
                for inner in _remove_files(folder):
                    with contextlib.suppress(OSError):  # something is mounted there, perhaps
                        os.close(_open(inner, folder))  # which lets it be moved, too
                        count += 1
                        os.rename(inner, name_of_moved(count), src_dir_fd=folder, dst_dir_fd=root)
                        waiting.append(name_of_moved(count))
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=root)


def _remove_files(folder: int, kept: str = "") -> "list[str]":
    """Remove everything in a folder except folders, as far as possible, and return their names. Raises OSError."""
    folders = []
    for name in os.listdir(folder):
        try:
            if name == kept and stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                continue
            os.unlink(name, dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    folders.append(name)
    return folders


def _open(name: str, around: "int | None") -> int:
    """Open a folder, give its owner all permissions, and return its descriptor. Raises OSError, also for links."""
    try:
        found = os.open(name, FOLDER | os.O_RDONLY, dir_fd=around)
    except PermissionError:
        _let_owner_in(name, around)
        found = os.open(name, FOLDER | os.O_RDONLY, dir_fd=around)
    with contextlib.suppress(OSError):
        if os.fstat(found).st_mode & stat.S_IRWXU != stat.S_IRWXU:
            os.fchmod(found, stat.S_IRWXU)
    return found


def _let_owner_in(name: str, around: "int | None") -> None:
    """Give the owner of a folder all permissions, without a race with its replacement by a link. Raises OSError."""
    found = os.open(name, FOLDER | getattr(os, "O_PATH", os.O_RDONLY), dir_fd=around)
    try:
        os.chmod("/proc/self/fd/{}".format(found), stat.S_IRWXU)
    finally:
        os.close(found)
