"""Streams between the session and this worker: a command that is run here, or a connection to a port of the worker.

Each side grants the other credit to send (``Credit``), so that memory stays bounded whichever side is slow. A command
that is run here ends with its stream, and so do its descendants.
"""

import contextlib
import os
import socket

from . import wire
from .loop import Loop
from .processes import MARK, Children, cannot_start, spawn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

MOST_STREAMS = 32  # at a time
PIECE = 1 << 15  # bytes that are read at once
GRACE = 1.0  # seconds that a command gets for ending itself
CONNECT_SECONDS = 10.0
LOOPBACK = "127.0.0.1"
SHELLS = ("/bin/bash", "/bin/sh")
INPUT, OUTPUT, ERRORS = 0, 1, 2
NOT_FOUND, CANNOT_START = 127, 126  # exit statuses, as shells use them


class Streams:
    """All streams of one worker.

    Args:
        loop: the agent's event loop.
        processes: the agent's processes.
        send: sends a message to the session.
        address: returns the worker's own address.
    """

    def __init__(
        self,
        loop: Loop,
        processes: Children,
        send: "Callable[[tuple[Any, ...]], object]",
        address: "Callable[[], str]",
    ) -> None:
        self._loop = loop
        self._processes = processes
        self._send = send
        self._address = address
        self._streams: "dict[int, Stream]" = {}
        self._dialling: "set[int]" = set()

    def execute(self, order: wire.Execute, env: "dict[str, str]", cwd: str) -> None:
        """Run a command, or a shell if the command is empty. ``env`` is its whole environment."""
        if self._is_refused(order.stream):
            return
        if not order.argv:  # a shell's history would be a file in the user's home that stays there
            env = dict({"HISTFILE": ""}, **env)
        argv = list(order.argv) or [_shell(env)]
        try:
            self._streams[order.stream] = CommandStream(self, order, argv, env, cwd)
        except OSError as error:
            code = NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_START
            self._send(wire.Closed(order.stream, code, text=cannot_start(argv, error)))
        else:
            self._send(wire.Opened(order.stream))

    def dial(self, order: wire.Dial) -> None:
        """Connect to a port of the order's host, or of this worker: at its address or the loopback interface."""
        if not self._is_refused(order.stream):
            self._dialling.add(order.stream)
            host = order.host or self._address()
            addresses = [(socket.AF_INET6 if ":" in host else socket.AF_INET, host)]
            if order.host is None:
                addresses += [(socket.AF_INET, LOOPBACK), (socket.AF_INET6, "::1")]
            self._try(order, addresses, "")

    def data(self, data: wire.Data) -> None:
        """Write data from the session to a command or a connection."""
        stream = self._streams.get(data.stream)
        if stream is not None:
            stream.write(data.payload)

    def credit(self, credit: wire.Credit) -> None:
        """Add the credit that the session grants, and go on sending."""
        stream = self._streams.get(credit.stream)
        if stream is not None:
            stream.may_send(credit.size)

    def eof(self, eof: wire.Eof) -> None:
        """Close the input of a command or a connection, once everything is written."""
        stream = self._streams.get(eof.stream)
        if stream is not None:
            stream.write_end()

    def resize(self, resize: wire.Resize) -> None:
        """Set the size of a command's terminal."""
        stream = self._streams.get(resize.stream)
        if isinstance(stream, CommandStream):
            stream.resize(resize.rows, resize.columns)

    def end(self, close: wire.Close) -> None:
        """End a stream, with its command or connection."""
        self._dialling.discard(close.stream)
        stream = self._streams.pop(close.stream, None)
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """End all streams."""
        for number in list(self._streams):
            self.end(wire.Close(number))

    def _is_refused(self, number: int) -> bool:
        count = len(self._streams) + len(self._dialling)
        if number in self._streams or number in self._dialling or count >= MOST_STREAMS:
            text = "this worker has {} streams already".format(count)
            self._send(wire.Closed(number, text=text))
            return True
        return False

    def _try(self, order: wire.Dial, addresses: "list[tuple[Any, str]]", failure_before: str) -> None:
        """Connect to the first address that accepts the connection, without blocking."""
        if not addresses:
            self._dialling.discard(order.stream)
            what = "" if order.host else "nothing on this worker takes connections on port {}: ".format(order.port)
            self._send(wire.Closed(order.stream, text=what + failure_before.lower()))
            return
        family, host = addresses[0]
        try:
            connection = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # a kernel without IPv6, or there are no descriptors left
            self._try(order, addresses[1:], failure_before or error.strerror or str(error))
            return
        connection.setblocking(False)
        timer = self._loop.call_later(CONNECT_SECONDS, lambda: finish(os.strerror(110)))

        def finish(failure: str = "") -> None:
            timer.cancel()
            self._loop.forget(connection)
            failure = failure or _failure_of(connection)
            if order.stream not in self._dialling:  # the stream has been closed meanwhile
                connection.close()
            elif not failure:
                self._dialling.discard(order.stream)
                self._streams[order.stream] = Dialled(self, order.stream, connection)
                source = connection.getsockname()[1] if host == LOOPBACK else None
                self._send(wire.Opened(order.stream, source))
            else:
                connection.close()
                self._try(order, addresses[1:], failure)

        try:
            connection.connect((host, order.port))
        except BlockingIOError:
            self._loop.on_writable(connection, finish)
        except OSError as error:
            finish(error.strerror or str(error))
        else:
            finish()


