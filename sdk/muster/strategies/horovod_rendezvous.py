"""Horovod's own rendezvous server, through which ranks started by agents find each other.

Runs in the user's interpreter, and imports nothing of Muster. The first line of input is a JSON object: ``argv``. After
the program's name come the address and the port to listen on, and each host with its number of ranks (``HOST:SLOTS``).
Runs until it is ended.
"""

import ctypes
import errno
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CONNECTIONS = 1024  # length of the listen queue: all ranks connect at once, and Horovod's own queue holds five


def main():
    # type: () -> None
    """Read the arguments, and run the server."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the agent has ended")
    _, address, port, *hosts = json.loads(sys.stdin.readline())["argv"]
    serve(address, int(port), [host.rpartition(":")[::2] for host in hosts])
    signal.pause()


def serve(address, port, hosts):
    # type: (str, int, list[tuple[str, str]]) -> None
    """Start the server on a thread, for ranks on these hosts (pairs of a name and a number of ranks)."""
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http import http_server

    infos = [HostInfo(name, int(slots)) for name, slots in hosts]
    ranks = get_host_assignments(infos, sum(info.slots for info in infos))
    http_server.RendezvousHTTPServer.request_queue_size = CONNECTIONS

    def listen(make):
        # type: (object) -> tuple[object, int]
        """Listen on the address and port that the ranks are given, where Horovod would listen on all and any port."""
        try:
            server = make((address, port))  # type: ignore[operator]
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # The other hosts reach this machine by an address that is not on any of its own interfaces.
            print(f"{address} is not an address of this machine: listening on all that it has", flush=True)
            server = make(("", port))  # type: ignore[operator]
        server.init(ranks)  # before the first rank is answered, as it empties the store
        return server, port

    http_server.find_port = listen
    http_server.RendezvousServer().start()
    print(f"Horovod's rendezvous server listens on {address}, port {port}", flush=True)


if __name__ == "__main__":
    main()
