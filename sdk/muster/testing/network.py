"""Connections and servers in memory: the event loop delivers what one end writes to the other end, in order."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.pools.listener import HELLO_SECONDS, Listener, UnidentifiedConnection

Protocol = asyncio.Protocol


def connect(loop: asyncio.AbstractEventLoop, ours: Protocol, theirs: Protocol) -> MemoryTransport:
    """Connect two protocols, and return the transport of the first."""
    end, other = MemoryTransport(loop, ours), MemoryTransport(loop, theirs)
    end.peer, other.peer = other, end
    theirs.connection_made(other)
    ours.connection_made(end)
    return end


class MemoryTransport(asyncio.Transport):
    """One end of a connection.

    Attributes:
        peer: the other end.
        is_cut: whether neither bytes nor the end of the connection reach the other end any more, as when a cable has
            been pulled.
    """

    peer: MemoryTransport

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: Protocol) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._arrived: list[bytes] = []
        self._is_paused = False
        self._is_closing = False
        self._is_lost = False
        self.is_cut = False

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes; drop them once the connection has ended."""
        if data and not self._is_closing and not self.is_cut:
            self._loop.call_soon(self.peer._arrive, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        """Send bytes."""
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Return 0: all that is written is sent at once."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: nothing ever waits to be sent."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the other end's address (``peername``), a socket without a descriptor (``socket``), or the default."""
        return {"peername": ("127.0.0.1", 0), "socket": MemorySocket(("127.0.0.1", 0))}.get(name, default)

    def fileno(self) -> int:
        """Return -1: it has no descriptor."""
        return -1

    def pause_reading(self) -> None:
        """Hold back received bytes until reading is resumed."""
        self._is_paused = True

    def resume_reading(self) -> None:
        """Deliver the bytes that were held back, and later ones."""
        self._is_paused = False
        self._loop.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        """Return whether received data is delivered."""
        return not self._is_paused and not self._is_closing

    def is_closing(self) -> bool:
        """Return whether this end has been closed."""
        return self._is_closing

    def close(self) -> None:
        """End the connection, after all written bytes have reached the other end."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._lose, None)
            if not self.is_cut:
                self._loop.call_soon(self.peer._end)

    def abort(self) -> None:
        """End the connection."""
        self.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Deliver data to another protocol from now on."""
        assert isinstance(protocol, Protocol)
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that receives the bytes."""
        return self._protocol

    def _arrive(self, data: bytes) -> None:
        self._arrived.append(data)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._arrived and self.is_reading():
            self._protocol.data_received(self._arrived.pop(0))

    def _end(self) -> None:
        """Handle the end of the connection: the other side has been closed."""
        if not self._is_closing:
            self._hand_over()
            self._is_closing = True
            self._protocol.eof_received()
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._protocol.connection_lost(error)


class UnidentifiedMemoryConnection(UnidentifiedConnection):
    """A connection in memory that has not identified itself."""

    protocol: Any = None

    def __init__(self, address: str) -> None:
        with socket.socket() as nowhere:
            super().__init__(nowhere, address)

    def end(self) -> None:
        """End the connection."""
        self.protocol.carrier.abort()


class MemoryListener(Listener):
    """Listens in memory, for an endpoint, without TLS: the data does not leave the process."""

    _server: asyncio.AbstractServer | None = None

    async def open(self, scratch: Path, host: str, port: int, listen: str, is_coming: bool = False) -> int:
        """Start to listen, and return the port."""

        def made() -> Protocol:
            connection = UnidentifiedMemoryConnection(host)
            self._unidentified[connection] = None
            asyncio.get_running_loop().call_later(HELLO_SECONDS, self._expire, connection)
            protocol = connection.protocol = self._make_protocol(connection)
            assert isinstance(protocol, Protocol)
            return protocol

        self._server = server = await asyncio.get_running_loop().create_server(made, listen, port)
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Accept no more connections, and end those that have not identified themselves."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._unidentified):
            connection.end()


class MemorySocket:
    """Stand-in for the socket of a connection or a server: it has an address, but no descriptor."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        return self._address

    def fileno(self) -> int:
        """Return -1, like a socket that has been closed."""
        return -1


class MemoryServer(asyncio.AbstractServer):
    """A server that listens in memory."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, protocol_factory: Callable[[], Protocol], address: tuple[str, int]
    ) -> None:
        self._loop = loop
        self.make_protocol = protocol_factory
        self.sockets: tuple[MemorySocket, ...] = (MemorySocket(address),)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the server's event loop."""
        return self._loop

    def is_serving(self) -> bool:
        """Return whether the server accepts connections."""
        return bool(self.sockets)

    def close(self) -> None:
        """Accept no more connections."""
        self.sockets = ()

    async def start_serving(self) -> None:
        """Do nothing: the server is serving from the beginning."""

    async def serve_forever(self) -> None:
        """Wait to be cancelled."""
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Return at once: closing takes no simulated time."""
