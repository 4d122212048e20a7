"""The cache of projects' files for later runs, which containers have mounted from the session's machine."""

from __future__ import annotations

import os
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


def remove_cache() -> Cleaned:
    """Remove the cache, if there is one."""
    path = cache_folder()
    try:
        with os.scandir(path) as entries:
            size = sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError:
        return Cleaned()
    except OSError as error:
        return Cleaned([], [f"{path} could not be removed: {error.strerror}"])
    if not remove_folder(str(path)):
        return Cleaned([], [f"{path} could not be removed"])
    return Cleaned([f"{path}, {size / 1e6:.1f} MB"])
