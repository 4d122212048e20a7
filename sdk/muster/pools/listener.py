"""The listener of an endpoint: accepts connections over TLS, and bounds the cost of those that are unidentified.

Anyone who reaches the port may connect. So only a few more connections are held than agents are expected; when there
are too many, the oldest of the address with the most connections is ended. Each new connection is safe for a moment,
in which an agent can say hello, however many other connections come. The others wait in the kernel's backlog.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from muster.errors import PlatformError
from muster.pools.tls import TlsTransport
from muster.runtime import clock
from muster.runtime.background import in_thread
from muster.security.certificates import make_certificate
from muster.security.ssh import write_private

HELLO_SECONDS = 10.0  # how long a connection may stay unidentified
EACH_SECONDS = 0.02  # added to that for each expected agent, since agents that come at once are handled in turn
SAFE_SECONDS = 0.5  # how long a new connection is not ended to make room for another
UNREAD_SECONDS = 3.0  # the same for a connection with unread data: then the session is slow, not the other side
BACKLOG = 1024  # connections that wait in the kernel, which under load is quicker than to be refused and to try again
SPARE = 64  # connections that may be held in addition to those of the expected agents
FULL_SECONDS = 0.1  # until the next check for room
AT_ONCE = 64  # connections that are accepted before the event loop does other work
RETRY_SECONDS = 0.5  # until the next attempt when there are no descriptors left
SILENT_SECONDS = 5  # until a silent machine is probed; as long again until its connection is lost
SILENT_ADDRESSES = 100  # addresses of silent connections that are remembered, and warned of
WARNINGS = 5  # warnings that are logged within WARNING_SECONDS; others are only counted
WARNING_SECONDS = 10.0

IP_FREEBIND = 15  # of Linux; the socket module has it from Python 3.14 on

logger = logging.getLogger("muster")


class UnidentifiedConnection:
    """A connection that has not identified itself.

    Attributes:
        address: host from which it comes.
        came_at: when it was accepted, on the monotonic clock.
        socket: the accepted socket.
        task: the task of its handshake.
        transport: its TLS transport, which owns the socket; None before the handshake begins.
    """

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.address = address
        self.came_at = clock.now()
        self.socket = accepted
        self.task: asyncio.Task[None] | None = None
        self.transport: TlsTransport | None = None

    def fileno(self) -> int:
        """Return the descriptor of the connection; -1 once it is closed."""
        return (self.transport or self.socket).fileno()

    def close_unless_begun(self, _: object = None) -> None:
        """Close the socket, unless a transport owns it."""
        if self.transport is None:
            self.socket.close()

    def end(self) -> None:
        """End the connection, also in the middle of its handshake."""
        if self.task is not None:
            self.task.cancel()
        if self.transport is not None:
            self.transport.abort()


class Listener:
    """Listens on one address.

    Args:
        make_protocol: makes the protocol of a connection, which receives its bytes.
        expected: returns how many agents are not connected yet.

    Attributes:
        certificate: the listener's certificate (PEM), made for it alone.
    """

    def __init__(
        self, make_protocol: Callable[[UnidentifiedConnection], asyncio.Protocol], expected: Callable[[], int]
    ) -> None:
        self.certificate = ""
        self._make_protocol = make_protocol
        self._expected = expected
        self._unidentified: dict[UnidentifiedConnection, None] = {}  # in the order in which they came
        self._socket: socket.socket | None = None
        self._context: ssl.SSLContext | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._warnings = RareWarnings()
        self._silent: set[str] = set()  # addresses of connections that never identified themselves

    async def open(self, scratch: Path, host: str, port: int, listen: str, is_coming: bool = False) -> int:
        """Start to listen on the address ``listen``, for agents that dial ``host``, and return the port.

        Args:
            is_coming: whether this machine may get that address only later.

        Raises:
            OSError: the address cannot be listened on.
        """
        self._context, self.certificate = await in_thread(server_context, scratch, host)
        name = listen.encode() if listen.isascii() else listen  # for texts Python imports the codec of other names
        found = await in_thread(socket.getaddrinfo, name, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)
        family, address = found[0][0], found[0][4]
        self._socket = listening_socket(address[:2], family, is_coming)
        self._socket.setblocking(False)
        self._accept_again()
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop listening, and end all connections that have not identified themselves."""
        if self._socket is None:
            return
        self._wait_to_accept(None)
        self._socket.close()
        self._socket = None
        for connection in list(self._unidentified):
            connection.end()

    def welcome(self, connection: UnidentifiedConnection) -> None:
        """Read a connection without delay from now on: it has identified itself, and is not counted any more."""
        self.forget(connection)
        if connection.transport is not None:
            connection.transport.trust()

    def forget(self, connection: UnidentifiedConnection) -> None:
        """Cease to count a connection as unidentified."""
        self._unidentified.pop(connection, None)

    def descriptors(self) -> list[int]:
        """Return the descriptors of all sockets that a forked child must not keep."""
        return [connection.fileno() for connection in self._unidentified] + (
            [self._socket.fileno()] if self._socket else []
        )

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, unless there were many recently."""
        self._warnings.warn(text, *values)

    # -- accepting ----------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            if self._socket is None:
                return
            is_full = len(self._unidentified) >= self._expected() + SPARE
            if is_full and not (self._is_dialled() and self._make_room()):
                return
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self.warn("the session cannot take another connection now: %s", error)
                self._wait_to_accept(RETRY_SECONDS)
                return
            accepted.setblocking(False)
            connection = UnidentifiedConnection(accepted, str(address[0]))
            self._unidentified[connection] = None
            connection.task = asyncio.get_running_loop().create_task(self._shake_hands(connection))
            connection.task.add_done_callback(connection.close_unless_begun)

    def _is_dialled(self) -> bool:
        """Return whether a connection waits to be accepted; if none does, no room needs to be made."""
        assert self._socket is not None
        looking = select.poll()
        looking.register(self._socket, select.POLLIN)
        return bool(looking.poll(0))

    def _make_room(self) -> bool:
        """End a connection whose safe time is over, and return True; if there is none, pause accepting for a moment."""
        held = Counter(connection.address for connection in self._unidentified)
        now = clock.now()
        unsafe = [connection for connection in self._unidentified if connection.came_at + SAFE_SECONDS <= now]
        unread = _unread(
            [
                connection
                for connection in unsafe
                if connection.transport is None or not connection.transport.is_resting()
            ]
        )
        unsafe = [
            connection
            for connection in unsafe
            if connection.fileno() not in unread or connection.came_at + UNREAD_SECONDS <= now
        ]
        if not unsafe:
            self._wait_to_accept(FULL_SECONDS)  # some connections may end by themselves before
            return False
        goes = max(unsafe, key=lambda connection: held[connection.address])  # the first of those, which is the oldest
        self.warn("a connection from %s was ended to make room: it had not identified itself", goes.address)
        self._end(goes)
        return True

    async def _shake_hands(self, connection: UnidentifiedConnection) -> None:
        loop = asyncio.get_running_loop()
        # By call_soon, so that it comes after a hello that is in the inbox already.
        loop.call_later(HELLO_SECONDS, loop.call_soon, self._expire, connection)
        try:
            _configure(connection.socket)
            assert self._context is not None
            connection.transport = TlsTransport(
                connection.socket, self._context, lambda: self._make_protocol(connection)
            )
            await connection.transport.open()
        except Exception as error:  # anything may have been sent in place of a handshake
            self.warn(
                "a connection from %s came to nothing: %s", connection.address, str(error) or type(error).__name__
            )
            self._end(connection)

    def _expire(self, connection: UnidentifiedConnection) -> None:
        if connection in self._unidentified:
            left = connection.came_at + HELLO_SECONDS + EACH_SECONDS * (self._expected() - 1) - clock.now()
            if left > 0:
                loop = asyncio.get_running_loop()
                loop.call_later(left, loop.call_soon, self._expire, connection)
                return
            self._tell_silent(connection.address)
            self._end(connection)

    def _tell_silent(self, address: str) -> None:
        """Warn once for each address whose connections stay silent: hanging agents of the run may be many, too."""
        text = "a connection from %s was ended: it has not identified itself"
        if address in self._silent or len(self._silent) >= SILENT_ADDRESSES:
            logger.debug(text, address)
        else:
            self._silent.add(address)
            self.warn(text, address)

    def _end(self, connection: UnidentifiedConnection) -> None:
        self._unidentified.pop(connection, None)
        connection.end()

    def _wait_to_accept(self, seconds: float | None) -> None:
        """Accept no connections for some seconds; for good, if None."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        loop = asyncio.get_running_loop()
        if self._socket is not None:
            loop.remove_reader(self._socket.fileno())
        if seconds is not None:
            self._retry = loop.call_later(seconds, self._accept_again)

    def _accept_again(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)


