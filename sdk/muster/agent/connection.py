"""One TLS connection of an agent to its session, which never blocks."""

import os
import socket
import ssl
import struct
import time

from . import frames, wire
from .loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Timer

RECORD = 1 << 14  # bytes in one TLS record
TCP_INFO = struct.Struct("2xB53xI")  # number of retransmissions, and ms since the last acknowledgement


def trouble_with(session: "dict[str, Any]", seconds: float) -> str:
    """Dial a session, and return why it does not answer in this time; empty where it does."""
    try:
        with connection_to((session["host"], session["port"]), seconds) as plain, _pinned(
            session["certificate"]
        ).wrap_socket(plain):
            return ""
    except OSError as error:
        return str(error)


def connection_to(address: "tuple[str, int]", seconds: float) -> socket.socket:
    """Return a connection to a host and port. Raises OSError."""
    return socket.create_connection((encoded(address[0]), address[1]), seconds)


def encoded(host: str) -> "Any":
    """Return the name of a host as bytes if it is ASCII: for text Python would import what encodes other names."""
    try:
        return host.encode("ascii")
    except UnicodeEncodeError:
        return host


def _pinned(certificate: str) -> ssl.SSLContext:
    """Return a TLS context that accepts only a server with this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate itself is pinned; it names no host
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate)
    if hasattr(ssl, "TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    else:  # Python 3.6
        context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1
    return context


class Connection:
    """One connection over TLS.

    Args:
        loop: the event loop that serves it.
        plain: the socket, which it owns from now on.
        on_message: called with the fields of every message that arrives.
        on_lost: called once, with the cause, when it ends by itself.

    Attributes:
        unsent: bytes that wait to be sent.
        is_welcome: whether the session has accepted the hello.
    """

    def __init__(
        self,
        loop: Loop,
        plain: socket.socket,
        on_message: "Callable[[dict[str, Any]], object]",
        on_lost: "Callable[[str], object]",
    ) -> None:
        self.unsent = bytearray()
        self.is_welcome = False
        self._loop = loop
        self._socket: "socket.socket | None" = plain
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = frames.Decoder(limit=None)  # the session, whose certificate is pinned, may send long orders
        self._is_secure = False
        self._has_ended = False
        self._timer: "Timer | None" = None
        self._heard_at = time.monotonic()

    def secure(self, certificate: str, is_blocking: bool = False) -> None:
        """Start TLS with the session that owns this certificate. Raises OSError if another program answers."""
        assert self._socket is not None
        context = _pinned(certificate)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(self._socket, do_handshake_on_connect=False)
        if is_blocking:
            self._socket.do_handshake()
        self._socket.setblocking(False)
        self._is_secure = is_blocking
        self._loop.on_readable(self._socket, self._receive)

    def connect(self, address: "tuple[Any, ...]", certificate: str) -> None:
        """Connect and start TLS, without waiting for either."""
        plain = self._socket
        assert plain is not None

        def connected() -> None:
            error = plain.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._loop.forget(plain)
            if error:
                self.fail("it cannot reach the session: {}".format(os.strerror(error)))
                return
            try:
                self.secure(certificate)
            except OSError as failure:
                self.fail(str(failure))
                return
            self._transmit()

        plain.setblocking(False)
        try:
            plain.connect(address)
        except BlockingIOError:
            self._loop.on_writable(plain, connected)
        except OSError as error:
            cause = str(error)
            self._loop.call_later(0, lambda: self.fail(cause))
        else:
            connected()

    def give_up_after(self, seconds: float) -> None:
        """Count as lost if the session has not accepted the hello in this time."""
        self._timer = self._loop.call_later(seconds, self._expire)

    def _expire(self) -> None:
        if not self.is_welcome:
            self.fail("the session did not answer in time")

    def send(self, data: bytes) -> None:
        """Send as soon as possible."""
        self.unsent += data
        if self._is_secure:
            self._transmit()

    def heard_at(self) -> float:
        """Return when the other side's machine last acknowledged data; the present time if nothing is outstanding."""
        if self._socket is None:
            return self._heard_at
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        except OSError:
            return time.monotonic()
        repeated, milliseconds = TCP_INFO.unpack(info)
        return time.monotonic() - milliseconds / 1000 if repeated else time.monotonic()

    def close(self) -> None:
        """Close the connection, after a last attempt to send waiting bytes."""
        if self._socket is not None and self._is_secure:
            self._loop.forget(self._socket)
            try:
                self._socket.settimeout(1)
                self._socket.sendall(self.unsent)
            except OSError:
                pass
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket.close()
            self._socket = None

    def fail(self, cause: str) -> None:
        """Close the connection and report its loss, since it has ended or does not respond."""
        if not self._has_ended:
            self._heard_at = self.heard_at()
            self.abort()
            self._on_lost(cause)

    def _transmit(self) -> None:
        if self._socket is None:
            return
        try:
            if not self._is_secure:
                assert isinstance(self._socket, ssl.SSLSocket)
                self._socket.do_handshake()
                self._is_secure = True
            while self.unsent:
                # A send that has to be repeated must begin with the same bytes; so it does, as only the end grows.
                sent = self._socket.send(bytes(self.unsent[:RECORD]))
                del self.unsent[:sent]
        except ssl.SSLWantReadError:
            self._loop.on_writable(self._socket, None)
            return
        except ssl.SSLWantWriteError:
            self._loop.on_writable(self._socket, self._transmit)
            return
        except OSError as error:
            self.fail(str(error))
            return
        self._loop.on_writable(self._socket, None)

    def _receive(self) -> None:
        if not self._is_secure:
            self._transmit()
        while self._socket is not None and self._is_secure:
            try:
                data = self._socket.recv(1 << 16)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                self.fail(str(error))
                break
            if not data:
                self.fail("the session hung up")
                break
            try:
                self._take(data)
            except (frames.ProtocolError, wire.Misfit) as error:
                self.fail(str(error))
        if self.unsent:
            self._transmit()

    def _take(self, data: bytes) -> None:
        for message in self._decoder.feed(data):
            if self._socket is None:
                break
            self._on_message(message)
