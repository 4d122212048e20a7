"""The agent's connection to its session: messages over TLS, without ever waiting for the other side.

Where the worker has a lease, a connection that has ended is dialled again until the lease has: the session may be
reached again, and till then the processes go on. What must not be lost is sent again (``outbox.py``).
"""

import os
import socket
import ssl
import struct
import time

from . import frames, wire
from .loop import Loop
from .outbox import Inbox, Outbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Timer

DIAL_TIMEOUT = 20  # seconds for connecting and for each step of the TLS handshake
REDIAL_TIMEOUT = 5.0  # seconds for one more try
REDIAL_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)  # seconds before each try, and the last of them from then on
OUTPUT_ROOM = 1 << 18  # bytes that may wait to be sent before output is held back
REPORT_ROOM = 1 << 22  # bytes that may wait to be sent before reports are dropped
RECORD = 1 << 14  # bytes in one TLS record
SILENCE = 5.0  # seconds without a sign of the other side's kernel, after which a connection counts as cut
CHECK_SECONDS = 1.0  # between two checks for that
TCP_INFO = struct.Struct("2xB53xI")  # how often the same was sent, and ms since the other side took something


class Link:
    """A connection to the session, and those that take its place.

    Args:
        loop: the event loop that serves it.
        on_message: called with every message that comes.
        on_lost: called once, with the cause, when the connection is gone and the lease has ended.
    """

    def __init__(self, loop: Loop, on_message: "Callable[[Any], object]", on_lost: "Callable[[str], object]") -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        self._session: "dict[str, Any]" = {}
        self._family = socket.AF_INET
        self._peer: "tuple[Any, ...]" = ()  # dialled again as it is: to look a name up may take longer than a lease
        self._hello: "wire.Hello | None" = None
        self._connection: "Connection | None" = None
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._is_closed = False
        self._lease_ends: "float | None" = None  # while there is no connection
        self._tries = 0

    def dial(self, session: "dict[str, Any]") -> None:
        """Connect to the session that owns a certificate, and to no other. No proxies are involved.

        Args:
            session: ``host``, ``port``, ``certificate`` (PEM), ``lease_seconds``.

        Raises:
            OSError: nobody answers there, or somebody else does.
        """
        self._session = session
        address = (session["host"], session["port"])
        try:
            plain = socket.create_connection(address, timeout=DIAL_TIMEOUT)
        except OSError as error:
            raise OSError("it cannot reach the session at {}:{}: {}".format(address[0], address[1], error)) from error
        self._family, self._peer = plain.family, plain.getpeername()
        connection = Connection(self._loop, plain, self._receive, self._lose)
        connection.secure(session["certificate"], is_blocking=True)
        self._connection = connection
        if self._lease:
            self._loop.call_every(CHECK_SECONDS, self._check)

    @property
    def _lease(self) -> float:
        return float(self._session.get("lease_seconds", 0.0))

    @property
    def is_open(self) -> bool:
        """True if there is a connection, or may be one again."""
        return not self._is_closed and (self._connection is not None or self._lease_ends is not None)

    @property
    def takes_output(self) -> bool:
        """True if there is room for output. Before the hello there is none, and output stays in the log."""
        return self._waits_for_less_than(OUTPUT_ROOM)

    @property
    def takes_reports(self) -> bool:
        """True if there is room for reports, which can be waited with nowhere."""
        return self._waits_for_less_than(REPORT_ROOM)

    def _waits_for_less_than(self, room: int) -> bool:
        unsent = len(self._connection.unsent) if self._connection else 0
        return self._hello is not None and self.is_open and max(unsent, self._outbox.size) < room

    def introduce(self, hello: wire.Hello) -> None:
        """Say hello, which must come before anything else."""
        self._hello = hello
        if self._connection is not None:
            self._connection.send(wire.encode(hello))
            self._connection.give_up_after(DIAL_TIMEOUT)

    def send(self, message: "tuple[Any, ...]") -> None:
        """Send one message as soon as possible. Does nothing once the connection is gone for good."""
        if not self.is_open:
            return
        if not self._lease:
            data = wire.encode(message)
        elif type(message) in wire.LASTING:
            try:
                data = self._outbox.add(message)
            except frames.ProtocolError as error:
                self._give_up(str(error))
                return
        elif self._connection is not None and self._connection.is_welcome:
            data = wire.encode(message)
        else:
            return
        if self._connection is not None and (self._connection.is_welcome or not self._lease):
            self._connection.send(data)

    def close(self) -> None:
        """Hang up for good, after a last attempt to send what waits."""
        self._is_closed = True
        if self._connection is not None:
            if self._lease and self._hello is not None:  # which comes before it, welcome or not
                self._connection.send(wire.encode(wire.Leaving()))
            if self._connection is not None:
                self._connection.close()
        self._connection = None

    def _receive(self, fields: "dict[str, Any]") -> None:
        if fields["type"] == "welcome" and self._connection is not None and not self._connection.is_welcome:
            self._welcomed(wire.from_session(fields))
        elif fields["type"] == "ack":
            self._outbox.has(wire.from_session(fields).number)
        elif self._inbox.is_new(fields):
            self._on_message(fields)
        ack = self._inbox.acknowledgement()
        if ack is not None:
            self.send(ack)

    def _welcomed(self, welcome: wire.Welcome) -> None:
        assert self._connection is not None
        self._connection.is_welcome = True
        self._lease_ends = None
        self._tries = 0
        if self._lease:
            self._outbox.has(welcome.received)
            self._connection.send(self._outbox.rest())

    # Coming back

    def _lose(self, cause: str) -> None:
        """Handle the end of the connection, or of the attempt to make one."""
        was = self._connection
        self._connection = None
        if self._is_closed:
            return
        if not self._lease or self._hello is None:
            self._give_up(cause)
            return
        if self._lease_ends is None:  # it may have been cut before that was noticed
            heard_at = was.heard_at() if was is not None else time.monotonic()
            self._lease_ends = heard_at + self._lease
        if time.monotonic() >= self._lease_ends:
            self._give_up("{}, and the lease of {:g} s has ended".format(cause, self._lease))
            return
        pause = REDIAL_PAUSES[min(self._tries, len(REDIAL_PAUSES) - 1)]
        self._tries += 1
        self._loop.call_later(min(pause, self._lease_ends - time.monotonic()), self._redial)

    def _redial(self) -> None:
        if self._is_closed or self._connection is not None or self._hello is None:
            return
        try:
            plain = socket.socket(self._family, socket.SOCK_STREAM)
        except OSError as error:
            self._lose(str(error))
            return
        self._connection = connection = Connection(self._loop, plain, self._receive, self._lose)
        connection.give_up_after(REDIAL_TIMEOUT)
        connection.send(wire.encode(self._hello._replace(received=self._inbox.received)))
        connection.connect(self._peer, self._session["certificate"])

    def _give_up(self, cause: str) -> None:
        if not self._is_closed:
            self._is_closed = True
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.abort()
            self._on_lost(cause)

    def _check(self) -> None:
        """Notice a connection that says nothing any more: packets are lost without a word where a link is cut."""
        if self._connection is not None and self._connection.is_welcome:
            silent = time.monotonic() - self._connection.heard_at()
            if silent > min(SILENCE, self._lease / 2):
                self._connection.fail("the session's machine has not answered for {:.1f} s".format(silent))
        elif self._lease_ends is not None and time.monotonic() >= self._lease_ends:
            if self._connection is not None:
                self._connection.fail("the session did not answer")
            else:
                self._lose("the session could not be reached")


