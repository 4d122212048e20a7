"""The folder that holds a training's checkpoints, each of them whole, whatever is killed and whenever the power fails.

A checkpoint is a folder `step-00001234`, by the number of steps taken. Until all of it is on the disk it has a hidden
name. Standard library only.
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
CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)  # of a file system that cannot do it for folders


def latest(folder: Union[str, os.PathLike[str]]) -> Optional[Path]:
    """The newest checkpoint in a folder; None where there is none."""
    return max(_complete(Path(folder)), key=_total, default=None)


def write_durably(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` make a file, which then gets this path: readers find the old one or all of the new one.

    So they do after a power cut, too. The file that `write` is given lies beside, and has the same ending.
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
        folder: Made with the first checkpoint.
        keep: So many of the newest stay.
    """

    def __init__(self, folder: Union[str, os.PathLike[str]], keep: int) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def path(self, total: int) -> Path:
        """Return the path of the checkpoint after so many steps."""
        return self.folder / f"step-{total:08d}"

    def unfinished(self, total: int) -> Path:
        """Return the path of that checkpoint until it is published."""
        return self.folder / f".{self.path(total).name}.part"

    def newest(self) -> int:
        """The steps of the newest checkpoint; -1 where there is none."""
        return max(map(_total, _complete(self.folder)), default=-1)

    def prepare(self, total: int) -> None:
        """Make the folder for a checkpoint's files, and clear away what was never finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".step-*"):  # of ranks that were killed while they saved
            shutil.rmtree(leftover, ignore_errors=True)
        self.unfinished(total).mkdir(exist_ok=True)

    def discard(self, total: int) -> None:
        """Remove what there is of a checkpoint that could not be finished."""
        shutil.rmtree(self.unfinished(total), ignore_errors=True)

    def publish(self, total: int) -> None:
        """Give a checkpoint its name, now that all its files are there; then remove those that are too old.

        What cannot be removed (on NFS, files that somebody has open) stays, and is tried again with the next one.
        """
        unfinished = self.unfinished(total)
        files = [path for path in unfinished.iterdir() if path.is_file()]
        for written in (*files, unfinished):
            _sync(written)
        os.rename(unfinished, self.path(total))
        _sync(self.folder)  # no other goes before this one is sure to stay
        for old in sorted(_complete(self.folder), key=_total)[: -self.keep]:
            hidden = old.with_name(f".{old.name}.old")
            with contextlib.suppress(OSError):
                os.rename(old, hidden)  # so that none is ever seen half removed
                shutil.rmtree(hidden, ignore_errors=True)


def _complete(folder: Path) -> List[Path]:
    return [path for path in folder.glob("step-*") if NAME.fullmatch(path.name)]


def _total(path: Path) -> int:
    """The steps in the name of a checkpoint."""
    return int(path.name.partition("-")[2])


def _sync(path: Path) -> None:
    """Have the disk take in a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)
