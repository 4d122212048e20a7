"""Scratch folders: keys, sockets and copies that end with a run, and are removed even if nobody was left to do so."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from pathlib import Path

from muster.records import sessions

PREFIX = "muster-"  # the guard removes only folders named so (muster.agent.scratch)
OWNER = "owner.json"
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
    found = []
    for owner in Path(_temporary_folder()).glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError):
            if json.loads(owner.read_text()) == sessions.this_session():
                found.append(owner.parent)
    return found


def sweep(around: Path) -> None:
    """Remove the scratch folders whose session is gone: it, its guard and its agents were killed together."""
    for owner in around.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError, ValueError):  # somebody else's, or just being removed
            is_ours = owner.stat().st_uid == os.geteuid()
            session = json.loads(owner.read_text())
            if is_ours and not sessions.is_alive(session) and not sessions.is_out_of_sight(session):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _temporary_folder() -> str:
    """Horovodrun does not quote the paths of keys, and sockets take short ones only."""
    folder = tempfile.gettempdir()
    return folder if len(folder) <= LONGEST and " " not in folder else "/tmp"
