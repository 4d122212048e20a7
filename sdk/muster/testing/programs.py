"""Processes in memory: a program is an object that a test tells when to end."""

from __future__ import annotations

import asyncio
import signal
from typing import Any


class Program:
    """Simulated process of a :class:`~muster.testing.loop.SimulatedLoop`.

    Args:
        ignores_sigterm: whether it goes on after SIGTERM, or any other signal than SIGKILL.

    Attributes:
        argv: its command line, once it has been started.
        lines: the lines written to its standard input.
    """

    def __init__(self, *, ignores_sigterm: bool = False) -> None:
        self.argv: tuple[str, ...] = ()
        self.lines: list[bytes] = []
        self._ignores_sigterm = ignores_sigterm
        self._process: MemoryProcess | None = None

    @property
    def is_running(self) -> bool:
        """True if it has been started and has not ended."""
        return self._process is not None and self._process.get_returncode() is None

    def exit(self, code: int = 0) -> None:
        """End with this exit status; minus a signal's number stands for an end by that signal."""
        if self._process is not None:
            self._process.end(code)

    def started(self, process: MemoryProcess) -> None:
        """Called when the program is started, with its process."""
        self._process = process

    def on_line(self, line: bytes) -> None:
        """Called with each line that is written to the program's input."""
        self.lines.append(line)

    def on_signal(self, number: int) -> None:
        """Called with the number of each signal that is sent to the program."""
        if number == signal.SIGKILL or not self._ignores_sigterm:
            self.exit(-number)


class MemoryProcess(asyncio.SubprocessTransport):
    """The transport of a simulated program, as ``asyncio`` has one for each process that it starts."""

    def __init__(self, loop: asyncio.AbstractEventLoop, protocol: asyncio.SubprocessProtocol, program: Program) -> None:
        super().__init__()
        self._loop = loop
        self._protocol = protocol
        self._program = program
        self._returncode: int | None = None
        self._waiters: list[asyncio.Future[int]] = []
        self._input = _Input(program)
        program.started(self)
        protocol.connection_made(self)

    def get_pid(self) -> int:
        """Return a number that no process has."""
        return 1 << 30

    def get_returncode(self) -> int | None:
        """Return its exit status; None while it runs."""
        return self._returncode

    def get_pipe_transport(self, fd: int) -> asyncio.BaseTransport | None:
        """Return the transport of the program's input; there is none for its output."""
        return self._input if fd == 0 else None

    def send_signal(self, signal: int) -> None:
        """Send a signal to the program, unless it has ended."""
        if self._returncode is not None:
            raise ProcessLookupError
        self._loop.call_soon(self._program.on_signal, signal)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def end(self, code: int) -> None:
        """Record the end of the program, with its exit status."""
        if self._returncode is None:
            self._returncode = code
            self._input.close()
            self._protocol.process_exited()
            for waiter in self._waiters:
                if not waiter.done():
                    waiter.set_result(code)

    async def _wait(self) -> int:
        """Wait for its end, on behalf of ``asyncio.subprocess.Process.wait``; return its exit status."""
        if self._returncode is not None:
            return self._returncode
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._waiters.append(waiter)
        return await waiter


class _Input(asyncio.WriteTransport):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        self._rest = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        *lines, self._rest = (self._rest + bytes(data)).split(b"\n")
        for line in lines:
            self._program.on_line(line)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True
