"""The connections of a service, with limits on their number and on the time that requests take.

Any client that reaches the port may connect and send nothing, or a part of a request, as slowly as it likes. Therefore
few connections without a key are allowed: above that limit, the address with the most of them loses its oldest one.
There is also a limit on all connections, including those with keys, which workers have, too: above it, the caller with
the most connections loses its oldest one. A request's header and body must be complete within a time limit. All limits
also hold before and during the TLS handshake, which is why connections are accepted here rather than by uvicorn.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import resource
import socket
import time
from collections.abc import Callable, Hashable
from typing import Any

import uvicorn
from h11 import IDLE, SEND_BODY
from uvicorn.protocols.http.h11_impl import H11Protocol

logger = logging.getLogger("uvicorn.error")

MOST_UNIDENTIFIED = 128  # connections that have not shown a key
MOST = 512  # connections in all
RECEIVE_SECONDS = 10.0  # for a TLS handshake, and for a request without a key
BODY_SECONDS = 60.0  # for a request with a key
SEND_SECONDS = 60.0  # for a client to receive what is sent to it
ACCEPTED_AT_ONCE = 32
PAUSE = 0.1  # seconds without accepting where no more descriptors are left
MESSAGES_A_MINUTE = 20


class ClientConnection:
    """A connection of one client to the service.

    Attributes:
        peer: the client's address.
        caller: the caller whose key a request has shown; None until one has.
        is_over: whether it is to end.
        transport: its transport, after the TLS handshake.
        handshake: the task of the handshake.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.caller: Hashable | None = None
        self.is_over = False
        self.transport: asyncio.Transport | None = None
        self.handshake: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Close the connection at once."""
        self.is_over = True
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:  # a handshake that has not begun never will
            self.handshake.cancel()


class HttpListener:
    """Accepts connections, with the part of the interface of ``asyncio.Server`` that uvicorn uses.

    Args:
        server: the server that serves the connections.
        listening: the listening socket.
    """

    def __init__(self, server: uvicorn.Server, listening: socket.socket) -> None:
        self._server = server
        self._socket = listening
        self._loop = asyncio.get_running_loop()
        self._connections: dict[ClientConnection, None] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = True
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_unidentified = min(MOST_UNIDENTIFIED, descriptors // 4)
        self._most = min(MOST, descriptors // 2)
        listening.setblocking(False)
        listening.listen(1024)
        self._resume()

    def close(self) -> None:
        """Accept no more connections, and end those that are in their handshake."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket)
            for connection in self._connections:
                if connection.transport is None:
                    connection.end()

    async def wait_closed(self) -> None:
        """Return at once, as there is nothing to wait for."""

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many files are open
                logger.warning("connections have to wait: %s", error)
                for _ in range(ACCEPTED_AT_ONCE):
                    self._end_one(lambda connection: connection.caller is None)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(PAUSE, self._resume)
                return
            accepted.setblocking(False)
            connection = ClientConnection(str(address[0]))
            self._connections[connection] = None
            task = self._loop.create_task(self._admit(connection, accepted))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if self._count_unidentified() > self._most_unidentified:
                self._end_one(lambda connection: connection.caller is None)
            elif len(self._connections) > self._most:
                self._end_one(lambda connection: True)

    def _count_unidentified(self) -> int:
        return sum(connection.caller is None for connection in self._connections)

    def _end_one(self, may_go: Callable[[ClientConnection], bool]) -> None:
        """End the oldest connection of the caller, or of the address without a key, that has the most that may go."""
        ending = [connection for connection in self._connections if may_go(connection)]
        if ending:
            ((busiest, _),) = collections.Counter(
                connection.caller or connection.peer for connection in ending
            ).most_common(1)
            oldest = next(connection for connection in ending if (connection.caller or connection.peer) == busiest)
            del self._connections[oldest]
            oldest.end()

    async def _admit(self, connection: ClientConnection, accepted: socket.socket) -> None:
        config = self._server.config

        def protocol() -> HttpConnection:
            state: dict[str, Any] = {"connection": connection}
            made = HttpConnection(config, self._server.server_state, state, self._loop)
            made.when_lost = lambda: self._connections.pop(connection, None)
            return made

        timeout = {"ssl_handshake_timeout": RECEIVE_SECONDS} if config.ssl else {}
        try:
            if connection.is_over:
                raise ConnectionAbortedError
            connection.handshake = asyncio.current_task()
            await self._loop.connect_accepted_socket(protocol, accepted, ssl=config.ssl, **timeout)
        except (OSError, asyncio.CancelledError):  # the connection has ended or is to end, or its handshake failed
            accepted.close()
            self._connections.pop(connection, None)


class HttpConnection(H11Protocol):
    """uvicorn's protocol of one connection, with a time limit for receiving each request."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.when_lost: Any = lambda: None
        self._deadline: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._send_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the time limit of the first request."""
        self.app_state["connection"].transport = transport
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request."""
        if self._deadline is None:
            self._expect_request()
        super().data_received(data)
        state = self.conn.their_state
        if state not in (IDLE, SEND_BODY) or (state is IDLE and not self.conn.trailing_data[0]):
            self._forget_deadline()
        if state is IDLE and self._deadline is None:  # the rest of a request that was answered early has arrived
            self._expect_request()

    def on_response_complete(self) -> None:
        """Go on with the next request, whose time limit already runs if a part of it has come."""
        super().on_response_complete()
        if self.conn.their_state not in (IDLE, SEND_BODY):
            self._forget_deadline()

    def pause_writing(self) -> None:
        """Start a time limit, as the client does not receive what is sent."""
        super().pause_writing()
        self._send_deadline = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the time limit, as the client receives again."""
        super().resume_writing()
        if self._send_deadline is not None:
            self._send_deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the time limits of a connection that has ended."""
        self._forget_deadline()
        if self._send_deadline is not None:
            self._send_deadline.cancel()
        self.when_lost()
        super().connection_lost(exc)

    def _expect_request(self) -> None:
        self._began = self.loop.time()
        self._deadline = self.loop.call_later(RECEIVE_SECONDS, self._is_late)

    def _is_late(self) -> None:
        left = self._began + BODY_SECONDS - self.loop.time()
        if left > 0 and self.conn.their_state is SEND_BODY and self.app_state["connection"].caller is not None:
            self._deadline = self.loop.call_later(left, self._is_late)
        else:
            self.transport.abort()

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Server(uvicorn.Server):
    """uvicorn's server with this module's listener."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        self.servers = [HttpListener(self, listening) for listening in sockets or ()]  # type: ignore[misc]
        self.started = True


class RateLimit(logging.Filter):
    """A filter that passes a limited number of messages per minute, and then tells how many it has dropped."""

    def __init__(self) -> None:
        super().__init__()
        self._since = float("-inf")
        self._passed = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the message passes."""
        now = time.monotonic()
        if now - self._since >= 60:
            if self._left_out:
                record.msg, record.args = f"{record.getMessage()} (after {self._left_out} more messages)", ()
            self._since, self._passed, self._left_out = now, 0, 0
        self._passed += 1
        self._left_out += self._passed > MESSAGES_A_MINUTE
        return self._passed <= MESSAGES_A_MINUTE
