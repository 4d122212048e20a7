"""Starts the user's script in the user's interpreter, and reports an exception to the agent when it is raised.

    runner.py program FILE [ARGUMENT...]      the file as __main__
    runner.py module NAME [ARGUMENT...]       the module as __main__
    runner.py task FILE|NAME [ARGUMENT...]    its run(cluster, server, task_index), beside a TensorFlow server
    runner.py function FILE [ARGUMENT...]     a function pickled by cloudpickle
    runner.py serve                           a TensorFlow server and nothing else

TF_CONFIG has the cluster that a server belongs to. Standard library only and Python 3.6 syntax; this file is copied
beside muster.training, through which it reports the stages of the process, and imports nothing else of Muster.
"""

import atexit
import binascii
import contextlib
import faulthandler
import gc
import importlib
import importlib.util
import io
import json
import linecache
import os
import re
import runpy
import signal
import socket
import stat
import sys
import threading
import time
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType  # noqa: F401  (type comments)
    from typing import Any, TextIO  # noqa: F401  (type comments)

KINDS = "biufcSUMm"  # of NumPy arrays: numbers, texts, bytes and times
BROUGHT_BY_OTHERS = 2  # in the ``isbuiltin`` of a NumPy dtype
LONGEST_NUMBER = 10000  # bits of an integer that every Python reads from JSON
MOST_CALLS = 100  # calls of one thread's stack that are shown
NOT_THE_SCRIPTS = (__file__, runpy.__file__, "<frozen runpy>")  # files whose frames do not belong to the script
LARGE_IMPORTS = "muster.training.large_imports"
OURS = ("muster-stacks", "muster-stages", "muster-report")  # threads of Muster
LONGEST_MESSAGE = 1000  # characters of an exception's message that are reported
HEADINGS = (  # patterns of text that TensorFlow and Keras put before the actual message
    r"\AException encountered when calling .*\.\n+(?:\x1b\[\d*m)*(?=[^\x1b\s])",
    r"\AGraph execution error:\s*|Detected at node .* defined at \(most recent call last\):\n"  # of each node
    r"(?:[ \t].*\n|\n|Node: .*\n|<stack traces unavailable>\n)*",
    r"\A\d+ root error\(s\) found\.\s*\(0\) [A-Z][A-Za-z_ ]*: *",
    r"\A\{\{function_node .*?\}\} *",
)
OF_PACKAGES = r'  File "(?:[^"\n]*/site-packages/|<frozen |{})[^\n]*\n\n'


