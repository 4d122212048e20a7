"""The Python stacks of this process, told to its agent when it asks for them (``stacks.py`` of the agent)."""

import contextlib
import faulthandler
import os
import signal
import socket
import sys
import threading
import traceback

from .tracebacks import PROGRAM, is_of_script, with_cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType  # noqa: F401  (type comments)
    from typing import TextIO  # noqa: F401  (type comments)

MOST_CALLS = 100  # calls of one thread's stack that are shown
OURS = ("muster-stacks", "muster-stages", "muster-report")  # threads of Muster


def offer():
    # type: () -> None
    """Have Python stacks written to a file: of all threads when a socket is written to, of the main one on SIGUSR1.

    The first needs the interpreter's lock, and so is safe. The second is for a thread that is stuck in C code and keeps
    the lock; it shows one thread, as faulthandler could crash at other threads that end at that moment.
    """
    faulthandler.enable()
    scratch = os.environ.get("MUSTER_SCRATCH")
    if not scratch:
        return
    path = os.path.join(scratch, "stacks-{}".format(os.getpid()))
    file = open(path, "a")  # noqa: SIM115  it stays open
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    questions = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        with contextlib.suppress(OSError):  # left by a process that had this id, or by this one before an exec
            os.unlink(path + ".sock")
        questions.bind(path + ".sock")
    except OSError:  # ids are not unique where each rank has a namespace of its own: the script may do without
        questions.close()
        return
    answering = threading.Thread(target=_write_stacks, args=(questions, file), name="muster-stacks", daemon=True)
    try:
        answering.start()
    except RuntimeError:  # there is no room for another thread: the script may do without
        questions.close()


def _write_stacks(questions, file):
    # type: (socket.socket, TextIO) -> None
    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))  # signals are for the main thread
    main = threading.main_thread().ident
    while True:
        questions.recv(1)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)  # main thread first
        told = [
            _stack(names.get(ident, "Thread {:#x}".format(ident)), frame)
            for ident, frame in frames
            if names.get(ident) not in OURS
        ]
        with contextlib.suppress(OSError):  # the disk is full; the next request may find room
            file.write("".join(told))  # in one write, as the agent reads what there is
            file.flush()


def _stack(name, frame):
    # type: (str, FrameType) -> str
    """Return one thread's stack in the format of faulthandler: at most ``MOST_CALLS`` calls, the most recent first."""
    lines = ["{} (most recent call first):\n".format(name)]
    callers = _callers(frame)
    for caller, line in callers[:MOST_CALLS]:
        shown = '  File "{}", line {} in {}\n'.format(caller.f_code.co_filename, line, caller.f_code.co_name)
        lines.append(with_cells(shown))
    deeper = len(callers) - MOST_CALLS
    if deeper > 0:
        lines.append("  and {} more calls\n".format(deeper))
    return "".join(lines)


def _callers(frame):
    # type: (FrameType) -> list[tuple[FrameType, int]]
    """Return the calls that have led to a frame, without those of the runner or of the template it is a fork of."""
    callers = []
    for caller, line in traceback.walk_stack(frame):
        callers.append((caller, line))
        if caller.f_code.co_name == "<module>" and caller.f_code.co_filename == PROGRAM:
            break
    scripts = len(callers)
    while scripts and not is_of_script(callers[scripts - 1][0]):
        scripts -= 1
    return callers[: scripts or None]
