"""Where agents dial in, over TLS, with the run's token. Lives on the background loop.

What they send is decoded and checked here, once; nobody beyond sees anything but :mod:`muster.agent.wire`'s messages.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from muster.agent import frames, wire
from muster.errors import JobError
from muster.job import SessionAddress
from muster.pools.clocks import ClockMeasurement
from muster.pools.listener import Guest, Listener
from muster.runtime import clock
from muster.runtime.forks import in_forked_children

logger = logging.getLogger("muster")

HELLO_LIMIT = 1 << 13  # bytes of a hello; others may not send even so many
REFUSAL_SECONDS = 1.0  # that a refused agent gets to read why
NO_TOKEN = "not the token of this run"
REFUSED = (frames.ProtocolError, wire.Misfit)  # what ends a connection, and is no fault of ours


class Endpoint:
    """Listens for the agents of one run, and passes their messages on.

    Args:
        workers: names of the workers that may say hello.

    Attributes:
        on_message: called with a worker's name and its message, on the event loop; its ``Hello`` comes first. To be
            set before the workers are launched.
        on_lost: called with the name of a worker whose connection has ended. The same.
    """

    def __init__(self, workers: Collection[str]) -> None:
        self._expected = frozenset(workers)
        self.on_message: Callable[[str, Any], None] = lambda worker, message: None
        self.on_lost: Callable[[str], None] = lambda worker: None
        self._token = secrets.token_hex(32)
        self._connections: dict[str, _Connection] = {}
        self._inbox: list[tuple[_Connection, bytes, float]] = []
        self._warned: set[str] = set()
        self._listener = Listener(self._connect, self._missing)
        _endpoints.add(self)

    async def open(self, scratch: Path, host: str, port: int = 0, listen: str = "") -> SessionAddress:
        """Start to listen and return what agents need to know.

        Args:
            scratch: a private folder.
            host: address that agents dial.
            port: the port; 0 for any that is free.
            listen: address to listen on, where that is another one.

        Raises:
            JobError: the address cannot be listened on.
        """
        made = getattr(asyncio.get_running_loop(), "make_listener", Listener)  # a simulated loop has one of its own
        self._listener = made(self._connect, self._missing)
        try:
            port = await self._listener.open(scratch, host, port, listen or host)
        except OSError as error:
            raise JobError(
                f"The session cannot listen on {listen or host}:{port}: {error.strerror or error}.",
                advice="session_address= another host:port, or none for any free port",
            ) from error
        return SessionAddress(host, port, self._listener.certificate, self._token)

    @property
    def connected(self) -> frozenset[str]:
        """Names of the workers whose agents are connected."""
        return frozenset(self._connections)

    def send(self, worker: str, message: tuple[Any, ...]) -> bool:
        """Send a message to a worker's agent; False if it is not connected."""
        connection = self._connections.get(worker)
        if connection is None:
            return False
        connection.send(message)
        return True

    def close(self) -> None:
        """End all connections and stop to listen."""
        self._listener.close()
        for connection in list(self._connections.values()):
            connection.abort()

    def _connect(self, guest: Guest) -> _Connection:
        return _Connection(self, guest)

    def _missing(self) -> int:
        """How many agents are still to come."""
        return len(self._expected) - len(self._connections)

    def received(self, connection: _Connection, data: bytes) -> None:
        """Bytes have come. They are taken once all connections were read that have any: by turns would be slower."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._take_inbox)
        self._inbox.append((connection, data, clock.now()))

    def _take_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        for connection, data, came_at in inbox:
            try:
                for message in connection.decoder.feed(data):
                    self._take(connection, message, came_at)
            except Exception as error:  # whatever one of them sends, those of others come next
                whose, is_ours = connection.worker or "an unknown client", not isinstance(error, REFUSED)
                if is_ours:
                    logger.warning("the connection of %s was ended", whose, exc_info=error)
                else:
                    self._listener.warn("the connection of %s was ended: %s", whose, error)
                connection.abort()

    def _take(self, connection: _Connection, fields: dict[str, Any], came_at: float) -> None:
        """Take a message: the hello of a new connection, or anything of an identified one."""
        if connection.is_dismissed:
            return
        if connection.worker is None:
            self._identify(connection, fields)
            return
        try:
            message = wire.from_agent(fields)
        except wire.Misfit as error:
            if fields["type"] != "report" and not isinstance(error, wire.UnknownKind):
                raise
            self._drop(connection.worker, error)  # any process of the worker may have sent it
            return
        if isinstance(message, wire.Clock):
            connection.clock.answered(message, came_at)
            if connection.clock.wants_more:
                connection.ping()
            else:
                self.on_message(connection.worker, connection.clock.offset)
        elif not isinstance(message, wire.Hello):
            self.on_message(connection.worker, message)

    def _identify(self, connection: _Connection, fields: dict[str, Any]) -> None:
        """Take what must be a hello."""
        try:
            hello = wire.from_agent(fields)
            refusal = self._refusal(hello)
        except wire.Misfit as error:
            has_token = self._is_token(fields.get("token"))
            refusal = f"its hello makes no sense: {error}" if has_token else NO_TOKEN
            if has_token and fields.get("version") != wire.VERSION:
                refusal = f"another version of the protocol than {wire.VERSION}"
        if refusal:
            self._listener.warn("a connection to the session was refused: %s", refusal)
            connection.refuse(refusal)
            return
        connection.worker = hello.worker
        self._listener.forget(connection.guest)
        self._connections[hello.worker] = connection
        connection.decoder.limit = frames.MAX_LINE
        connection.decoder.payload_limit = frames.MAX_PAYLOAD
        connection.send(wire.Welcome())
        connection.ping()
        self.on_message(hello.worker, hello)

    def _drop(self, worker: str, error: wire.Misfit) -> None:
        """Leave out a message, and say so once for each worker: whoever sends one sends many."""
        if worker not in self._warned:
            self._warned.add(worker)
            logger.warning("a message of %s is dropped, and so are others like it: %s", worker, error)

    def connection_lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._listener.forget(connection.guest)
        if connection.worker is not None and self._connections.get(connection.worker) is connection:
            del self._connections[connection.worker]
            self.on_lost(connection.worker)

    def _abandon(self) -> None:
        """Let go of the sockets in a forked child, which would otherwise keep the port and the connections open."""
        held = [connection.transport.get_extra_info("socket").fileno() for connection in self._connections.values()]
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in [*held, *self._listener.descriptors()]:
            if number >= 0:
                os.dup2(nowhere, number)  # not closed: its owner would close the number a second time
        os.close(nowhere)

    def _refusal(self, hello: Any) -> str | None:
        """Why a hello is not accepted; None if it is. Says nothing about the run before the token is right."""
        if not isinstance(hello, wire.Hello) or not self._is_token(hello.token):
            return NO_TOKEN
        if hello.version != wire.VERSION:
            return f"protocol version {hello.version} instead of {wire.VERSION}"
        if hello.worker not in self._expected:
            return f"no worker {hello.worker!r} is expected"
        if hello.worker in self._connections:
            return f"worker {hello.worker!r} is connected already"
        return None

    def _is_token(self, token: object) -> bool:
        return isinstance(token, str) and hmac.compare_digest(
            token.encode("utf-8", "surrogatepass"), self._token.encode()
        )


_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _abandon_endpoints() -> None:
    for session in list(_endpoints):
        session._abandon()


in_forked_children(_abandon_endpoints)


class _Connection(asyncio.Protocol):
    """One agent's connection.

    Attributes:
        worker: whose it is; None until it has said so.
        is_dismissed: whether the session has ended it, so that nothing it has sent counts any more.
    """

    transport: asyncio.Transport

    def __init__(self, endpoint: Endpoint, guest: Guest) -> None:
        self._endpoint = endpoint
        self.guest = guest
        self.decoder = frames.Decoder(HELLO_LIMIT, payload_limit=0)
        self.clock = ClockMeasurement()
        self.worker: str | None = None
        self.is_dismissed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._endpoint.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._endpoint.connection_lost(self)

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message."""
        self.transport.write(wire.encode(message))

    def ping(self) -> None:
        """Ask for the time of the agent's clocks."""
        if not self.is_dismissed:
            self.send(self.clock.question())

    def refuse(self, why: str) -> None:
        """End it, and say why."""
        self.is_dismissed = True
        self.send(wire.Refused(why))
        self.transport.close()
        asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self.transport.abort)

    def abort(self) -> None:
        """End it at once."""
        self.is_dismissed = True
        self.transport.abort()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``. Raises JobError for anything else."""
    host, _, port = text.rpartition(":")
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    if not host or is_bare_ipv6 or not port.isdigit() or int(port) > 65535:
        raise JobError(f"session_address is {text!r}; it must be host:port, or [host]:port for IPv6.")
    return host.strip("[]"), int(port)