def _unread(connections: Sequence[UnidentifiedConnection]) -> set[int]:
    """Return the descriptors of the connections that have data to be read."""
    looking = select.poll()
    for connection in connections:
        if connection.fileno() >= 0:
            looking.register(connection.fileno(), select.POLLIN)
    return {descriptor for descriptor, _ in looking.poll(0)}


def _configure(connection: socket.socket) -> None:
    """Set TCP options, to send without delay and to notice a machine that has disappeared.

    Kernels send and answer the keepalive probes, so that a process may be suspended for any time.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, SILENT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * SILENT_SECONDS * 1000)


def listening_socket(address: tuple[Any, ...], family: int, is_coming: bool) -> socket.socket:
    """Return a socket that listens on an address, which this machine may get later. Raises OSError."""
    try:
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        if not is_coming or error.errno != errno.EADDRNOTAVAIL:
            raise
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.IPPROTO_IP, IP_FREEBIND, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(BACKLOG)
    except BaseException:
        found.close()
        raise
    return found


class RareWarnings:
    """Logs a few warnings in each interval and counts the others, since a client can cause thousands."""

    def __init__(self) -> None:
        self._since = float("-inf")
        self._count = 0

    def warn(self, text: str, *values: object) -> None:
        """Log a warning, unless there were many recently."""
        now = clock.now()
        if now - self._since >= WARNING_SECONDS:
            if self._count > WARNINGS:
                logger.warning("%d more warnings about connections were left out", self._count - WARNINGS)
            self._since, self._count = now, 0
        self._count += 1
        if self._count <= WARNINGS:
            logger.warning(text, *values)


def server_context(scratch: Path, host: str) -> tuple[ssl.SSLContext, str]:
    """Return a TLS context with a new key, and its certificate (PEM), which agents pin. Raises PlatformError."""
    certificate, key = make_certificate(host)
    try:
        path = write_private(scratch / "session.pem", key + certificate)
    except OSError as error:
        raise PlatformError(
            f"The session's key cannot be written to {scratch}: {error.strerror}.",
            advice="make room there, or set TMPDIR to a folder that has some",
        ) from error
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # the oldest interpreters that may host an agent
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # tickets are for resuming TLS sessions, which agents do not do
    context.load_cert_chain(path)
    path.unlink()
    return context, certificate
