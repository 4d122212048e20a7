"""Scratch folders: keys, sockets and copies that end with a run, and are removed even if nobody was left to do so."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from muster.agent.removal import remove_folder
from muster.records import sessions
from muster.text.reading import parse_json, read_regular

PREFIX = "muster-"  # the guard removes only folders named so (muster.agent.scratch)
OWNER = "owner.json"
LARGEST_OWNER = 4096  # bytes
LONGEST = 40  # characters of the path around it: sockets inside need paths of less than 108


def make_scratch() -> Path:
    """A new folder, mode 0700, whose path is short and has no spaces. Removes those of sessions that are gone.

    Raises:
        OSError: it cannot be made.
    """
    around = Path(_temporary_folder())
    sweep(around)
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=around))
    (path / OWNER).write_text(json.dumps(sessions.this_session()))
    return path


def scratch_of_this_session() -> list[Path]:
    """The scratch folders that this process has made, and that are still there."""
    this = sessions.this_session()
    return [folder for folder, session in _scratch_of_user(Path(_temporary_folder())) if session == this]


def sweep(around: Path) -> None:
    """Remove the scratch folders whose session is gone: it, its guard and its agents were killed together."""
    for folder, session in _scratch_of_user(around):
        if not sessions.is_alive(session) and not sessions.is_out_of_sight(session):
            remove_folder(folder)


def _scratch_of_user(around: Path) -> Iterator[tuple[Path, Any]]:
    """This user's scratch folders, each with the session that made it.

    Anybody may make folders of such names, with pipes in them that nobody writes to: those are not opened.
    """
    for folder in around.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):  # none is in it, or it is just being removed
            found = folder.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022:
                yield folder, parse_json(read_regular(folder / OWNER, LARGEST_OWNER))


def _temporary_folder() -> str:
    """Horovodrun does not quote the paths of keys, and sockets take short ones only."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST and " " not in folder else "/tmp"
