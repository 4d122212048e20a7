"""The search for a machine's sshd. Not in ``sshd.py``, because ``subprocess`` takes a while to import."""

import os
import shutil
import subprocess

SSHD_PATHS = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/lib/ssh/sshd")
QUERY_TIMEOUT = 20  # seconds that sshd may take to print its version


def find_sshd(paths: "tuple[str, ...]" = SSHD_PATHS) -> "dict[str, str] | None":
    """Return this machine's sshd: its absolute ``path``, and its output about its ``version``. None where it has none.

    Raises:
        OSError, subprocess.SubprocessError: sshd cannot be run.
    """
    path = next((path for path in paths if os.access(path, os.X_OK)), None) or shutil.which("sshd")
    if path is None:
        return None
    # Older versions do not know -V, and print their version along with the error.
    pipe = subprocess.PIPE
    answer = subprocess.run([path, "-V"], stdout=pipe, stderr=subprocess.STDOUT, timeout=QUERY_TIMEOUT)
    return {"path": os.path.abspath(path), "version": answer.stdout.decode("utf-8", "replace")}


def sshd_or_none() -> "dict[str, str] | None":
    """Return this worker's sshd; None where it has none, or none that can be run."""
    try:
        return find_sshd()
    except (OSError, subprocess.SubprocessError):
        return None
