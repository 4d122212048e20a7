"""Removal of a worker's scratch folder, and of the run's folder around it once that is no longer needed."""

import contextlib
import os
import stat

from . import linux
from .removal import remove_folder

PREFIX = "muster-"  # begins the name of a run's scratch folder


def remove_scratch(scratch: str, session: "tuple[int, int] | None") -> None:
    """Remove a worker's scratch folder; also the run's own folder around it, if the session is gone.

    Args:
        scratch: the worker's scratch folder.
        session: process id and start time of the session; None where it runs on another machine: then the run's
            folder is removed if it is empty.
    """
    remove_folder(scratch)
    around = os.path.dirname(scratch)
    if session is None:
        with contextlib.suppress(OSError):
            if _is_private(around):
                os.rmdir(around)  # fails while another worker of the run has a folder in it
    elif not linux.is_running(*session) and _is_private(around):
        remove_folder(around)


def _is_private(folder: str) -> bool:
    """Return whether a folder is a run's own, by its name, and belongs to this user, with no access for others."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return is_ours and os.path.basename(folder).startswith(PREFIX)
