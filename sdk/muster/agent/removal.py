"""Removing folders, whatever scripts have left in them: thousands of folders in one another, or some closed to all."""

import contextlib
import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_folder(path: "str | os.PathLike[Any]") -> bool:
    """Remove a folder with all that is in it, as far as it can be, and return whether nothing of it is left.

    Links in it are removed and not followed. However deep it is, this takes few descriptors and no recursion: folders
    in other folders are moved up, to be emptied in their turn.
    """
    with contextlib.suppress(OSError):
        folder = _open(os.fspath(path), None)
        try:
            _empty(folder)
        finally:
            os.close(folder)
        os.rmdir(path)
    return not os.path.lexists(path)


def _empty(root: int) -> None:
    """Remove all that is in a folder. Raises OSError where that cannot be listed."""
    waiting = _remove_files(root)
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


def _remove_files(folder: int) -> "list[str]":
    """Remove what is no folder, as far as it can be, and return the names of the folders. Raises OSError."""
    folders = []
    for name in os.listdir(folder):
        try:
            os.unlink(name, dir_fd=folder)
        except OSError:
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                    folders.append(name)
    return folders


def _open(name: str, around: "int | None") -> int:
    """A descriptor of a folder, whose owner may do anything in it from now on. Raises OSError, for links, too."""
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
    """Let the owner of a folder read it, and not of what may take its place at this moment. Raises OSError."""
    found = os.open(name, FOLDER | getattr(os, "O_PATH", os.O_RDONLY), dir_fd=around)
    try:
        os.chmod("/proc/self/fd/{}".format(found), stat.S_IRWXU)
    finally:
        os.close(found)
