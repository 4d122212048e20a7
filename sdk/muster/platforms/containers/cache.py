"""The cache of projects' files for later runs, which containers have mounted from the session's machine."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from muster.agent.project import Cache
from muster.agent.removal import remove_folder
from muster.platforms.base import Cleaned
from muster.platforms.containers.guard import base_folder


def cache_folder() -> Path:
    """Return the path of this user's cache: not in the home, which an engine's root may not be able to see."""
    return base_folder() / f"muster-projects-{os.getuid()}"


def make_cache() -> str:
    """Make the cache, private to this user, and return its path; empty where that cannot be, or it is another's."""
    try:
        return Cache(str(cache_folder())).folder
    except OSError:
        return ""


def empty_cache() -> Cleaned:
    """Remove all that is in the cache; the folder itself stays, as containers may just be about to mount it."""
    path = cache_folder()
    size, names = 0, []
    try:
        for name in os.listdir(path):
            with contextlib.suppress(FileNotFoundError):  # a worker has just removed it
                status = os.lstat(path / name)
                if stat.S_ISDIR(status.st_mode):  # made by a script
                    remove_folder(path / name)
                else:
                    os.unlink(path / name)
                names.append(name)
                size += status.st_size
    except FileNotFoundError:
        return Cleaned()
    except OSError as error:
        return Cleaned([], [f"{path} could not be emptied: {error.strerror}"])
    return Cleaned([f"{path}, {size / 1e6:.1f} MB"] if names else [])
