"""An ordinary user of this machine without an account: a user id, and a home."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

UID = 54321


@contextlib.contextmanager
def home_of_user() -> Iterator[Path]:
    """Make the user's home, which others may look into, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="mst-"))
    try:
        folder.chmod(0o755)
        os.chown(folder, UID, UID)
        yield folder
    finally:
        shutil.rmtree(folder)


def as_user(*command: str, groups: str = "") -> list[str]:
    """Return the command line that runs a command as the user, who is in these groups as well."""
    others = f"--groups={groups}" if groups else "--clear-groups"
    return ["setpriv", f"--reuid={UID}", f"--regid={UID}", others, *command]
