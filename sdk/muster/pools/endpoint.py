"""The session's endpoint: where agents dial in, over TLS, with the run's token. Lives on the background loop."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import ssl
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from muster.agent import wire
from muster.errors import JobError
from muster.job import SessionAddress
from muster.runtime.forks import in_forked_children
from muster.security.certificates import make_certificate
from muster.security.ssh import write_private

logger = logging.getLogger("muster")

HELLO_SECONDS = 20.0  # how long a connection may stay unidentified


class Session:
    """Listens for the agents of one run, and passes their messages on.

    Args:
        workers: names of the workers that may say hello.

    Attributes:
        on_message: called with a worker's name and its message, on the event loop; ``hello`` comes first. To be set
            before the workers are launched.
        on_lost: called with the name of a worker whose connection has ended. The same.
    """

    def __init__(self, workers: Collection[str]) -> None:
        self._expected = frozenset(workers)
        self.on_message: Callable[[str, dict[str, Any]], None] = lambda worker, message: None
        self.on_lost: Callable[[str], None] = lambda worker: None
        self._token = secrets.token_hex(32)
        self._connections: dict[str, _Connection] = {}
        self._unidentified: set[_Connection] = set()
        self._inbox: list[tuple[_Connection, bytes]] = []
        self._server: asyncio.Server | None = None
        _sessions.add(self)

    async def open(self, scratch: Path, host: str, port: int = 0) -> SessionAddress:
        """Start to listen on ``host`` (``port`` 0: any free one) and return what agents need to know.

        Raises:
            JobError: the address cannot be listened on.
        """
        certificate, key = make_certificate(host)
        path = write_private(scratch / "session.pem", key + certificate)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2  # the oldest interpreters that may host an agent
        context.load_cert_chain(path)
        path.unlink()
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Connection(self), host, port, ssl=context, backlog=1024, ssl_handshake_timeout=HELLO_SECONDS
            )
        except OSError as error:
            raise JobError(
                f"The session cannot listen on {host}:{port}: {error.strerror or error}.",
                advice="session_address= another host:port, or none for any free port",
            ) from error
        address = self._server.sockets[0].getsockname()
        return SessionAddress(host, address[1], certificate, self._token)

    @property
    def connected(self) -> frozenset[str]:
        """Names of the workers whose agents are connected."""
        return frozenset(self._connections)

    def send(self, worker: str, kind: str, **fields: Any) -> bool:
        """Send a message to a worker's agent; False if it is not connected."""
        connection = self._connections.get(worker)
        if connection is None:
            return False
        connection.send(kind, **fields)
        return True

    def close(self) -> None:
        """End all connections and stop to listen."""
        for connection in [*self._connections.values(), *self._unidentified]:
            connection.abort()
        if self._server is not None:
            self._server.close()

    def connection_made(self, connection: _Connection) -> None:
        """A connection is there; it has to say who it is."""
        self._unidentified.add(connection)

    def received(self, connection: _Connection, data: bytes) -> None:
        """Bytes have come. They are taken once all connections were read that have any: by turns would be slower."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._take_inbox)
        self._inbox.append((connection, data))

    def _take_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        for connection, data in inbox:
            try:
                for message in connection.decoder.feed(data):
                    self._take(connection, message)
            except Exception as error:  # whatever one of them sends, those of others come next
                whose, is_ours = connection.worker or "an unknown client", not isinstance(error, wire.ProtocolError)
                logger.warning("the connection of %s was ended: %r", whose, error, exc_info=is_ours)
                connection.abort()

    def _take(self, connection: _Connection, message: dict[str, Any]) -> None:
        """Take a message: the hello of a new connection, or anything of an identified one."""
        if connection.is_dismissed:
            return
        if connection.worker is None:
            refusal = self._refusal(message)
            if refusal:
                logger.warning("a connection to the session was refused: %s", refusal)
                connection.refuse(refusal)
                return
            connection.worker = str(message["worker"])
            self._unidentified.discard(connection)
            self._connections[connection.worker] = connection
            connection.send("welcome")
        self.on_message(connection.worker, message)

    def connection_lost(self, connection: _Connection) -> None:
        """A connection has ended."""
        self._unidentified.discard(connection)
        if connection.worker is not None and self._connections.get(connection.worker) is connection:
            del self._connections[connection.worker]
            self.on_lost(connection.worker)

    def _abandon(self) -> None:
        """Let go of the sockets in a forked child, which would otherwise keep the port and the connections open."""
        sockets = list(self._server.sockets) if self._server else []
        sockets += [connection.transport.get_extra_info("socket") for connection in self._connections.values()]
        nowhere = os.open(os.devnull, os.O_RDWR)
        for held in sockets:
            if held.fileno() >= 0:
                os.dup2(nowhere, held.fileno())  # not closed: its owner would close the number a second time
        os.close(nowhere)

    def _refusal(self, hello: dict[str, Any]) -> str | None:
        """Why a hello is not accepted; None if it is. Says nothing about the run before the token is right."""
        token = str(hello.get("token")).encode("utf-8", "surrogatepass")
        if hello["type"] != "hello" or not hmac.compare_digest(token, self._token.encode()):
            return "not the token of this run"
        if hello.get("version") != wire.VERSION:
            return f"protocol version {hello.get('version')} instead of {wire.VERSION}"
        worker = str(hello.get("worker"))
        if worker not in self._expected:
            return f"no worker {worker!r} is expected"
        if worker in self._connections:
            return f"worker {worker!r} is connected already"
        return None


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _abandon_sessions() -> None:
    for session in list(_sessions):
        session._abandon()


in_forked_children(_abandon_sessions)


class _Connection(asyncio.Protocol):
    """One agent's connection.

    Attributes:
        worker: whose it is; None until it has said so.
        is_dismissed: whether the session has ended it, so that nothing it has sent counts any more.
    """

    transport: asyncio.Transport

    def __init__(self, session: Session) -> None:
        self._session = session
        self.decoder = wire.Decoder()
        self.worker: str | None = None
        self.is_dismissed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._session.connection_made(self)
        loop = asyncio.get_running_loop()
        loop.call_later(HELLO_SECONDS, loop.call_soon, self._expire)  # behind a hello that lies in the inbox

    def data_received(self, data: bytes) -> None:
        self._session.received(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._session.connection_lost(self)

    def send(self, kind: str, **fields: Any) -> None:
        """Send one message."""
        self.transport.write(wire.encode(kind, **fields))

    def refuse(self, why: str) -> None:
        """End it, and say why."""
        self.is_dismissed = True
        self.send("refused", text=why)
        self.transport.close()

    def abort(self) -> None:
        """End it at once."""
        self.is_dismissed = True
        self.transport.abort()

    def _expire(self) -> None:
        if self.worker is None:
            self.abort()


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[::1]:port``. Raises JobError for anything else."""
    host, _, port = text.rpartition(":")
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    if not host or is_bare_ipv6 or not port.isdigit() or int(port) > 65535:
        raise JobError(f"session_address is {text!r}; it must be host:port, or [host]:port for IPv6.")
    return host.strip("[]"), int(port)
