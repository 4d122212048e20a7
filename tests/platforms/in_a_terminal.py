"""Programs that somebody uses in a terminal, such as a shell in a worker of a run."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from tests.support import environment

SECONDS = 30.0  # in which a program answers


class Terminal:
    """A program in a terminal of its own; the block of ``with`` ends with it.

    Attributes:
        said: what it has printed so far, as the terminal was sent it.
    """

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self.said = ""
        self._seen = 0
        self._pid, self._terminal = pty.fork()
        if not self._pid:
            os.execvpe(command[0], [*command], variables)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pid:
            os.kill(self._pid, signal.SIGHUP)
            self.ended()
        os.close(self._terminal)

    def type(self, line: str) -> None:
        """Type a line."""
        os.write(self._terminal, f"{line}\n".encode())

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.write(self._terminal, b"\x03")

    def read_until(self, pattern: str, seconds: float = SECONDS) -> None:
        """Read until the program has printed this since the last call."""
        deadline = time.monotonic() + seconds
        while not (found := re.compile(pattern).search(self.said, self._seen)):
            assert time.monotonic() < deadline, self.said
            if select.select([self._terminal], [], [], 0.1)[0]:
                self.said += os.read(self._terminal, 4096).decode(errors="replace")
        self._seen = found.end()

    def ended(self) -> int:
        """Wait for the program's end, and return its exit status."""
        with contextlib.suppress(OSError):  # its terminal has gone with it
            while os.read(self._terminal, 4096):
                pass
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def use_a_shell(run: str, worker: str) -> int:
    """Open a shell in a worker, use it, interrupt what runs in it, and leave it; return the command's exit status.

    Args:
        run: id of the run, as ``muster exec`` takes it.
        worker: name of the worker.
    """
    command = [sys.executable, "-m", "muster", "exec", run, worker]
    with Terminal(command, environment(TERM="xterm", SHELL="/bin/sh")) as terminal:
        terminal.type("tty; stty size; echo $((20 + 3))")
        terminal.read_until(r"/dev/pts/\d+\r\n\d+ \d+\r\n23\r\n")
        terminal.type("sh -c 'echo sleeps$((1 + 1)); exec sleep 64'")
        terminal.read_until(r"sleeps2\r\n")
        terminal.interrupt()  # which is for what runs in the shell
        terminal.type("echo after$((1 + 1))")
        terminal.read_until(r"after2\r\n")
        terminal.type("exit 5")
        return terminal.ended()
