"""Copies of files for workers that share files with the session, in both directions.

A worker's folder may contain anything by the time it is copied. So only regular files are copied, up to their size at
the beginning, and only if there is room: neither a device nor a sparse file can fill the disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from muster.text.reading import open_regular

AT_ONCE = 1 << 20  # bytes that are read at once


def copy(source: Path, target: Path) -> Path:
    """Copy a file, or a folder with its links as links, and return ``target``.

    Raises:
        OSError: something could not be copied; everything else was.
    """
    if target.exists() and target.samefile(source):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if not source.is_dir():
        copy_file(source, target / source.name if target.is_dir() else target)
        return target
    target.mkdir(exist_ok=True)
    left_out = list(_copy_folder(source, target, target.stat()))
    if left_out:
        more = f", and {len(left_out) - 1} more" if len(left_out) > 1 else ""
        raise OSError(f"{left_out[0]}{more}")
    return target


def _copy_folder(source: Path, target: Path, top: os.stat_result) -> Iterator[str]:
    """Copy a folder into another one, and yield, in words, what could not be copied.

    Args:
        top: what tells the folder that everything is copied into, which may be inside of what is copied.
    """
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        goal = target / entry.name
        try:
            if entry.is_symlink():
                _make_room(goal, of_any_kind=True)
                goal.symlink_to(os.readlink(entry))
            elif entry.is_dir():
                if not os.path.samestat(entry.stat(), top):
                    _make_room(goal, of_any_kind=True)
                    goal.mkdir(exist_ok=True)
                    yield from _copy_folder(Path(entry), goal, top)
            elif not (goal.exists() and goal.samefile(entry)):
                _make_room(goal)
                copy_file(entry.path, goal)
        except OSError as error:
            yield f"{entry.path}: {error.strerror or error}"
    with contextlib.suppress(OSError):
        shutil.copystat(source, target)


def _make_room(target: Path, *, of_any_kind: bool = False) -> None:
    """Remove a link that an earlier copy has left, as what it names belongs to others; or a file, too."""
    if target.is_symlink() or (of_any_kind and target.is_file()):
        target.unlink()


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copy a regular file and its permissions, over another one if need be. Raises OSError if either is not regular."""
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "it is no regular file", str(target))
    with open_regular(Path(source)) as file:
        facts = os.fstat(file.fileno())
        if os.path.exists(target) and os.path.samestat(facts, os.stat(target)):
            return  # it is the file itself, or a link to it
        if facts.st_size > shutil.disk_usage(os.path.dirname(target) or ".").free:
            raise OSError(errno.ENOSPC, f"{facts.st_size} bytes are more than there is room for", str(target))
        with open(target, "wb") as copied:
            missing = facts.st_size
            while missing and (data := file.read(min(missing, AT_ONCE))):
                missing -= copied.write(data)
    os.chmod(target, stat.S_IMODE(facts.st_mode))
