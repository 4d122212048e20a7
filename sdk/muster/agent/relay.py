"""A relay of TCP connections, which carries bytes between two machines that both reach this one, but not each other."""

import contextlib
import resource
import selectors
import socket
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Tuple

    Address = Tuple[str, int]

LARGEST = 1 << 16  # bytes that are read at once
ROOM = 1 << 18  # bytes that may wait for a side to take them, until the other one is not read any more
DIAL_SECONDS = 5.0
BUSY_SECONDS = 0.1  # to wait where there are no descriptors left for another connection
SPARE = 64  # descriptors of this process that are not for connections
MOST = 1 << 15  # connections


class RelayedSide:
    """One of the two connections that a relay carries bytes between.

    Attributes:
        sock: the connection.
        unsent: bytes from the other side.
        other: the other side.
        is_far: whether it is the connection to the relay's target.
    """

    def __init__(self, sock: socket.socket, is_far: bool) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.unsent = bytearray()
        self.other = self
        self.is_far = is_far
        self.has_ended = False


class TcpRelay:
    """A relay from a port of this machine to an address, on a thread of its own.

    Args:
        address: this machine's address to listen on.
        target: host and port that connections are carried to.
        port: the port; 0 for a free one.

    Attributes:
        port: the port.
        most: how many connections it carries at the same time.
        heard_at: when something last came from there, on the monotonic clock.
    """

    def __init__(self, address: str, target: "Address", port: int = 0) -> None:
        self._target = target
        self.most = _most_connections()
        self._sides: "set[RelayedSide]" = set()
        self.heard_at = time.monotonic()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a relay before it linger
        self._listener.bind((address, port))
        self._listener.listen(128)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._closing, self._told_to_close = socket.socketpair()
        self._selector.register(self._told_to_close, selectors.EVENT_READ)
        threading.Thread(target=self._serve, name="muster-relay", daemon=True).start()

    def close(self) -> None:
        """End it, with all of its connections."""
        self._closing.close()

    def _serve(self) -> None:
        is_open = True
        while is_open:
            for key, events in self._selector.select():
                if key.data is not None:
                    self._pass_on(key.data, events)
                elif key.fileobj is self._listener:
                    self._accept()
                else:
                    is_open = False
        self._selector.close()
        for sock in [self._listener, self._told_to_close] + [side.sock for side in self._sides]:
            sock.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listener.accept()
        except OSError:
            time.sleep(BUSY_SECONDS)
            return
        if len(self._sides) >= 2 * self.most:  # this process needs descriptors for other things, too
            near.close()
            return
        try:
            far = socket.create_connection(self._target, timeout=DIAL_SECONDS)
        except OSError:  # the session is gone, or its login is: who dials tries again for a while
            near.close()
            return
        sides = RelayedSide(near, False), RelayedSide(far, True)
        sides[0].other, sides[1].other = sides[1], sides[0]
        self._sides.update(sides)
        for side in sides:
            self._selector.register(side.sock, selectors.EVENT_READ, side)

    def _pass_on(self, side: RelayedSide, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE and side.sock.fileno() >= 0:
                del side.unsent[: side.sock.send(side.unsent)]
            if events & selectors.EVENT_READ and side.sock.fileno() >= 0:
                data = side.sock.recv(LARGEST)
                side.other.unsent += data
                side.has_ended = not data
                if data and side.is_far:
                    self.heard_at = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            side.has_ended = True
            side.unsent.clear()
        for one in (side, side.other):
            if one.sock.fileno() >= 0:
                self._watch(one)

    def _watch(self, side: RelayedSide) -> None:
        """Have a side read and written as its buffers allow; close it once the other has ended and all is sent."""
        if side.has_ended or (side.other.has_ended and not side.unsent):
            with contextlib.suppress(KeyError):
                self._selector.unregister(side.sock)
            side.sock.close()
            side.has_ended = True
            self._sides.discard(side)
            return
        wanted = selectors.EVENT_READ if len(side.other.unsent) < ROOM and not side.other.has_ended else 0
        wanted |= selectors.EVENT_WRITE if side.unsent else 0
        if wanted:
            with contextlib.suppress(KeyError):
                if self._selector.get_key(side.sock).events == wanted:
                    return
                self._selector.unregister(side.sock)
            self._selector.register(side.sock, wanted, side)
        else:
            with contextlib.suppress(KeyError):
                self._selector.unregister(side.sock)


def _most_connections() -> int:
    """Raise this process's limit on descriptors, and return how many connections it leaves room for."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else min(max((soft - SPARE) // 2, 1), MOST)