class Stream:
    """One stream: it writes data from the session into its sink, and sends what it reads from its sources."""

    def __init__(self, streams: Streams, number: int) -> None:
        self._number = number
        self._loop = streams._loop
        self._send = streams._send
        self._forget = streams._streams.pop
        self._credit = wire.WINDOW  # bytes that may still be sent to the session
        self._sources: "dict[int, int]" = {}  # channels, by open descriptor
        self._sink = -1
        self._unwritten = bytearray()
        self._owed = 0  # credit to be granted once the received data is written
        self._has_end = False
        self._is_closed = False

    def may_send(self, credit: int) -> None:
        """Add credit that the session has granted, and go on sending."""
        was_waiting = self._credit <= wire.OVERHEAD
        self._credit += credit
        if was_waiting and self._credit > wire.OVERHEAD:
            for source in list(self._sources):
                self._watch(source)

    def write(self, data: bytes) -> None:
        """Write data as soon as the sink accepts it."""
        self._owed += wire.cost(data)
        if self._owed > wire.WINDOW:
            self.end(text="more came than could be taken")
        elif self._sink < 0 or self._has_end:  # the sink is closed, and the data dropped
            self._give_credit()
        else:
            self._unwritten += data
            self._write_on()

    def write_end(self) -> None:
        """Close the sink once everything is written."""
        self._has_end = True
        if not self._unwritten:
            self._close_sink()

    def close(self) -> None:
        """Close everything."""
        self._is_closed = True
        self._unwritten.clear()
        for source in list(self._sources):
            self._close_source(source)
        self._close_sink()

    def end(self, exit_code: "int | None" = None, signal: "int | None" = None, text: str = "") -> None:
        """Close everything, and tell the session how the stream has ended."""
        if not self._is_closed:
            self._forget(self._number, None)
            self.close()
            self._send(wire.Closed(self._number, exit_code, signal, text))

    # What differs

    def sources_ended(self) -> None:
        """Handle the end of all sources."""

    def _close_sink(self) -> None:
        raise NotImplementedError

    def _close_source(self, source: int) -> None:
        raise NotImplementedError

    # Reading and writing

    def _watch(self, source: int) -> None:
        self._loop.on_readable(source, lambda: self._read(source))

    def _read(self, source: int) -> None:
        room = self._credit - wire.OVERHEAD
        if room <= 0:
            self._pause(source)
            return
        try:
            data = os.read(source, min(PIECE, room))
        except BlockingIOError:
            return
        except OSError:  # of a terminal: all of its processes have ended
            data = b""
        if data:
            self._credit -= wire.cost(data)
            self._send(wire.Data(self._number, self._sources[source], data))
            return
        channel = self._sources[source]
        self._close_source(source)
        self._send(wire.Eof(self._number, channel))
        if not self._sources:
            self.sources_ended()

    def _pause(self, source: int) -> None:
        """Stop reading until there is credit."""
        self._loop.on_readable(source, None)

    def _write_on(self) -> None:
        try:
            while self._unwritten:
                written = os.write(self._sink, self._unwritten[:PIECE])
                del self._unwritten[:written]
        except BlockingIOError:
            self._loop.on_writable(self._sink, self._write_on)
            return
        except OSError:  # the other end is closed
            self._unwritten.clear()
            self._has_end = True
        self._loop.on_writable(self._sink, None)
        self._give_credit()
        if self._has_end:
            self._close_sink()

    def _give_credit(self) -> None:
        if self._owed:
            self._send(wire.Credit(self._number, self._owed))
            self._owed = 0