def main(argv):
    # type: (list[str]) -> None
    """Run the script, function or server that the command line names; see above."""
    mode, arguments = argv[0], argv[1:]
    atexit.register(write_what_is_buffered)  # first, and so called after all that the script registers
    _offer_stacks()
    sys.breakpointhook = refuse_debugger
    _drop_blank_proxies()
    _tell_of_exits()
    with contextlib.suppress(ImportError):  # this file runs without the one beside it as well
        importlib.import_module(LARGE_IMPORTS).install()
    progress = _watched()
    if progress:
        _watch_threads(progress)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")  # at 0, TensorFlow logs a line for every step of a TF1 session
    try:
        if mode == "serve":
            server = start_server()
            if progress:
                progress.serves()
            server.join()
        else:
            RUN[mode](arguments[0], arguments)
            if progress:
                progress.script_ended()
            if os.environ.get("MUSTER_SERVES"):  # the server that the script made lives as long as the interpreter
                _wait_for_other_tasks()
    except SystemExit as error:
        if error.code:  # reported at once, as the interpreter may end much later
            _report_exception(error)
        raise
    except KeyboardInterrupt as error:  # the interpreter prints it, and then ends itself by the signal
        _leave_out_own_frames(error)
        raise
    except BaseException as error:
        _report_exception(error)
        _print_exception(error)
        _flush()
        sys.exit(1)


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
    alone, since writing to them may block forever.
    """
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)  # those that write into others come first
    earlier = getattr(sys.modules.get(LARGE_IMPORTS), "earlier_files", list)()  # type: list[Any]
    streams = [found for found in gc.get_objects() + earlier if type(found) in kinds]
    for stream in sorted(streams, key=lambda stream: kinds.index(type(stream))):
        with contextlib.suppress(Exception):  # it is closed, or its disk is full, which the interpreter may report
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                stream.flush()


def _watched():
    # type: () -> Any
    """Start to report the stages of this process; return the module that does it, or None where it is missing."""
    try:
        progress = importlib.import_module("muster.training.progress")  # the copy beside this file
    except ImportError:  # this file runs without it as well
        return None
    progress.watch_stages()
    return progress


def _watch_threads(progress):
    # type: (Any) -> None
    """Have exceptions that end threads of the script reported to the session, as they end nothing but the thread."""
    if not hasattr(threading, "excepthook"):  # Python 3.7 and older
        return
    print_it = threading.excepthook

    def tell(failed):
        # type: (Any) -> None
        print_it(failed)
        if not issubclass(failed.exc_type, SystemExit):
            name = failed.thread.name if failed.thread else "unknown"
            progress.thread_failed(name, failed.exc_type.__name__, str(failed.exc_value))

    threading.excepthook = tell


def run_program(path, arguments):
    # type: (str, list[str]) -> None
    """Run the file as ``python FILE`` would."""
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    runpy.run_path(path, run_name="__main__")


def run_module(name, arguments):
    # type: (str, list[str]) -> None
    """Run the module as ``python -m NAME`` would."""
    sys.argv = arguments
    sys.path[0] = os.getcwd()
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def run_task(target, arguments):
    # type: (str, list[str]) -> None
    """Run ``run(cluster, server, task_index)`` of the file or module."""
    sys.argv = arguments
    if target.endswith(".py"):
        sys.path[0] = os.path.dirname(os.path.abspath(target))
        name = os.path.splitext(os.path.basename(target))[0]
        spec = importlib.util.spec_from_file_location(name, target)
        if spec is None or spec.loader is None:
            raise ImportError("{} is no Python source file".format(target))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # so that objects of its classes and functions can be pickled
        spec.loader.exec_module(module)
    else:
        sys.path[0] = os.getcwd()
        module = importlib.import_module(target)
    _call_task(module.run, lambda value: None)


def _returning(function):
    # type: (Any) -> Any
    """Wrap a function to return None where it calls ``sys.exit(0)``, so that every rank has a value."""

    def call(*arguments):
        # type: (*Any) -> Any
        try:
            return function(*arguments)
        except SystemExit as ended:
            if ended.code not in (None, 0):
                raise
            return None

    return call


def run_function(path, arguments):
    # type: (str, list[str]) -> None
    """Run the pickled function, and keep what it returns for the session."""
    import pickle  # only where needed; and before sys.path has a folder that may contain another pickle.py

    sys.argv = arguments
    sys.path[0] = os.getcwd()
    with open(path, "rb") as file:
        function = pickle.load(file)
        with contextlib.suppress(EOFError):  # the function does not come from cells of a notebook
            for name, (cell, text) in pickle.load(file).items():
                linecache.cache[name] = (len(text), None, text.splitlines(True), name)
                if cell:
                    CELLS[name] = cell
    if os.environ.get("MUSTER_TASK"):
        _call_task(_returning(function), _save_result)
    else:
        _save_result(_returning(function)())


CELLS = {}  # type: dict[str, str]  # names of the cells that the function comes from, by the names of their files
TCP_CLOSE, TCP_CLOSE_WAIT, TCP_LISTEN = 7, 8, 10  # states of a connection, as the kernel counts them

RUN = {"program": run_program, "module": run_module, "task": run_task, "function": run_function}


def start_server():
    # type: () -> Any
    """Return the TensorFlow server of this task, listening. Raises whatever TensorFlow does where the port is taken."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    threads = {
        "intra_op_parallelism_threads": int(os.environ.get("TF_NUM_INTRAOP_THREADS", 0)),
        "inter_op_parallelism_threads": int(os.environ.get("TF_NUM_INTEROP_THREADS", 0)),
    }
    return tf.distribute.Server(
        tf.train.ClusterSpec(config["cluster"]),
        job_name=config["task"]["type"],
        task_index=config["task"]["index"],
        protocol="grpc",
        config=tf.compat.v1.ConfigProto(**threads),
    )


def _call_task(run, take):
    # type: (Any, Any) -> None
    """Hand what the task returns to ``take``, and serve until all tasks of the run have returned."""
    import tensorflow as tf

    config = json.loads(os.environ["TF_CONFIG"])
    server = start_server()
    take(run(tf.train.ClusterSpec(config["cluster"]), server, config["task"]["index"]))
    _wait_for_other_tasks()


