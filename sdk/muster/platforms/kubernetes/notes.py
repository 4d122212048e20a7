"""Notes, on this machine, of what sessions have made in clusters.

Secrets cannot be looked for: whoever may list them can read them all, and so the guide's Role does not have that right.
Where a session was killed together with its guard, its note tells the next one their names.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from muster.platforms.session_guard import is_left_behind, owner
from muster.records.folders import make_folder, muster_home
from muster.security.ssh import write_private
from muster.text.reading import read_json


def folder() -> Path:
    """The folder that holds them, one for each owner."""
    return muster_home() / "kubernetes"


def write(facts: Mapping[str, Any]) -> None:
    """Note what this session is about to make, as its guard is told: ``owner``, ``namespace``, ``secrets``."""
    text = json.dumps({**facts, "process": owner(), "host": socket.gethostname()})
    with contextlib.suppress(OSError):  # then only the guard knows
        make_folder(folder(), 0o700)
        write_private(folder() / f"{facts['owner']}.json", text)


def remove(label: str) -> None:
    """Forget an owner of whom nothing is left."""
    with contextlib.suppress(OSError):
        (folder() / f"{label}.json").unlink()


def left() -> list[dict[str, Any]]:
    """Return the notes of sessions that are gone for certain."""
    found = []
    for path in sorted(folder().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
            facts = read_json(path)
            if is_left_behind(str(facts["process"]), str(facts["host"])):
                found.append({"secrets": [], **facts, "owner": path.stem})
    return found
