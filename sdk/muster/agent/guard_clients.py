"""Socket on which a guard answers processes of its user other than its own session, and how they ask there.

They find it by the handles of its workers, which name the guard's process: an abstract socket is named after that.
"""

import os
import socket

from . import frames, linux
from .loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MOST = 16  # connections at once
LONGEST = 1 << 20  # bytes of a request


def guard_address(pid: int, start: int) -> str:
    """Return the address of the guard that got ``pid`` at ``start``: an abstract socket, which ends with the guard."""
    return "\0muster-guard-{}-{}".format(pid, start)


def ask_guard(pid: int, start: int, request: str, fields: "dict[str, Any]", seconds: float) -> "dict[str, Any]":
    """Return the answer of another process's guard to a request, which may take so many seconds.

    Raises:
        OSError: it does not answer, or a process of another user has taken its address.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(seconds)
        connection.connect(guard_address(pid, start))
        user = linux.peer_of(connection)[1]
        if user != os.geteuid():
            raise PermissionError("user {} has taken its address".format(user))
        connection.sendall(frames.encode(request, **fields))
        decoder = frames.Decoder(limit=None)
        while True:
            data = connection.recv(1 << 18)
            if not data:
                raise ConnectionResetError("it hung up")
            for answer in decoder.feed(data):
                return answer


class GuardClients:
    """Answers the requests of other processes of this user.

    Args:
        loop: the event loop that serves it.
        answer: called with each request; what it returns is sent back as the answer.
    """

    def __init__(self, loop: Loop, answer: "Callable[[dict[str, Any]], dict[str, Any]]") -> None:
        self._loop = loop
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self._decoders: "dict[socket.socket, frames.Decoder]" = {}

    def listen(self, address: str) -> None:
        """Start to listen. Raises OSError where the address is taken."""
        self._listener.bind(address)
        self._listener.listen(MOST)
        self._loop.on_readable(self._listener, self._accept)

    def close(self) -> None:
        """Close all sockets, as a process that was just forked must."""
        for connection in self._decoders:
            connection.close()
        self._listener.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # it has gone again
            return
        if len(self._decoders) >= MOST or linux.peer_of(connection)[1] not in (os.geteuid(), 0):
            connection.close()
            return
        connection.setblocking(False)
        self._decoders[connection] = frames.Decoder(limit=LONGEST)
        self._loop.on_readable(connection, lambda: self._receive(connection))

    def _receive(self, connection: socket.socket) -> None:
        try:
            data = connection.recv(1 << 16)
            if not data:
                raise ConnectionResetError("it hung up")
            for message in self._decoders[connection].feed(data):
                self._reply(connection, self._answer(message))
        except BlockingIOError:
            pass
        except (OSError, frames.ProtocolError):
            del self._decoders[connection]
            self._loop.forget(connection)
            connection.close()

    @staticmethod
    def _reply(connection: socket.socket, answer: "dict[str, Any]") -> None:
        """Send an answer; cut off a client that does not read it within a second, which would block the guard."""
        connection.settimeout(1)
        try:
            connection.sendall(frames.encode("reply", **answer))
        finally:
            connection.setblocking(False)
