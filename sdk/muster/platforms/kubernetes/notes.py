"""Notes, on this machine, of the Secrets that sessions have made in clusters.

Secrets cannot be searched for: a user who may list them can read them all, so the guide's Role does not grant that.
Where a session was killed together with its guard, its note tells the next session their names.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.agent.owners import is_left_behind, owner
from muster.records.folders import make_folder, muster_home
from muster.security.ssh import write_private
from muster.text.reading import read_json


def folder() -> Path:
    """Return the folder of the notes, with one file for each owner."""
    return muster_home() / "kubernetes"


def write(facts: Mapping[str, Any]) -> None:
    """Write a note of the objects that this session is about to make, with its guard's facts."""
    text = json.dumps({**facts, "process": owner(), "host": socket.gethostname()})
    with contextlib.suppress(OSError):  # the guard knows them all the same
        make_folder(folder(), 0o700)
        write_private(folder() / f"{facts['owner']}.json", text)


def remove(label: str) -> None:
    """Remove the note of an owner whose objects are all removed."""
    with contextlib.suppress(OSError):
        (folder() / f"{label}.json").unlink()


def left() -> list[dict[str, Any]]:
    """Return the notes of sessions that have ended for certain."""
    found = []
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
            facts = read_json(path)
            if is_left_behind(str(facts["process"]), str(facts["host"])):
                found.append({"secrets": [], **facts, "owner": path.stem})
    return found
