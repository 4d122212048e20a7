"""The Python stacks of a worker's processes, also of those that are stuck.

A process started by :mod:`muster.runner` has a file ``stacks-<pid>`` in the scratch folder and a socket beside
it. On a message to the socket it appends the stacks of all its threads to the file; if it cannot, because a thread is
stuck with the interpreter's lock, SIGUSR1 makes it append that of the main thread. The signal would kill any other
process. So it is sent only if the socket is still open, which it is not once the process has become another program by
exec, and only if the kernel says that the process catches the signal. Other programs have no such file: of a rank that
has no interpreter, its agent says what it runs.
"""

import contextlib
import os
import signal
import socket

from . import linux
from .loop import Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

    OnStacks = Callable[[list[int], str], object]

PREFIX = "stacks-"
DELAY = 0.5  # seconds that a process gets to write, each way
CHECKS = 5  # checks of the file in that time, as most processes write at once
# Bytes of one process's stacks: as many as fit into a message, less a note about what is cut. Several messages are not
# worth it: of a thread at most a hundred calls are shown, some ten kilobytes, and the main thread comes first.
LARGEST = (1 << 16) - 200
REPLACED = "Process {} has become another program, which tells no Python stacks.\n"
OTHER_PROGRAM = "Process {} runs {}, which tells no Python stacks, or not yet.\n"
SILENT = "Process {} does not answer: it is stuck, and does not catch the signal that would have it tell its stacks.\n"


def ask_for_stacks(loop: Loop, scratch: str, on_stacks: "OnStacks") -> "set[int]":
    """Ask all interpreters for their stacks, and call ``on_stacks`` for each a moment later.

    Args:
        loop: the agent's event loop.
        scratch: the worker's scratch folder.
        on_stacks: called with the process id of an interpreter, in a list, and the text.

    Returns:
        The process ids of those that are asked.
    """
    own = set(linux.descendants(os.getpid(), linux.snapshot()))
    try:
        names = os.listdir(scratch)
    except OSError:  # a script may have removed the folder, and with it all sockets
        names = []
    numbers = [name[len(PREFIX) :] for name in names if name.startswith(PREFIX)]
    interpreters = own.intersection(int(number) for number in numbers if number.isdecimal())
    for pid in interpreters:
        _ask(loop, pid, os.path.join(scratch, "{}{}".format(PREFIX, pid)), on_stacks)
    return interpreters


def without_stacks(pid: int) -> "tuple[list[int], str]":
    """Return a process that is not asked, with its descendants, and what is said of it in place of stacks."""
    return [pid] + linux.descendants(pid, linux.snapshot()), OTHER_PROGRAM.format(pid, linux.name_of(pid))


def _ask(loop: Loop, pid: int, path: str, on_stacks: "OnStacks") -> None:
    before = _size(path)

    def check(checks_left: int) -> None:
        if _size(path) > before:
            on_stacks([pid], _read(path, before))
        elif checks_left > 1:
            loop.call_later(DELAY / CHECKS, lambda: check(checks_left - 1))
        elif not _reaches(path):  # it has become another program since, which may catch the signal as well
            on_stacks([pid], REPLACED.format(pid))
        elif linux.catches(pid, signal.SIGUSR1):
            linux.kill(pid, signal.SIGUSR1)
            loop.call_later(DELAY, lambda: on_stacks([pid], _read(path, before) or SILENT.format(pid)))
        else:
            on_stacks([pid], SILENT.format(pid))

    if _reaches(path, b"?"):
        loop.call_later(DELAY / CHECKS, lambda: check(CHECKS))
    else:
        on_stacks([pid], REPLACED.format(pid))


def _reaches(path: str, question: bytes = b"") -> bool:
    """Return whether the socket beside a file of stacks is still open, after sending a question there, if any."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.connect(path + ".sock")
            if question:
                with contextlib.suppress(BlockingIOError):  # it has not even read earlier questions
                    connection.send(question)
    except OSError:
        return False
    return True


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def _read(path: str, start: int) -> str:
    """Return the file's contents from ``start`` on, cut at the end, as the main thread's stack comes first."""
    try:
        with open(path, "rb") as file:
            left_out = max(0, os.fstat(file.fileno()).st_size - start - LARGEST)
            file.seek(start)
            text = file.read(LARGEST).decode("utf-8", "replace")
    except OSError as error:
        return "The stacks cannot be read: {}.\n".format(error)
    return "{}\n[the last {} bytes are left out]\n".format(text, left_out) if left_out else text
