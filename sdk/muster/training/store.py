"""The folder of a training's checkpoints, each of which is complete even if a process is killed or the power fails.

A checkpoint is a folder `step-00001234`, named by the number of steps taken. It has a hidden name until all of it is on
the disk. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from pathlib import Path
from typing import Callable, List, Optional, Union

NAME = re.compile(r"step-(\d{8,})")
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # from fsync on file systems that do not support it for folders


def latest(folder: Union[str, os.PathLike[str]]) -> Optional[Path]:
    """Return the path of the newest checkpoint in a folder; None if there is none."""
    return max(_complete(Path(folder)), key=_total, default=None)


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file by the one that `write` makes: readers find the old file or the complete new one.

    That holds after a power failure, too. The path that `write` is given is in the same folder, and has the same
    suffix.
    """
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        write(beside)
        _sync(beside)
        os.replace(beside, path)
        _sync(path.parent)
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


class Store:
    """Makes checkpoints in a folder, and removes old ones.

    Args:
        folder: The folder, which is created with the first checkpoint.
        keep: Number of newest checkpoints to keep.
    """

    def __init__(self, folder: Union[str, os.PathLike[str]], keep: int) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def path(self, total: int) -> Path:
        """Return the path of the checkpoint after `total` steps."""
        return self.folder / f"step-{total:08d}"

    def unfinished(self, total: int) -> Path:
        """Return the path that the checkpoint has until it is published."""
        return self.folder / f".{self.path(total).name}.part"

    def newest(self) -> int:
        """Return the number of steps of the newest checkpoint; -1 if there is none."""
        return max(map(_total, _complete(self.folder)), default=-1)

    def prepare(self, total: int) -> None:
        """Make the folder for a checkpoint's files, and remove unfinished checkpoints."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".step-*"):  # of ranks that were killed while they saved
            shutil.rmtree(leftover, ignore_errors=True)
        self.unfinished(total).mkdir(exist_ok=True)

    def discard(self, total: int) -> None:
        """Remove a checkpoint that could not be finished."""
        shutil.rmtree(self.unfinished(total), ignore_errors=True)

    def publish(self, total: int) -> None:
        """Give a complete checkpoint its final name, then remove those that are too old.

        Files that cannot be removed (on NFS, those that a process has open) stay until the next checkpoint.
        """
        unfinished = self.unfinished(total)
        files = [path for path in unfinished.iterdir() if path.is_file()]
        for written in (*files, unfinished):
            _sync(written)
        os.rename(unfinished, self.path(total))
        _sync(self.folder)  # older ones are removed only once this one is sure to survive a power failure
        for old in sorted(_complete(self.folder), key=_total)[: -self.keep]:
            hidden = old.with_name(f".{old.name}.old")
            with contextlib.suppress(OSError):
                os.rename(old, hidden)  # so that nobody ever sees a partly removed checkpoint
                shutil.rmtree(hidden, ignore_errors=True)


def _complete(folder: Path) -> List[Path]:
    return [path for path in folder.glob("step-*") if NAME.fullmatch(path.name)]


def _total(path: Path) -> int:
    """Return the number of steps in the name of a checkpoint."""
    return int(path.name.partition("-")[2])


def _sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)