def _wait_for_other_tasks():
    # type: () -> None
    """Serve until all tasks have returned: without this server, others would wait forever, and collectives fail."""
    path = os.environ.get("MUSTER_REPORT")
    if not path:
        return
    _flush()
    name = os.path.join(os.environ["MUSTER_SCRATCH"], "done.sock")
    with contextlib.suppress(OSError):  # a socket that an attempt before has left on this worker
        os.unlink(name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as done:
        done.bind(name)
        done.settimeout(1.0)
        while True:
            done.sendto(b'{"kind": "returned"}', path)
            try:
                done.recv(1)
                return
            except socket.timeout:  # the agent drops reports while its connection is congested
                pass


def _save_result(value):
    # type: (object) -> None
    """Write a function's value to the file that the session reads, renamed into place so that it is never partial.

    The file is synced to the disk before it gets its name, so that it survives a power cut, too: a run may have taken
    days for it. The value None is not worth that wait.

    Numbers, texts, bytes, lists, tuples, dicts and NumPy arrays are written so that reading them runs no code: as JSON,
    or with arrays as ``.npz``. Anything else is pickled.
    """
    folder = os.environ.get("MUSTER_RESULTS")
    if not folder:
        return
    rank = _rank()
    name = os.environ["MUSTER_WORKER"] if rank is None else "rank-{}".format(rank)
    path = os.path.join(folder, name)
    arrays = []  # type: list[Any]
    try:
        described = json.dumps(_plain(value, arrays))
    except (TypeError, ValueError, RecursionError):
        path += ".pkl"
        _pickle(value, path + ".part")
    else:
        path += ".npz" if arrays else ".json"
        with open(path + ".part", "wb") as file:
            if arrays:
                numpy = sys.modules["numpy"]
                numpy.savez(file, *arrays, value=numpy.array(described))
            else:
                file.write(described.encode("ascii"))
    if value is not None:
        with open(path + ".part", "rb") as file:
            os.fsync(file.fileno())
    os.replace(path + ".part", path)


def _pickle(value, path):
    # type: (object, str) -> None
    import cloudpickle

    try:
        with open(path, "wb") as file:
            cloudpickle.dump(value, file)
    except Exception as error:  # whatever its parts raise when they are pickled
        what = "what the function returned, of type {}, cannot be sent back".format(type(value).__name__)
        raise TypeError("{}: {}".format(what, error)) from None  # its frames are not the user's


def _plain(value, arrays):
    # type: (Any, list[Any]) -> Any
    """Return a value for JSON: arrays are moved to ``arrays``, and types that JSON lacks become objects that name them.

    Raises TypeError for any other type. That includes subclasses, which would come back as their base class.
    """
    numpy = sys.modules.get("numpy")  # type: Any
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() < LONGEST_NUMBER):
        return value
    if kind is list:
        return [_plain(part, arrays) for part in value]
    if kind is tuple:
        return {"tuple": [_plain(part, arrays) for part in value]}
    if kind is dict:
        return {"dict": [[_plain(key, arrays), _plain(part, arrays)] for key, part in value.items()]}
    if kind is bytes:
        return {"bytes": binascii.b2a_base64(value, newline=False).decode("ascii")}
    is_array = numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.generic))
    if is_array and value.dtype.kind in KINDS and value.dtype.isbuiltin != BROUGHT_BY_OTHERS:
        arrays.append(numpy.asarray(value))
        return {"array" if kind is numpy.ndarray else "scalar": len(arrays) - 1}
    raise TypeError(kind)


def _rank():
    # type: () -> object
    for name in ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "MUSTER_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return None


def _offer_stacks():
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
    questions.bind(path + ".sock")
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
        lines.append(_with_cells(shown))
    deeper = len(callers) - MOST_CALLS
    if deeper > 0:
        lines.append("  and {} more calls\n".format(deeper))
    return "".join(lines)


def _callers(frame):
    # type: (FrameType) -> list[tuple[FrameType, int]]
    """Return the calls that have led to a frame, without those of this program or of the template it is a fork of."""
    callers = []
    for caller, line in traceback.walk_stack(frame):
        callers.append((caller, line))
        if caller.f_code.co_name == "<module>" and caller.f_code.co_filename == __file__:
            break
    scripts = len(callers)
    while scripts and callers[scripts - 1][0].f_code.co_filename in NOT_THE_SCRIPTS:
        scripts -= 1
    return callers[: scripts or None]


def _drop_blank_proxies():
    # type: () -> None
    """Drop empty proxy variables: gRPC takes one for a proxy without an address, and fails to connect."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        if not os.environ.get(name, "set"):
            del os.environ[name]


def _own_traceback(error):
    # type: (BaseException) -> TracebackType | None
    """Return the traceback without the frames of this file and of runpy, which are not the user's."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in NOT_THE_SCRIPTS:
        trace = trace.tb_next
    last = trace
    while last is not None and last.tb_next is not None:
        if last.tb_next.tb_frame.f_code is refuse_debugger.__code__:
            last.tb_next = None
            break
        last = last.tb_next
    return trace


