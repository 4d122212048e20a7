"""Copies of files for workers that share files with the session, in both directions.

A worker's folder may contain anything by the time it is copied. So only regular files are copied, up to their size at
the beginning, and only if there is room: neither a device nor a sparse file can fill the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from muster.text.reading import open_regular

AT_ONCE = 1 << 20  # bytes that are read at once


def copy(source: Path, target: Path) -> Path:
    """Copy a file or a folder, and return ``target``. Raises OSError."""
    if target.exists() and target.samefile(source):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, copy_function=copy_file)
    else:
        copy_file(source, target / source.name if target.is_dir() else target)
    return target


def copy_file(source: str | Path, target: str | Path) -> None:
    """Copy a regular file and its permissions, over another one if need be. Raises OSError if either is not regular."""
    if os.path.exists(target) and not os.path.isfile(target):
        raise OSError(errno.EINVAL, "it is no regular file", str(target))
    with open_regular(Path(source)) as file:
        facts = os.fstat(file.fileno())
        if facts.st_size > shutil.disk_usage(os.path.dirname(target) or ".").free:
            raise OSError(errno.ENOSPC, f"{facts.st_size} bytes are more than there is room for", str(target))
        with open(target, "wb") as copied:
            missing = facts.st_size
            while missing and (data := file.read(min(missing, AT_ONCE))):
                missing -= copied.write(data)
    os.chmod(target, stat.S_IMODE(facts.st_mode))
