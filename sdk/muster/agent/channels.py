"""Connections of a guard to its platform: a socket that it inherits, or the pipes of an ssh login."""

import os
import select
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Source = Union[int, socket.socket]


class SocketChannel:
    """A channel over a socket.

    Attributes:
        reader, writer: the sources that an event loop watches until they are readable or writable.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.reader: "Source" = sock
        self.writer: "Source" = sock
        self._socket = sock

    def receive(self, size: int) -> bytes:
        """Return received bytes, empty at the end. Raises BlockingIOError if none have arrived, or OSError."""
        return self._socket.recv(size)

    def send(self, data: "bytes | bytearray") -> int:
        """Send what can be sent now, and return how many bytes. Raises BlockingIOError if none can, or OSError."""
        return self._socket.send(data)

    def close(self) -> None:
        """Close the channel."""
        self._socket.close()


class PipeChannel:
    """A channel over two descriptors: one to read from, one to write to."""

    def __init__(self, reader: int, writer: int) -> None:
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self.reader: "Source" = reader
        self.writer: "Source" = writer
        self._reader, self._writer = reader, writer

    def receive(self, size: int) -> bytes:
        """Return received bytes, empty at the end. Raises BlockingIOError if none have arrived, or OSError."""
        return os.read(self._reader, size)

    def send(self, data: "bytes | bytearray") -> int:
        """Send what can be sent now, and return how many bytes. Raises BlockingIOError if none can, or OSError."""
        return os.write(self._writer, data)

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self._reader)
        os.close(self._writer)

    def is_cut(self, seconds: float) -> bool:
        """Return whether nobody could read what is sent, or will within some seconds: whoever did has ended."""
        looking = select.poll()
        looking.register(self._writer, 0)  # errors are told of in any case
        return bool(looking.poll(1000 * seconds))
