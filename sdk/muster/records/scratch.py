"""Scratch folders: keys, sockets and copies that end with a run, and are removed even if nobody was left to do so."""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.agent.removal import MADE, OWNER, remove_folder
from muster.records import sessions
from muster.text.reading import parse_json, read_regular

PREFIX = "muster-"  # the guard removes only folders named so (muster.agent.scratch)
LARGEST_OWNER = 4096  # bytes
OLD_SECONDS = 60.0  # after which nobody is about to say whose an empty folder is
LONGEST = 40  # characters of the path around it: sockets inside need paths of less than 108


def make_scratch() -> Path:
    """A new folder, mode 0700, whose path is short and has no spaces. Removes those of sessions that are gone.

    Raises:
        OSError: it cannot be made.
    """
    sweep()
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_temporary_folder()))
    claim(path)
    return path


def claim(folder: Path) -> None:
    """Write into a folder that this session has made it, so that ``sweep`` removes it after its end. Raises OSError."""
    (folder / OWNER).touch(mode=0o600)
    (folder / OWNER).write_text(json.dumps(sessions.this_session()))


def scratch_of_this_session() -> list[Path]:
    """The scratch folders that this process has made, and that are still there."""
    this = sessions.this_session()
    return [folder for folder, session in _scratch_of_user(Path(_temporary_folder())) if session == this]


def sweep(around: Path | None = None) -> None:
    """Remove the scratch folders whose session is gone, and old ones that were only made or were all but removed.

    Args:
        around: the folder that they are in; None for where this machine's are.
    """
    around = around or Path(_temporary_folder())
    for folder, session in _scratch_of_user(around):
        if session is None:
            with contextlib.suppress(OSError):
                folder.rmdir()  # which fails where anything is in it
        elif not sessions.is_alive(session) and not sessions.is_out_of_sight(session):
            remove_folder(folder)


def _scratch_of_user(around: Path) -> Iterator[tuple[Path, Any]]:
    """This user's scratch folders, each with the session that made it; None where that is not said.

    Anybody may make folders of such names, with pipes in them that nobody writes to: those are not opened.
    """
    for folder in around.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):  # it is just being removed
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
                continue
            try:
                yield folder, parse_json(read_regular(folder / OWNER, LARGEST_OWNER))
            except FileNotFoundError:
                is_made = stat.S_IMODE(found.st_mode) == 0o700 and re.fullmatch(PREFIX + MADE, folder.name)
                if is_made and time.time() > found.st_mtime + OLD_SECONDS:
                    yield folder, None


def _temporary_folder() -> str:
    """Horovodrun does not quote the paths of keys, and sockets take short ones only."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST and " " not in folder else "/tmp"
