"""Connections of a guard to its platform: a socket that it inherits, or the pipes of an ssh login."""

import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Union

    Source = Union[int, socket.socket]


class SocketChannel:
    """A channel over a socket.

    Attributes:
        reader, writer: what a loop waits for: to be readable, and to be writable.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.reader: "Source" = sock
        self.writer: "Source" = sock
        self._socket = sock

    def receive(self, size: int) -> bytes:
        """Return what has come; nothing at the end. Raises BlockingIOError where nothing has, or OSError."""
        return self._socket.recv(size)

    def send(self, data: "bytes | bytearray") -> int:
        """Send as much as goes, and return how much. Raises BlockingIOError where nothing goes, or OSError."""
        return self._socket.send(data)

    def close(self) -> None:
        """Close the channel."""
        self._socket.close()


class PipeChannel:
    """Two descriptors: one to read from, one to write to."""

    def __init__(self, reader: int, writer: int) -> None:
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        self.reader: "Source" = reader
        self.writer: "Source" = writer
        self._reader, self._writer = reader, writer

    def receive(self, size: int) -> bytes:
        """Return what has come; nothing at the end. Raises BlockingIOError where nothing has, or OSError."""
        return os.read(self._reader, size)

    def send(self, data: "bytes | bytearray") -> int:
        """Send as much as goes, and return how much. Raises BlockingIOError where nothing goes, or OSError."""
        return os.write(self._writer, data)

    def close(self) -> None:
        """Close both."""
        os.close(self._reader)
        os.close(self._writer)
