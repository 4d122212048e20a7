"""The agent's connection to its session: lines of JSON over TLS, without ever waiting for the other side."""

import socket
import ssl

from . import frames, wire
from .loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

DIAL_TIMEOUT = 20  # seconds for connecting and for each step of the TLS handshake
OUTPUT_ROOM = 1 << 18  # bytes that may wait to be sent before output is held back
REPORT_ROOM = 1 << 22  # bytes that may wait to be sent before reports are dropped
RECORD = 1 << 14  # bytes in one TLS record


class Link:
    """A connection to the session.

    Args:
        loop: the event loop that serves it.
        on_message: called with every message that comes.
        on_lost: called once, with the cause, when the connection is gone.
    """

    def __init__(self, loop: Loop, on_message: "Callable[[Any], object]", on_lost: "Callable[[str], object]") -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        self._decoder = frames.Decoder(limit=None)  # the session, whose certificate is pinned, may send long orders
        self._unsent = bytearray()
        self._socket: "ssl.SSLSocket | None" = None
        self._is_introduced = False

    def dial(self, host: str, port: int, certificate: str) -> None:
        """Connect to the session that owns ``certificate`` (PEM), and to no other. No proxies are involved.

        Raises:
            OSError: nobody answers there, or somebody else does.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate itself is pinned; it names no host
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate)
        if hasattr(ssl, "TLSVersion"):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        else:  # Python 3.6
            context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1
        try:
            plain = socket.create_connection((host, port), timeout=DIAL_TIMEOUT)
        except OSError as error:
            raise OSError("it cannot reach the session at {}:{}: {}".format(host, port, error)) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain)
        self._socket.setblocking(False)
        self._loop.on_readable(self._socket, self._receive)

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._socket is not None

    @property
    def takes_output(self) -> bool:
        """Whether there is room for output, which there is none before the hello. Until then it stays in the log."""
        return self._is_introduced and self._socket is not None and len(self._unsent) < OUTPUT_ROOM

    @property
    def takes_reports(self) -> bool:
        """Whether there is room for reports, which can be waited with nowhere."""
        return self._is_introduced and self._socket is not None and len(self._unsent) < REPORT_ROOM

    def introduce(self, hello: wire.Hello) -> None:
        """Say hello, which must come before anything else."""
        self._is_introduced = True
        self.send(hello)

    def send(self, message: "tuple[Any, ...]") -> None:
        """Send one message as soon as possible. Does nothing once the connection is gone."""
        if self._socket is not None:
            self._unsent += wire.encode(message)
            self._transmit()

    def close(self) -> None:
        """Hang up, after a last attempt to send what waits."""
        if self._socket is None:
            return
        self._loop.forget(self._socket)
        try:
            self._socket.settimeout(1)
            self._socket.sendall(self._unsent)
        except OSError:
            pass
        self._socket.close()
        self._socket = None

    def _transmit(self) -> None:
        if self._socket is None:
            return
        try:
            while self._unsent:
                # A send that has to be repeated must begin with the same bytes; so it does, as only the end grows.
                sent = self._socket.send(bytes(self._unsent[:RECORD]))
                del self._unsent[:sent]
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            self._loop.on_writable(self._socket, self._transmit)
            return
        except OSError as error:
            self._lose(str(error))
            return
        self._loop.on_writable(self._socket, None)

    def _receive(self) -> None:
        try:
            while self._socket is not None:
                data = self._socket.recv(1 << 16)
                if not data:
                    self._lose("the session hung up")
                    return
                for message in self._decoder.feed(data):
                    self._on_message(message)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except (OSError, frames.ProtocolError) as error:
            self._lose(str(error))

    def _lose(self, cause: str) -> None:
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket.close()
            self._socket = None
            self._on_lost(cause)
