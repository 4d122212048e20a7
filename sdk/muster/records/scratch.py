"""Scratch folders of runs, for keys, sockets and copies; they are removed later if a session dies without doing so."""

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
from muster.text.system_errors import naming

PREFIX = "muster-"  # the guard removes only folders with this prefix (muster.agent.scratch)
LARGEST_OWNER = 4096  # bytes of the file that names a folder's session
OLD_SECONDS = 60.0  # age from which on a folder without that file is abandoned
LONGEST = 40  # characters of the parent folder's path: sockets inside need paths of less than 108


def make_scratch() -> Path:
    """Make and return a folder, mode 0700, with a short path without spaces; remove those of sessions that are gone.

    Raises:
        OSError: it cannot be made.
    """
    sweep()
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=_temporary_folder()))
    try:
        claim(path)
    except BaseException:
        remove_folder(path)
        raise
    return path


def claim(folder: Path) -> None:
    """Write into a folder that this session has made it, so that ``sweep`` removes it after its end. Raises OSError."""
    with naming(folder):
        (folder / OWNER).touch(mode=0o600)
        (folder / OWNER).write_text(json.dumps(sessions.this_session()))


def scratch_of_this_session() -> list[Path]:
    """Return the scratch folders that this process has made and that still exist."""
    this = sessions.this_session()
    return [folder for folder, session in _scratch_of_user(Path(_temporary_folder())) if session == this]


def sweep(around: Path | None = None) -> None:
    """Remove scratch folders whose session is gone, and old empty ones that name no session.

    Args:
        around: their parent folder; None for the usual one on this machine.
    """
    around = around or Path(_temporary_folder())
    for folder, session in _scratch_of_user(around):
        if session is None:
            with contextlib.suppress(OSError):
                folder.rmdir()  # fails if it is not empty
        elif not sessions.is_alive(session) and not sessions.is_out_of_sight(session):
            remove_folder(folder)


def _scratch_of_user(around: Path) -> Iterator[tuple[Path, Any]]:
    """Yield this user's scratch folders, each with the session that made it, or None for an old one that names none.

    Other users may make folders with such names, and pipes in them that block a reader: these are not opened.
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
    """Return a folder for temporary files whose path has no spaces, which horovodrun does not quote, and is short."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST and " " not in folder else "/tmp"
