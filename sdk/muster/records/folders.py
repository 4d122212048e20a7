"""Folders of a user's that nobody else may write to, or put others into the place of, whatever the umask is."""

from __future__ import annotations

import contextlib
from pathlib import Path


def make_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder, and those around it, where there is none. None of them is open to more than ``mode`` says.

    Raises:
        OSError: it cannot be made.
    """
    around = path.parent
    if not around.is_dir():
        make_folder(around)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=mode)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is no folder")
