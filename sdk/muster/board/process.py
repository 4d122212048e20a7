"""TensorBoard in a process that ends when its session does, however that happens.

    process.py SESSION_PID private|public ARGUMENT...     the arguments are TensorBoard's own

Prints the address that it serves on. Where it is private nobody gets anything who does not know that address:
TensorBoard itself knows no users, and any user of the machine can reach its port. Imports nothing of Muster, whose
folder is therefore taken off the path again.
"""

import ctypes
import os
import secrets
import signal
import sys

SILENCE = 10.0  # seconds after which a connection that says nothing is closed
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
    from werkzeug.serving import WSGIRequestHandler

    WSGIRequestHandler.timeout = SILENCE
    arguments = sys.argv[3:]
    if sys.argv[2] == "private":
        # Made here, so that it is on no command line. The loader that is faster serves anybody on a port of its own.
        arguments += ["--path_prefix", f"/{secrets.token_urlsafe(24)}", "--load_fast", "false"]
    board = program.TensorBoard()
    board.configure(argv=["tensorboard", *arguments])
    print(board.launch(), flush=True)
    os.dup2(2, 1)  # nobody reads the first any more
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
