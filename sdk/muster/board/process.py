"""TensorBoard in a process that ends with its session, however that ends.

    process.py SESSION_PID private|public ARGUMENT...     the arguments are TensorBoard's own

It prints the address that it serves on. A private one has a secret in its path, without which it serves nothing:
TensorBoard has no users of its own, and any user of the machine can reach its port. It imports nothing of Muster, whose
folder is therefore removed from ``sys.path``.
"""

import ctypes
import os
import secrets
import signal
import sys

SILENCE = 10.0  # seconds after which a silent connection is closed
PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # an exit, unlike the signal, removes temporary folders
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the session has ended")
    del sys.path[0]
    os.environ["no_grpc_proxy"] = "localhost,127.0.0.1"  # else it may reach its own helper through a proxy

    from tensorboard import program
    from werkzeug.serving import WSGIRequestHandler

    WSGIRequestHandler.timeout = SILENCE
    arguments = sys.argv[3:]
    if sys.argv[2] == "private":
        # The secret is made here, so that no command line shows it. The fast loader serves anybody on its own port.
        arguments += ["--path_prefix", f"/{secrets.token_urlsafe(24)}", "--load_fast", "false"]
    board = program.TensorBoard()
    board.configure(argv=["tensorboard", *arguments])
    print(board.launch(), flush=True)
    os.dup2(2, 1)  # nothing reads standard output any more
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
