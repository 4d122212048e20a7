"""The local side of a stream to a worker: sends the bytes of a local descriptor, and writes those from the worker."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Mapping

from muster.agent import frames, wire
from muster.errors import RunUnreachable

PIECE = 1 << 15  # bytes that are read at once
AT_ONCE = 4096  # bytes that any writable descriptor takes without blocking: PIPE_BUF
POLL_SECONDS = 0.25  # the longest delay before a terminal's new size is sent
READABLE = select.POLLIN | select.POLLHUP | select.POLLERR
WRITABLE = select.POLLOUT | select.POLLHUP | select.POLLERR


class Pump:
    """Copies a stream's bytes to and from local descriptors.

    It waits for all of them at once, so that neither direction can hold up the other.

    Args:
        connection: the connection to the run's control socket on which the stream has been opened.
        source: descriptor with the bytes for the worker; None for none.
        sinks: descriptors to which the worker's bytes are written, by channel.
        on_end: called with each channel that has ended.
    """

    def __init__(
        self,
        connection: socket.socket,
        source: int | None,
        sinks: Mapping[int, int],
        on_end: Callable[[int], object] = lambda channel: None,
    ) -> None:
        self._connection = connection
        self._connection.setblocking(False)
        self._source = source
        self._sinks = dict(sinks)
        self._on_end = on_end
        self._decoder = frames.Decoder()
        self._unsent = bytearray()
        self._unwritten: dict[int, bytearray] = {channel: bytearray() for channel in sinks}
        self._owed = 0
        self._ended: set[int] = set()
        self._credit = wire.WINDOW
        self._closed: wire.Closed | None = None
        self._moved_at = time.monotonic()
        self._is_given_up = False
        if source is None:
            self._send(wire.Eof(1))

    def resize(self, rows: int, columns: int) -> None:
        """Tell the worker the terminal's new size."""
        self._send(wire.Resize(1, rows, columns))

    def is_left(self, seconds: float) -> bool:
        """Return whether the source has ended, and nothing has come from the worker for that many seconds since."""
        return self._source is None and time.monotonic() - self._moved_at > seconds

    def give_up(self) -> None:
        """Have ``run`` end the stream soon; called by another thread."""
        self._is_given_up = True

    def run(self) -> wire.Closed:
        """Copy bytes until the stream has ended, and return the message that says how it ended.

        Raises:
            RunUnreachable: the run, or its session, has ended before the stream.
            BrokenPipeError: the stream was given up.
            OSError: a sink cannot be written to.
        """
        with contextlib.closing(self._connection):
            while self._closed is None or any(self._unwritten.values()):
                ready = dict(self._poll())
                if self._is_given_up:
                    raise BrokenPipeError
                number = self._connection.fileno()
                if self._closed is None and ready.get(number, 0) & select.POLLOUT and self._unsent:
                    self._transmit()
                if self._closed is None and ready.get(number, 0) & READABLE:
                    self._receive()
                for channel, sink in self._sinks.items():
                    if self._unwritten[channel] and ready.get(sink, 0) & WRITABLE:
                        self._write(channel, sink)
                if self._source is not None and ready.get(self._source, 0) & READABLE and self._wants_input:
                    self._read(self._source)
            return self._closed

    @property
    def _wants_input(self) -> bool:
        return self._source is not None and not self._unsent and self._credit > wire.OVERHEAD

    def _poll(self) -> list[tuple[int, int]]:
        wanted: dict[int, int] = {}
        if self._closed is None:
            wanted[self._connection.fileno()] = select.POLLIN | (select.POLLOUT if self._unsent else 0)
            if self._wants_input and self._source is not None:
                wanted[self._source] = select.POLLIN
        for channel, sink in self._sinks.items():
            if self._unwritten[channel]:
                wanted[sink] = wanted.get(sink, 0) | select.POLLOUT
        poll = select.poll()
        for number, events in wanted.items():
            poll.register(number, events)
        return poll.poll(POLL_SECONDS * 1000)

    def _read(self, source: int) -> None:
        try:
            data = os.read(source, min(PIECE, self._credit - wire.OVERHEAD))
        except BlockingIOError:
            return
        except OSError:  # a terminal, or a peer, that is gone
            data = b""
        if data:
            self._credit -= wire.cost(data)
            self._send(wire.Data(1, 0, data))
        else:
            self._source = None
            self._moved_at = time.monotonic()
            self._send(wire.Eof(1))

    def _send(self, message: tuple[object, ...]) -> None:
        self._unsent += wire.encode(message)

    def _transmit(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                sent = self._connection.send(self._unsent)
            except BrokenPipeError:  # the last messages from the other side can still be read
                sent = len(self._unsent)
            del self._unsent[:sent]

    def _receive(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise RunUnreachable("The run has ended, or its session has.")
        self._moved_at = time.monotonic()
        for fields in self._decoder.feed(data):
            self._take(wire.from_agent(fields))

    def _take(self, message: object) -> None:
        if isinstance(message, wire.Data) and message.channel in self._sinks:
            self._unwritten[message.channel] += message.payload
            self._owed += wire.cost(message.payload)
        elif isinstance(message, wire.Credit):
            self._credit += message.size
        elif isinstance(message, wire.Eof):
            self._ended.add(message.channel)
            if not self._unwritten.get(message.channel):
                self._on_end(message.channel)
        elif isinstance(message, wire.Closed):
            self._closed = message

    def _write(self, channel: int, sink: int) -> None:
        waiting = self._unwritten[channel]
        with contextlib.suppress(BlockingIOError):
            written = os.write(sink, waiting[:AT_ONCE])
            self._moved_at = time.monotonic()
            del waiting[:written]
        if not any(self._unwritten.values()) and self._owed and self._closed is None:
            self._send(wire.Credit(1, self._owed))
            self._owed = 0
        if not waiting and channel in self._ended:
            self._on_end(channel)
