"""TensorBoard in a process that ends when its session does, however that happens.

    process.py SESSION_PID ARGUMENT...     the arguments are TensorBoard's own

Prints the address that it serves on. Imports nothing of Muster, whose folder is therefore taken off the path again.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until told to end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # an exit, unlike the signal, removes temporary folders
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the session has ended")
    del sys.path[0]
    os.environ["no_grpc_proxy"] = "localhost,127.0.0.1"  # else it would reach its own helper through a proxy, or not

    from tensorboard import program

    board = program.TensorBoard()
    board.configure(argv=["tensorboard", *sys.argv[2:]])
    print(board.launch(), flush=True)
    os.dup2(2, 1)  # nobody reads the first any more
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
