"""Copies of files for workers that share those of the session, in both directions.

What lies in a worker's folder may be anything by the time that it is copied. So only regular files are, as long as they
were when that began, and where there is room for them: neither a device nor a file of holes fills the disk.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from muster.text.reading import open_regular

AT_ONCE = 1 << 20  # bytes


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
    """Copy a regular file and its permissions, over another if need be. Raises OSError where one of them is none."""
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
