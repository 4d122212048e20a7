"""A program that becomes a launcher by ``exec``, once it has read the launcher's command line from its input.

The first line of input is a JSON object: ``argv``. Imports nothing of Muster.
"""

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Wait for the command line, and exec it."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # ends with its parent; this survives exec
    line = sys.stdin.readline()
    if os.getppid() != parent or not line:
        sys.exit("the session has ended")
    argv = json.loads(line)["argv"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # mpiexec would forward its input to rank 0
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"cannot start {argv[0]}: {error.strerror}")


main()