class CommandStream(Stream):
    """The stream of a command that runs with pipes or a terminal. Raises OSError where it cannot be started."""

    def __init__(
        self, streams: Streams, order: wire.Execute, argv: "list[str]", env: "dict[str, str]", cwd: str
    ) -> None:
        super().__init__(streams, order.stream)
        self._processes = streams._processes
        self._mark = "stream-{}".format(order.stream)
        self._ended: "tuple[int | None, int | None] | None" = None
        env = dict(env, **{MARK: self._mark})
        opened: "list[int]" = []
        try:
            if order.rows:
                terminal, inner = os.openpty()
                opened += [terminal, inner]
                ends = [inner, inner, inner]
                self._sink, self._sources = terminal, {terminal: OUTPUT}
                self.resize(order.rows, order.columns)
            else:
                for _ in range(3):
                    opened += os.pipe()
                ends = [opened[0], opened[3], opened[5]]
                self._sink, self._sources = opened[1], {opened[2]: OUTPUT, opened[4]: ERRORS}
            self._pid = spawn(argv, env, cwd, ends[1], ends[2], ends[0], has_terminal=bool(order.rows))
        except OSError:
            for descriptor in opened:
                os.close(descriptor)
            raise
        for end in set(ends):
            os.close(end)
        self._processes.marks.add(self._mark)
        self._processes.expect_end(self._pid, self._process_ended)
        for descriptor in [self._sink, *self._sources]:
            os.set_blocking(descriptor, False)
        for source in self._sources:
            self._watch(source)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the command's terminal."""
        import fcntl
        import struct
        import termios

        if self._sink >= 0 and rows:
            with contextlib.suppress(OSError):  # it is not a terminal, or has ended
                fcntl.ioctl(self._sink, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def close(self) -> None:
        """Close everything, and end the command."""
        super().close()
        self._processes.marks.discard(self._mark)
        if self._ended is None:
            self._processes.hang_up(self._pid)
            self._loop.call_later(GRACE, self._kill)

    def sources_ended(self) -> None:
        """End the stream, if the command has ended."""
        if self._ended is not None:
            self.end(*self._ended)

    def _kill(self) -> None:
        if self._ended is None:
            self._processes.kill_tree(self._pid)

    def _process_ended(self, status: int) -> None:
        was_signalled = os.WIFSIGNALED(status)
        self._ended = (None, os.WTERMSIG(status)) if was_signalled else (os.WEXITSTATUS(status), None)
        self._processes.marks.discard(self._mark)
        self._processes.kill_leftovers()  # they could keep its output open
        if not self._sources:
            self.end(*self._ended)

    def _close_sink(self) -> None:
        sink, self._sink = self._sink, -1
        if sink < 0:
            return
        if sink in self._sources:  # a terminal: it stays open for reading
            with contextlib.suppress(OSError):
                os.write(sink, b"\x04")  # Ctrl-D, as a user would end the input
        else:
            self._loop.forget(sink)
            os.close(sink)

    def _close_source(self, source: int) -> None:
        del self._sources[source]
        self._loop.forget(source)
        os.close(source)
        if source == self._sink:
            self._sink = -1


class Dialled(Stream):
    """A connection to a port."""

    def __init__(self, streams: Streams, number: int, connection: socket.socket) -> None:
        super().__init__(streams, number)
        self._connection = connection
        self._sink = connection.fileno()
        self._sources = {self._sink: OUTPUT}
        self._watch(self._sink)

    def sources_ended(self) -> None:
        """End the stream, if the other direction has ended, too."""
        if self._sink < 0:
            self.end()

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        self._sink = -1
        self._loop.forget(self._connection)
        self._connection.close()

    def _close_sink(self) -> None:
        self._sink = -1
        with contextlib.suppress(OSError):  # the other end has gone
            self._connection.shutdown(socket.SHUT_WR)
        if not self._sources:
            self.end()

    def _close_source(self, source: int) -> None:
        self._sources.clear()
        self._loop.on_readable(self._connection, None)


def _shell(env: "dict[str, str]") -> str:
    return next(filter(os.path.exists, (env.get("SHELL", ""),) + SHELLS), SHELLS[-1])


def _failure_of(connection: socket.socket) -> str:
    number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return os.strerror(number) if number else ""
