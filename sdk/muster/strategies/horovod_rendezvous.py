"""Horovod's own rendezvous server, where ranks that agents have started find one another.

Runs in the user's interpreter, and imports nothing of Muster. The first line of input is a JSON object: ``argv``, the
words that follow the program's name being the address and port to listen on, and each host with its number of ranks
(``HOST:SLOTS``). Runs until it is ended.
"""

import ctypes
import errno
import json
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CONNECTIONS = 1024  # that may wait; ranks come all at once, and Horovod has room for five


def main():
    # type: () -> None
    """Read what to serve, and serve it."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the agent has ended")
    _, address, port, *hosts = json.loads(sys.stdin.readline())["argv"]
    serve(address, int(port), [host.rpartition(":")[::2] for host in hosts])
    signal.pause()


def serve(address, port, hosts):
    # type: (str, int, list[tuple[str, str]]) -> None
    """Start the server for ranks on these hosts (names with numbers of ranks), on a thread."""
    from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
    from horovod.runner.http import http_server

    infos = [HostInfo(name, int(slots)) for name, slots in hosts]
    ranks = get_host_assignments(infos, sum(info.slots for info in infos))
    http_server.RendezvousHTTPServer.request_queue_size = CONNECTIONS

    def listen(make):
        # type: (object) -> tuple[object, int]
        """Listen at the address that the ranks are told, where Horovod would on any port of all."""
        try:
            server = make((address, port))  # type: ignore[operator]
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # Others reach this machine by an address that it does not know itself.
            print(f"{address} is not an address of this machine: listening on all that it has", flush=True)
            server = make(("", port))  # type: ignore[operator]
        server.init(ranks)  # before the first rank is answered: it empties the store
        return server, port

    http_server.find_port = listen
    http_server.RendezvousServer().start()
    print(f"Horovod's rendezvous server listens on {address}, port {port}", flush=True)


if __name__ == "__main__":
    main()
