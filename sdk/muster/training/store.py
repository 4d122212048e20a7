"""The folder that holds a training's checkpoints, each of them whole, whatever is killed and whenever the power fails.

A checkpoint is a folder `step-00001234`, by the number of steps taken. Until all of it is on the disk it has a hidden
name. Standard library only.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import List, Optional, Union

NAME = re.compile(r"step-(\d{8,})")


def latest(folder: Union[str, os.PathLike[str]]) -> Optional[Path]:
    """The newest checkpoint in a folder; None where there is none."""
    return max(_complete(Path(folder)), key=_total, default=None)


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
        """Where the checkpoint of so many steps is."""
        return self.folder / f"step-{total:08d}"

    def unfinished(self, total: int) -> Path:
        """Where it is until it is published."""
        return self.folder / f".{self.path(total).name}.part"

    def newest(self) -> int:
        """The steps of the newest checkpoint; -1 where there is none."""
        return max(map(_total, _complete(self.folder)), default=-1)

    def prepare(self, total: int) -> None:
        """Make the folder for a checkpoint's files, and clear away what was never finished."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for leftover in self.folder.glob(".step-*"):  # of ranks that were killed while they saved
            shutil.rmtree(leftover)
        self.unfinished(total).mkdir()

    def publish(self, total: int) -> None:
        """Give a checkpoint its name, now that all its files are there; then remove those that are too old."""
        unfinished = self.unfinished(total)
        for written in (*unfinished.iterdir(), unfinished):
            _sync(written)
        os.rename(unfinished, self.path(total))
        _sync(self.folder)  # no other goes before this one is sure to stay
        for old in sorted(_complete(self.folder), key=_total)[: -self.keep]:
            hidden = old.with_name(f".{old.name}.old")
            os.rename(old, hidden)  # so that none is ever seen half removed
            shutil.rmtree(hidden)


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
        if error.errno != errno.EINVAL:  # of a file system that cannot do it for folders
            raise
    finally:
        os.close(descriptor)