class Connection:
    """One connection over TLS.

    Args:
        loop: the event loop that serves it.
        plain: the socket, which is now its own.
        on_message: called with every message that comes, as fields.
        on_lost: called once, with the cause, when it ends by itself.

    Attributes:
        unsent: what waits to be sent.
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
        """Start TLS with the one who owns this certificate. Raises OSError where it is somebody else."""
        assert self._socket is not None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate itself is pinned; it names no host
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=certificate)
        if hasattr(ssl, "TLSVersion"):
            context.minimum_version = ssl.TLSVersion.TLSv1_2
        else:  # Python 3.6
            context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1
        plain, self._socket = self._socket, None
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = context.wrap_socket(plain, do_handshake_on_connect=is_blocking)
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
        """Return when the other side's machine last answered, as far as it had anything to answer."""
        if self._socket is None:
            return self._heard_at
        try:
            info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
        except OSError:
            return time.monotonic()
        repeated, milliseconds = TCP_INFO.unpack(info)
        return time.monotonic() - milliseconds / 1000 if repeated else time.monotonic()

    def close(self) -> None:
        """Hang up, after a last attempt to send what waits."""
        if self._socket is not None and self._is_secure:
            self._loop.forget(self._socket)
            try:
                self._socket.settimeout(1)
                self._socket.sendall(self.unsent)
            except OSError:
                pass
        self.abort()

    def abort(self) -> None:
        """Hang up."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._socket is not None:
            self._loop.forget(self._socket)
            self._socket.close()
            self._socket = None

    def fail(self, cause: str) -> None:
        """Give the connection up: it has ended, or is as good as that."""
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
