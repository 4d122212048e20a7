"""The connections of a service: how many there may be, and for how long, before they have shown a key.

Whoever reaches the port may connect, and say nothing, or half of something, as slowly as they like. So those without a
key are few; where there are more, the oldest of the address that has most of them goes first. Of those with keys, which
workers have, too, there is a limit as well, and the oldest of whoever has most goes first. A request must be complete
within a time, its header and its body. Both hold before and during the handshake of TLS as well, which is why
connections are accepted here.
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
RECEIVE_SECONDS = 10.0  # for a handshake, and for a request without a key
BODY_SECONDS = 60.0  # for a request with a key
SEND_SECONDS = 60.0  # for a client to take what is sent to it
ACCEPTED_AT_ONCE = 32
PAUSE = 0.1  # seconds without accepting where the system has no more descriptors
MESSAGES_A_MINUTE = 20


class Connection:
    """One connection.

    Attributes:
        peer: the address that it comes from.
        caller: whose key a request of it has shown; None as long as none has.
        is_over: whether it is to end.
        transport: what it is written to, once TLS has been agreed on.
        handshake: the task that does so.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.caller: Hashable | None = None
        self.is_over = False
        self.transport: asyncio.Transport | None = None
        self.handshake: asyncio.Task[None] | None = None

    def end(self) -> None:
        """Hang up at once."""
        self.is_over = True
        if self.transport is not None:
            self.transport.abort()
        elif self.handshake is not None:  # otherwise it has not begun, and will not
            self.handshake.cancel()


class Listener:
    """Accepts connections. Has the part of an ``asyncio.Server`` that uvicorn needs.

    Args:
        server: whose connections they are.
        listener: where they come from.
    """

    def __init__(self, server: uvicorn.Server, listener: socket.socket) -> None:
        self._server = server
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._connections: dict[Connection, None] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_open = True
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most_unidentified = min(MOST_UNIDENTIFIED, descriptors // 4)
        self._most = min(MOST, descriptors // 2)
        listener.setblocking(False)
        listener.listen(1024)
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._listener)
            for connection in self._connections:
                if connection.transport is None:
                    connection.end()

    async def wait_closed(self) -> None:
        """Return at once: nothing is left to wait for."""

    def _resume(self) -> None:
        if self._is_open:
            self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # too many files are open
                logger.warning("connections have to wait: %s", error)
                for _ in range(ACCEPTED_AT_ONCE):
                    self._end_one(lambda connection: connection.caller is None)
                self._loop.remove_reader(self._listener)
                self._loop.call_later(PAUSE, self._resume)
                return
            accepted.setblocking(False)
            connection = Connection(str(address[0]))
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

    def _end_one(self, may_go: Callable[[Connection], bool]) -> None:
        """End the oldest of those that may go, of the caller, or without a key the address, that has most of them."""
        ending = [connection for connection in self._connections if may_go(connection)]
        if ending:
            ((busiest, _),) = collections.Counter(
                connection.caller or connection.peer for connection in ending
            ).most_common(1)
            oldest = next(connection for connection in ending if (connection.caller or connection.peer) == busiest)
            del self._connections[oldest]
            oldest.end()

    async def _admit(self, connection: Connection, accepted: socket.socket) -> None:
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
        except (OSError, asyncio.CancelledError):  # it is gone, speaks no TLS, not fast enough, or is to end
            accepted.close()
            self._connections.pop(connection, None)


class HttpConnection(H11Protocol):
    """uvicorn's side of one connection, with a limit to the time that each request takes to come."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.when_lost: Any = lambda: None
        self._deadline: asyncio.TimerHandle | None = None
        self._began = 0.0
        self._send_deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start a time limit for the first request."""
        self.app_state["connection"].transport = transport
        super().connection_made(transport)
        self._expect_request()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self._deadline is None:
            self._expect_request()
        super().data_received(data)
        state = self.conn.their_state
        if state not in (IDLE, SEND_BODY) or (state is IDLE and not self.conn.trailing_data[0]):
            self._forget_deadline()
        if state is IDLE and self._deadline is None:  # the rest has come of a request that is answered already
            self._expect_request()

    def on_response_complete(self) -> None:
        """Go on with the next request. What has come of it already counts as its beginning."""
        super().on_response_complete()
        if self.conn.their_state not in (IDLE, SEND_BODY):
            self._forget_deadline()

    def pause_writing(self) -> None:
        """Start a time limit: the client does not take what is sent."""
        super().pause_writing()
        self._send_deadline = self.loop.call_later(SEND_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Lift the time limit: the client takes what is sent again."""
        super().resume_writing()
        if self._send_deadline is not None:
            self._send_deadline.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended."""
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
    """uvicorn's server with a listener of its own."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        self.servers = [Listener(self, listener) for listener in sockets or ()]  # type: ignore[misc]
        self.started = True


class RateLimit(logging.Filter):
    """Lets so many messages a minute pass, and says how many there were beside them."""

    def __init__(self) -> None:
        super().__init__()
        self._since = float("-inf")
        self._passed = self._left_out = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the message is to be shown."""
        now = time.monotonic()
        if now - self._since >= 60:
            if self._left_out:
                record.msg, record.args = f"{record.getMessage()} (after {self._left_out} more messages)", ()
            self._since, self._passed, self._left_out = now, 0, 0
        self._passed += 1
        self._left_out += self._passed > MESSAGES_A_MINUTE
        return self._passed <= MESSAGES_A_MINUTE