def _leave_out_own_frames(error):
    # type: (BaseException) -> None
    """Have ``sys.excepthook``, the interpreter's or the script's, print an exception with the script's frames alone."""
    print_it, trace = sys.excepthook, _own_traceback(error)

    def print_own(kind, raised, _):
        # type: (type[BaseException], BaseException, TracebackType | None) -> None
        print_it(kind, raised.with_traceback(trace), trace)

    sys.excepthook = print_own


def _traceback_of(error):
    # type: (BaseException) -> str
    """Return the traceback as Python prints it, with the suggestions of names that Python adds from 3.12 on."""
    text = _with_cells("".join(traceback.format_exception(type(error), error, _own_traceback(error))))
    near = ""
    if isinstance(error, (NameError, AttributeError, ImportError)):
        with contextlib.suppress(Exception):  # this file runs without it as well
            near = importlib.import_module("muster.training.suggestions").did_you_mean(error)
    return "{}. Did you mean: '{}'?\n".format(text.rstrip("\n"), near) if near and "Did you mean" not in text else text


def _with_cells(text):
    # type: (str) -> str
    """Return a traceback or stack with the notebook's names of cells in place of their file names."""
    for name, cell in CELLS.items():
        text = text.replace('  File "{}", line '.format(name), "  {}, line ".format(cell))
    return text


def _print_exception(error):
    # type: (BaseException) -> None
    sys.stdout.flush()
    sys.stderr.write(_traceback_of(error))


def _report_exception(error):
    # type: (BaseException) -> None
    """Report an exception to the agent at once: the order of exceptions shows who failed first, that of exits does not.

    The report is cut to fit into one datagram even if each character takes twelve bytes of JSON.
    """
    path = os.environ.get("MUSTER_REPORT")
    if not path:
        return
    report = {
        "kind": "exception",
        "rank": _rank(),
        "pid": os.getpid(),
        "time": time.time(),
        "monotonic": time.monotonic(),  # the machine's, and so the agent's, too
        "peer_was_gone": _peer_is_gone(),
        "status": _exit_status(error),
        "type": type(error).__name__,
        "message": _message_of(error),
    }
    trace = _of_scripts(_traceback_of(error))
    is_message = "\n" not in trace.strip()  # without frames, so that it would only repeat it
    report["traceback"] = "" if is_message else trace[-8000:]  # stacks of a graph's nodes are longer
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        try:
            sender.sendto(json.dumps(report).encode("ascii"), path)
        except OSError as failure:
            sys.stderr.write("muster: the exception could not be reported: {}\n".format(failure))


def _tell_of_exits():
    # type: () -> None
    """Have ``os._exit`` report its call to the agent, as ``sys.exit`` does: a lost peer may be the reason for it.

    In forks of this process it reports nothing. The process ends whatever interrupts the report. The function is
    pickled by its name, as the original is.
    """
    leave, own = os._exit, os.getpid()

    def tell_and_leave(status):
        # type: (int) -> None
        try:
            if os.getpid() == own and isinstance(status, int) and status & 0xFF:
                with contextlib.suppress(Exception):
                    _report_exception(SystemExit(status))
        finally:  # also where a handler of a signal raises KeyboardInterrupt or SystemExit meanwhile
            leave(status)

    tell_and_leave.__module__, tell_and_leave.__name__, tell_and_leave.__qualname__ = "os", "_exit", "_exit"
    os._exit = tell_and_leave  # type: ignore[assignment]


def _of_scripts(trace):
    # type: (str) -> str
    """Return a traceback without the frames of packages, which the nodes of a graph bring into it."""
    return re.sub(OF_PACKAGES.format(re.escape(__file__)), "", trace)


def _message_of(error):
    # type: (BaseException) -> str
    """Return the message of an exception; of a long one its beginning and its end, where frameworks put the reason."""
    message = str(error)
    for heading in HEADINGS:
        message = re.sub(heading, "", message) or message
    if len(message) <= LONGEST_MESSAGE:
        return message
    half = LONGEST_MESSAGE // 2 - 3
    return "{} ... {}".format(message[:half], message[-half:])


def _exit_status(error):
    # type: (BaseException) -> int | None
    """Return the exit status of a SystemExit with a number; None for any other exception or code."""
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code & 0xFF
    return None


def _peer_is_gone():
    # type: () -> bool | None
    """Return whether the other end has closed a TCP connection of this process; None where it has no connection."""
    states = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                with socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as copy:
                    states.add(bytearray(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0])
        except OSError:  # it is not a TCP socket, or has been closed meanwhile
            pass
    return bool(states & {TCP_CLOSE, TCP_CLOSE_WAIT}) if states - {TCP_LISTEN} else None


def _flush():
    # type: () -> None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError) as error:
            os.write(2, "muster: {}\n".format(error).encode())


if __name__ == "__main__":
    main(sys.argv[1:])
