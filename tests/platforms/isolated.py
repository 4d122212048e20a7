"""Workers on this machine that share no files with the session, as those on other machines do."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest
from muster.platforms.base import Storage
from muster.platforms.local import LocalPlatform


class Isolated(LocalPlatform):
    """Each worker has a view of the files in which the session's scratch folder and the run's folder are empty."""

    storage = Storage.NOTHING
    lease_seconds = 15.0


@functools.lru_cache(maxsize=1)
def has_namespaces() -> bool:
    """Return whether this user may have a view of the files of its own."""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def isolated() -> Isolated:
    """Such a platform; skips the test where there can be none."""
    if not has_namespaces():
        pytest.skip("only root can give workers a view of the files of their own")
    return Isolated()
