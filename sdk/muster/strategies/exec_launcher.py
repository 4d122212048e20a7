"""A launcher without preparations: it reads its arguments from its input, and becomes that program.

The first line of input is a JSON object: ``argv``. Imports nothing of Muster.
"""

import ctypes
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Wait for the arguments, and exec."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # survives exec: the session gone, nobody would stop it
    line = sys.stdin.readline()
    if os.getppid() != parent or not line:
        sys.exit("the session has ended")
    argv = json.loads(line)["argv"]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # mpiexec would hand its input on to rank 0
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.exit(f"cannot start {argv[0]}: {error.strerror}")


main()
