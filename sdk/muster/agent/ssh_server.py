"""The sshd that a machine has. Apart from what runs it, because ``subprocess`` takes a while to import."""

import os
import shutil
import subprocess

SSHD_PATHS = ("/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/lib/ssh/sshd")
QUERY_TIMEOUT = 20  # seconds that it may take to say its version


def find_sshd(paths: "tuple[str, ...]" = SSHD_PATHS) -> "dict[str, str] | None":
    """This machine's sshd: its absolute ``path``, and what it says of its ``version``. None where there is none.

    Raises:
        OSError, subprocess.SubprocessError: it cannot be run.
    """
    path = next((path for path in paths if os.access(path, os.X_OK)), None) or shutil.which("sshd")
    if path is None:
        return None
    # Older ones do not know -V, and say their version while they complain.
    pipe = subprocess.PIPE
    answer = subprocess.run([path, "-V"], stdout=pipe, stderr=subprocess.STDOUT, timeout=QUERY_TIMEOUT)
    return {"path": os.path.abspath(path), "version": answer.stdout.decode("utf-8", "replace")}
