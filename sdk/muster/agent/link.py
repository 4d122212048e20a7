"""The agent's connection to its session: messages over TLS, without ever waiting for the other side.

If the worker has a lease, a connection that has ended is dialled again until the lease ends; meanwhile the processes go
on. Messages that must not be lost are sent again (``outbox.py``).
"""

import errno
import socket
import ssl
import time

from . import frames, wire
from .connection import Connection, connection_to
from .loop import Loop
from .outbox import Inbox, Outbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

DIAL_TIMEOUT = 20  # seconds for connecting and for each step of the TLS handshake
AGAIN_SECONDS = 10.0  # for which the session is dialled again at first, where what is in the way may pass
REFUSED_SECONDS = 1.0  # the same where nobody listens on this machine itself: it may be about to
# Of a network that is not ready yet, or does not know the name yet, as for some seconds after a container's start.
NOT_READY = (
    errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, socket.EAI_AGAIN, socket.EAI_NONAME,
)  # fmt: skip
HUNG_UP = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
HERE = ("127.0.0.1", "::1", "localhost")
REDIAL_TIMEOUT = 5.0  # seconds for one more try
REDIAL_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.0)  # seconds before each try, and the last of them from then on
OUTPUT_ROOM = 1 << 18  # bytes that may wait to be sent before output is held back
REPORT_ROOM = 1 << 22  # bytes that may wait to be sent before reports are dropped
SILENCE = 5.0  # seconds without a sign of the other side's kernel, after which a connection counts as cut
CHECK_SECONDS = 1.0  # between two checks for that


class Unreachable(OSError):
    """The session does not answer at its address."""

    def __init__(self, address: "tuple[str, int]", error: OSError) -> None:
        super().__init__("it cannot reach the session at {}:{}: {}".format(*address, error))


def _seconds_for(error: OSError, is_here: bool) -> float:
    """Return for how long the session is dialled after an error that may pass; 0 after another.

    On the way to another machine, firewalls and proxies refuse connections until they are set up for a new worker.

    Args:
        error: why there is no connection.
        is_here: whether it was to this machine, and none was made before that the other side ended.
    """
    if isinstance(error, ConnectionRefusedError):
        return REFUSED_SECONDS if is_here else AGAIN_SECONDS
    return AGAIN_SECONDS if error.errno in NOT_READY else 0.0


class Link:
    """The agent's connection to the session, which is replaced by a new one when it is cut.

    Args:
        loop: the event loop that serves it.
        on_message: called with every message that arrives.
        on_lost: called once, with the cause, when the connection is gone and the lease has ended.

    Attributes:
        on_welcome: called with the session's answer to each hello.
    """

    def __init__(self, loop: Loop, on_message: "Callable[[Any], object]", on_lost: "Callable[[str], object]") -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_lost = on_lost
        self.on_welcome: "Callable[[wire.Welcome], object]" = lambda welcome: None
        self._session: "dict[str, Any]" = {}
        self._family = socket.AF_INET
        self._peer: "tuple[Any, ...]" = ()  # kept for dialling again: looking a name up may take longer than a lease
        self._hello: "wire.Hello | None" = None
        self._connection: "Connection | None" = None
        self._outbox = Outbox()
        self._inbox = Inbox()
        self._is_closed = False
        self._lease_ends: "float | None" = None  # while there is no connection
        self._tries = 0

    def dial(self, session: "dict[str, Any]") -> None:
        """Connect to the session that owns a certificate, and to no other. Proxies are not used.

        Args:
            session: ``host``, ``port``, ``certificate`` (PEM), ``lease_seconds``.

        Raises:
            Unreachable: nobody answers there in time, or another program does.
        """
        self._session = session
        address = (session["host"], session["port"])
        began = time.monotonic()
        is_here = session["host"] in HERE
        while True:
            try:
                plain = connection_to(address, DIAL_TIMEOUT)
            except OSError as error:
                if time.monotonic() > began + _seconds_for(error, is_here):
                    raise Unreachable(address, error) from error
                time.sleep(REDIAL_PAUSES[0])
                continue
            is_here = False
            connection = Connection(self._loop, plain, self._receive, self._lose)
            try:
                self._family, self._peer = plain.family, plain.getpeername()
                connection.secure(session["certificate"], is_blocking=True)
                break
            except OSError as error:
                connection.abort()
                is_another = isinstance(error, ssl.SSLError) and not isinstance(error, HUNG_UP)
                # Where many connect, strangers perhaps, session and relays hang up on some.
                if is_another or time.monotonic() > began + AGAIN_SECONDS:
                    raise Unreachable(address, error) from error
                time.sleep(REDIAL_PAUSES[0])
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
    def is_welcome(self) -> bool:
        """True if there is a connection on which the session has answered the hello."""
        return self._connection is not None and self._connection.is_welcome

    @property
    def takes_output(self) -> bool:
        """True if there is room for output. Before the hello there is none, and output stays in the log."""
        return self._waits_for_less_than(OUTPUT_ROOM)

    @property
    def takes_reports(self) -> bool:
        """True if there is room for reports, which are dropped otherwise."""
        return self._waits_for_less_than(REPORT_ROOM)

    @property
    def has_sent_all(self) -> bool:
        """True if nothing waits to be sent or, if there is a lease, to be acknowledged by the session."""
        return not self.is_open or self._waiting == 0

    @property
    def _waiting(self) -> int:
        return max(len(self._connection.unsent) if self._connection else 0, self._outbox.size)

    def _waits_for_less_than(self, room: int) -> bool:
        return self._hello is not None and self.is_open and self._waiting < room

    def introduce(self, hello: wire.Hello) -> None:
        """Say hello, which must come before anything else."""
        self._hello = hello
        connection = self._connection
        if connection is not None:
            connection.give_up_after(DIAL_TIMEOUT)  # first, as it is gone if sending fails
            connection.send(wire.encode(hello))

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
        elif self.is_welcome:
            data = wire.encode(message)
        else:
            return
        if self._connection is not None and (self._connection.is_welcome or not self._lease):
            self._connection.send(data)

    def close(self) -> None:
        """Close the connection for good, after a last attempt to send waiting messages."""
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
        self.on_welcome(welcome)

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
        """Give up a connection whose other side is silent, as a cut network link loses packets without an error."""
        if self._connection is not None and self._connection.is_welcome:
            silent = time.monotonic() - self._connection.heard_at()
            if silent > min(SILENCE, self._lease / 2):
                self._connection.fail("the session's machine has not answered for {:.1f} s".format(silent))
        elif self._lease_ends is not None and time.monotonic() >= self._lease_ends:
            if self._connection is not None:
                self._connection.fail("the session did not answer")
            else:
                self._lose("the session could not be reached")
