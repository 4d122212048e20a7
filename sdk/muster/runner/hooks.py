"""Changes to the interpreter that runs a script: how it ends, and what it tells of failed threads and exits."""

import contextlib
import ctypes
import gc
import io
import os
import stat
import sys
import threading

from muster.training import large_imports, progress

from . import exceptions
from .tracebacks import name_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  (type comments)


def refuse_debugger(*arguments, **options):
    # type: (*Any, **Any) -> Any
    """Raise RuntimeError in place of ``breakpoint()``, as there is no input for it, unless a debugger was chosen.

    pdb would meet the end of its input only one line later or, on a script's last line, in its own code.
    """
    if os.environ.get("PYTHONBREAKPOINT"):
        return sys.__breakpointhook__(*arguments, **options)
    raise RuntimeError("breakpoint() has no debugger here, since workers have no standard input")


def write_what_is_buffered():
    # type: () -> None
    """Flush the buffers of regular files that the script has left open.

    At the end of this interpreter the garbage collector may close a file before the buffers above it, depending on its
    runs before. An interpreter that runs the script as its main module clears that module instead. Other files are left
    alone, since writing to them may block forever. TensorFlow itself holds the default writer of summaries.
    """
    # Asked for as TensorFlow itself keeps it: its own functions would first look for devices, even without a writer.
    with contextlib.suppress(Exception):  # there is none, or TensorFlow is not imported
        sys.modules["tensorflow.python.ops.summary_ops_v2"]._summary_state.writer.flush()
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)  # those that write into others come first
    streams = [found for found in gc.get_objects() + large_imports.earlier_files() if type(found) in kinds]
    for stream in sorted(streams, key=lambda stream: kinds.index(type(stream))):
        with contextlib.suppress(Exception):  # it is closed, or its disk is full, which the interpreter may report
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                stream.flush()


def tell_of_threads():
    # type: () -> None
    """Have exceptions that end threads of the script reported to the session, as they end nothing but the thread."""
    if not hasattr(threading, "excepthook"):  # Python 3.7 and older
        return
    print_it = threading.excepthook

    def tell(failed):
        # type: (Any) -> None
        print_it(failed)
        if not issubclass(failed.exc_type, SystemExit):
            name = failed.thread.name if failed.thread else "unknown"
            progress.thread_failed(name, name_of(failed.exc_type), exceptions.message_of(failed.exc_value))

    threading.excepthook = tell


def tell_of_exits():
    # type: () -> None
    """Have ``os._exit`` report its call to the agent, as ``sys.exit`` does: a lost peer may be the reason for it.

    The last progress is sent, too. The process ends whatever interrupts that. The function is pickled by its name, as
    the original is.
    """
    leave = os._exit

    def tell_and_leave(status):
        # type: (int) -> None
        try:
            if os.getpid() == exceptions.OWN and isinstance(status, int):
                with contextlib.suppress(Exception):
                    if status & 0xFF:
                        exceptions.report(SystemExit(status))
                    progress.send_last_report()
        finally:  # also where a handler of a signal raises KeyboardInterrupt or SystemExit meanwhile
            leave(status)

    tell_and_leave.__module__, tell_and_leave.__name__, tell_and_leave.__qualname__ = "os", "_exit", "_exit"
    os._exit = tell_and_leave  # type: ignore[assignment]


def load_what_threads_end_with():
    # type: () -> None
    """Load the library with which the C library ends a thread that still runs when the interpreter does.

    It would be loaded only then, and the process aborted where the script has used up its descriptors.
    """
    with contextlib.suppress(OSError):  # a C library that does without
        ctypes.CDLL("libgcc_s.so.1")


def drop_blank_proxies():
    # type: () -> None
    """Drop empty proxy variables: gRPC takes one for a proxy without an address, and fails to connect."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        if not os.environ.get(name, "set"):
            del os.environ[name]


def flush_output():
    # type: () -> None
    """Flush standard output and error, and say on the latter where that fails."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a script may have set one to None
        try:
            stream.flush()
        except Exception as error:  # of whatever the script has put there
            with contextlib.suppress(Exception):  # the script has closed its descriptor, or the words raise, too
                os.write(2, "muster: {}\n".format(error).encode())
