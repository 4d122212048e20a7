"""A shell in a worker of a run, that somebody uses in a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time

from tests.support import environment

SECONDS = 30.0  # in which the shell answers


def use_a_shell(run: str, worker: str) -> int:
    """Open a shell in a worker, use it, interrupt what runs in it, and leave it; return the command's exit status.

    Args:
        run: id of the run, as ``muster exec`` takes it.
        worker: name of the worker.
    """
    pid, terminal = pty.fork()
    if not pid:
        command = [sys.executable, "-m", "muster", "exec", run, worker]
        os.execve(sys.executable, command, environment(TERM="xterm", SHELL="/bin/sh"))
    said = b""

    def read_until(pattern: bytes) -> None:
        nonlocal said
        deadline = time.monotonic() + SECONDS
        while not re.search(pattern, said):
            assert time.monotonic() < deadline, said
            if select.select([terminal], [], [], 0.1)[0]:
                said += os.read(terminal, 4096)

    try:
        os.write(terminal, b"tty; stty size; echo $((20 + 3))\n")
        read_until(rb"/dev/pts/\d+\r\n\d+ \d+\r\n23\r\n")
        os.write(terminal, b"sh -c 'echo sleeps$((1 + 1)); exec sleep 64'\n")
        read_until(rb"sleeps2\r\n")
        os.write(terminal, b"\x03echo after$((1 + 1))\n")  # Ctrl-C is for what runs in the shell
        read_until(rb"after2\r\n")
        os.write(terminal, b"exit 5\n")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        os.close(terminal)
