"""A TLS transport for connections that the session has accepted.

The transport of asyncio keeps a buffer of 256 KiB for each connection, which would be most of the memory of a session
with thousands of workers. This one reads into a buffer that all connections share.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any

RECORD = 1 << 14  # most bytes that TLS hands over at once
AT_ONCE = 8  # records that are read before other connections have their turn
FREE_READS = 16  # reads without delay of an unidentified connection: a handshake and a hello take three or four
REST_SECONDS = 0.02  # delay after each later read: single bytes would cost the reader more than their sender

_buffer = memoryview(bytearray(RECORD))  # all are read on one thread, the background loop's


class TlsTransport(asyncio.Transport):
    """A connection with TLS.

    Args:
        connection: a nonblocking socket, which the transport owns from now on.
        context: the server's TLS context.
        make_protocol: makes the protocol that receives the bytes, once the handshake is done.
    """

    def __init__(
        self, connection: socket.socket, context: ssl.SSLContext, make_protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._tls: ssl.SSLSocket
        self._context = context
        self._make_protocol = make_protocol
        self._protocol: asyncio.Protocol | None = None
        self._on_readable = self._begin
        self._is_open: asyncio.Future[None] | None = None
        self._unsent = bytearray()
        self._is_waiting = False  # for room to send
        self._hears_nothing = False  # whether sending has failed, as the other side has hung up
        self._is_closing = False
        self._is_lost = False
        self._is_trusted = False
        self._reads = 0
        self._rest: asyncio.TimerHandle | None = None
        self._is_paused = False

    async def open(self) -> None:
        """Wait for the first byte, as TLS takes memory for each connection, and then do the handshake.

        Raises:
            OSError: the other side does not speak TLS, or has hung up. The connection is ended then, and also where the
                caller is cancelled.
        """
        self._is_open = self._loop.create_future()
        self._loop.add_reader(self._socket.fileno(), self._readable)
        try:
            await self._is_open
        finally:
            self._is_open = None
            if self._protocol is None:
                self.abort()

    def trust(self) -> None:
        """Read without delay from now on, since the other side has identified itself."""
        self._is_trusted = True
        if self._rest is not None:
            self._rest.cancel()
            self._end_rest()

    def pause_reading(self) -> None:
        """Read nothing until ``resume_reading``. Data waits in the kernels' buffers, and then the other side waits."""
        self._is_paused = True
        if not self._is_closing:
            self._loop.remove_reader(self._socket.fileno())

    def resume_reading(self) -> None:
        """Read again."""
        self._is_paused = False
        if not self._is_closing:
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 once it is closed."""
        return self._socket.fileno()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the socket for the name ``socket``, and ``default`` for all others."""
        return self._socket if name == "socket" else default

    def is_resting(self) -> bool:
        """Return whether reading is delayed, since the other side has sent too often without identifying itself."""
        return self._rest is not None

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""
        return len(self._unsent)

    def is_closing(self) -> bool:
        """Return whether the connection has been closed, or has ended."""
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes as soon as possible; drop them once the connection has ended."""
        if not self._is_closing and not self._hears_nothing:
            self._unsent += data
            if not self._is_waiting:
                self._send()

    def close(self) -> None:
        """End the connection once all waiting bytes have been sent."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.remove_reader(self._socket.fileno())
            if not self._unsent:
                self._finish()

    def abort(self) -> None:
        """End the connection at once."""
        self._lose(None)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        self._on_readable()
        if not self._is_trusted:
            self._reads += 1
            if self._reads > FREE_READS and not self._is_closing:
                self._loop.remove_reader(self._socket.fileno())
                self._rest = self._loop.call_later(REST_SECONDS, self._end_rest)

    def _end_rest(self) -> None:
        self._rest = None
        if not self._is_closing:
            self._loop.add_reader(self._socket.fileno(), self._readable)

    def _begin(self) -> None:
        # If wrapping fails, the descriptor is closed at once: the loop would go on watching its number, which the next
        # connection may get.
        self._loop.remove_reader(self._socket.fileno())
        try:
            if not self._socket.recv(1, socket.MSG_PEEK):
                raise ConnectionResetError("it has ended before it began")
            self._tls = self._context.wrap_socket(self._socket, server_side=True, do_handshake_on_connect=False)
        except OSError as error:
            self._lose(error)
            return
        self._socket = self._tls
        self._loop.add_reader(self._socket.fileno(), self._readable)
        self._on_readable = self._shake_hands
        self._shake_hands()

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._wait_to_send(None)
            return
        except ssl.SSLWantWriteError:
            self._wait_to_send(self._shake_hands)
            return
        except OSError as error:
            self._lose(error)
            return
        self._wait_to_send(None)
        self._on_readable = self._read
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self)
        if self._is_open is not None and not self._is_open.done():
            self._is_open.set_result(None)

    def _read(self) -> None:
        assert self._protocol is not None
        for _ in range(AT_ONCE):
            try:
                size: int = self._tls.read(RECORD, _buffer)  # type: ignore[assignment]  # as it has a buffer
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            except OSError as error:
                self._lose(error)
                return
            if not size:  # the other side has closed, so that waiting bytes would not reach it
                self._lose(None)
                return
            self._protocol.data_received(bytes(_buffer[:size]))
            if self._is_closing or self._is_paused or size < RECORD:  # likely all; else the loop calls again
                break
        if self._unsent and not self._is_waiting:
            self._send()

    # -- sending ------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        while self._unsent and not self._is_lost:
            try:
                # OpenSSL wants a repeated write to begin with the same bytes; it does, as data is only appended.
                sent = self._tls.write(bytes(self._unsent[:RECORD]))
            except ssl.SSLWantWriteError:
                self._wait_to_send(self._send)
                return
            except ssl.SSLWantReadError:  # it is tried again after the next read
                self._wait_to_send(None)
                return
            except OSError as error:
                self._stop_sending(error)
                return
            del self._unsent[:sent]
        self._wait_to_send(None)
        if self._is_closing:
            self._finish()

    def _stop_sending(self, error: Exception) -> None:
        """Handle that the other side has hung up. Its last bytes may be unread here; the end is handled after them."""
        self._unsent.clear()
        self._hears_nothing = True
        self._wait_to_send(None)
        is_broken = isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError)
        if self._is_closing or is_broken:  # nothing more is read, or can be
            self._lose(error)

    def _wait_to_send(self, then: Callable[[], None] | None) -> None:
        """Call ``then`` when there is room to send, until this is called with None."""
        if then is not None and not self._is_waiting:
            self._loop.add_writer(self._socket.fileno(), then)
        elif then is None and self._is_waiting:
            self._loop.remove_writer(self._socket.fileno())
        self._is_waiting = then is not None

    # -- the end ------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Send the TLS close notification, and end the connection."""
        if not self._is_lost:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()  # sends the notification, and does not wait for the other side's
            self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        """Handle the end of the connection, whichever side has ended it."""
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._unsent.clear()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._wait_to_send(None)
        self._loop.call_soon(self._end, error)

    def _end(self, error: Exception | None) -> None:
        self._socket.close()
        if self._protocol is not None:
            self._protocol.connection_lost(error)
        elif self._is_open is not None and not self._is_open.done():
            self._is_open.set_exception(error or ConnectionAbortedError())
