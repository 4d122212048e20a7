"""Reports of exceptions to the agent, which tell the session what has failed, and which rank first."""

import collections
import contextlib
import json
import os
import re
import socket
import time

from muster.training import progress

from . import tracebacks
from .tracebacks import name_of, of_scripts, traceback_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  (type comments)

OWN = os.getpid()
LONGEST_MESSAGE = 1000  # characters of an exception's message that are reported
DEEPEST_GROUP = 10  # groups of exceptions, one in another, whose words are reported
WORDLESS = "<exception str() failed>"  # as Python itself prints it
TCP_CLOSE, TCP_CLOSE_WAIT, TCP_LISTEN = 7, 8, 10  # states of a connection, as the kernel counts them
BITS_OF_A_LONG = 64  # of C, with the sign: what is larger ends an interpreter with the status 255
HEADINGS = (  # patterns of text that TensorFlow and Keras put before the actual message
    r"\AException encountered when calling .*\.\n+(?:\x1b\[\d*m)*(?=[^\x1b\s])",
    r"\AGraph execution error:\s*|Detected at node .* defined at \(most recent call last\):\n"  # of each node
    r"(?:[ \t].*\n|\n|Node: .*\n|<stack traces unavailable>\n)*",
    r"\A\d+ root error\(s\) found\.\s*\(0\) [A-Z][A-Za-z_ ]*: *",
    r"\A\{\{function_node .*?\}\} *",
)

Agent = collections.namedtuple("Agent", "path process rank descriptor file")  # ``file`` of the connected socket
AGENT = []  # type: list[Agent]  # one if there is an agent, as the environment has told of it when the script began
RESERVED = []  # type: list[int]  # a descriptor that is given up for the report of an exception, if no other is left


def reserve():
    # type: () -> None
    """Keep what the report of an exception needs, whatever the script does to its environment, rights and folders."""
    RESERVED.append(os.open(os.devnull, os.O_RDONLY))
    path = os.environ.get("MUSTER_REPORT")
    if path:
        descriptor = _connected(path)
        process, rank = os.environ.get("MUSTER_PROCESS"), progress.global_rank()
        AGENT.append(Agent(path, process, rank, descriptor, _file_of(descriptor)))


def _connected(path):
    # type: (str) -> int
    """Return a descriptor of a socket that sends to the agent also when its folder is out of reach; -1 if none can."""
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sender.connect(path)
        return sender.detach()
    except OSError:
        sender.close()
        return -1


def _file_of(descriptor):
    # type: (int) -> tuple[int, int] | None
    """Return what tells the file behind a descriptor from all others; None if there is none."""
    try:
        found = os.fstat(descriptor)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def report(error):
    # type: (BaseException) -> None
    """Report an exception to the agent at once: the order of exceptions shows who failed first, that of exits does not.

    The report is cut to fit into one datagram even if each character takes twelve bytes of JSON. That of a fork of the
    script's process is a warning, since what its end means only the script knows; its exit status is nobody's business.
    """
    if not AGENT:
        return
    if os.getpid() != OWN:
        if not isinstance(error, SystemExit):
            with contextlib.suppress(Exception):  # whatever state the fork is in
                progress.fork_failed(name_of(type(error)), message_of(error))
        return
    _make_room()
    report = {
        "kind": "exception",
        "rank": AGENT[0].rank,
        "process": AGENT[0].process,
        "monotonic": time.monotonic(),  # the machine's, and so the agent's, too
        "peer_was_gone": _peer_is_gone(),
        "status": _exit_status(error),
        "type": name_of(type(error)),
        "message": message_of(error),
    }
    trace = of_scripts(traceback_of(error))
    is_message = "\n" not in trace.strip()  # without frames, so that it would only repeat it
    report["traceback"] = "" if is_message else trace[-8000:]  # stacks of a graph's nodes are longer
    try:
        _send(json.dumps(report).encode("ascii"))
    except OSError as failure:
        tracebacks.complain("muster: the exception could not be reported: {}\n".format(failure))


def _send(data):
    # type: (bytes) -> None
    """Send a report to the agent, by a new socket where the script has closed the one that was kept."""
    agent = AGENT[0]
    is_kept = agent.file is not None and agent.file == _file_of(agent.descriptor)  # else the number is another file's
    kept = agent.descriptor if is_kept else None
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM, 0, kept) as sender:
        sender.settimeout(1.0)
        if not is_kept:
            sender.connect(agent.path)
        sender.send(data)


def _make_room():
    # type: () -> None
    """Close the reserved descriptor, unless the script has closed it and has another file of that number."""
    while RESERVED:
        reserved = RESERVED.pop()
        with contextlib.suppress(OSError):
            if os.readlink("/proc/self/fd/{}".format(reserved)) == os.devnull:
                os.close(reserved)


def message_of(error):
    # type: (BaseException) -> str
    """Return the message of an exception; of a long one its beginning and its end, where frameworks put the reason."""
    words = [_words_of(error)]
    inner = _first_of(error)
    while inner is not None and len(words) < 2 * DEEPEST_GROUP:
        words += [name_of(type(inner)), _words_of(inner)]
        inner = _first_of(inner)
    message = ": ".join(words)
    if len(message) <= LONGEST_MESSAGE:
        return message
    half = LONGEST_MESSAGE // 2 - 3
    return "{} ... {}".format(message[:half], message[-half:])


def _words_of(error):
    # type: (BaseException) -> str
    """Return an exception's own words, without the headings of frameworks."""
    try:
        message = str(error)
    except BaseException:  # its class may be the script's, and raise anything, as for Python's own traceback
        message = WORDLESS
    for heading in HEADINGS:
        message = re.sub(heading, "", message) or message
    return message


def _first_of(group):
    # type: (BaseException) -> BaseException | None
    """Return the first exception of a group, whose own words tell of none of them; None of one that is no group."""
    try:
        several = getattr(group, "exceptions", None)
    except BaseException:
        return None
    return several[0] if isinstance(several, tuple) and several and isinstance(several[0], BaseException) else None


def has_failed(ended):
    # type: (SystemExit) -> bool
    """Return whether an interpreter that this SystemExit ends has an exit status other than 0."""
    code = _code_of(ended)
    return code is not None and _exit_status(ended) != 0


def _exit_status(error):
    # type: (BaseException) -> int | None
    """Return the exit status of a SystemExit with a number; None for any other exception or code."""
    code = _code_of(error)
    if not isinstance(code, int):
        return None
    return code & 0xFF if code.bit_length() < BITS_OF_A_LONG else 0xFF


def _code_of(error):
    # type: (BaseException) -> Any
    """Return the code of a SystemExit; where it cannot be read, the exception itself, as the interpreter takes it."""
    try:
        return error.code if isinstance(error, SystemExit) else error
    except Exception:
        return error


def _peer_is_gone():
    # type: () -> bool | None
    """Return whether the other end has closed a TCP connection of this process; None where it has no connection."""
    states = set()
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:  # the script has left itself no descriptor at all, or has another root
        return None
    for name in names:
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                with socket.fromfd(int(name), socket.AF_INET, socket.SOCK_STREAM) as copy:
                    states.add(bytearray(copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0])
        except OSError:  # it is not a TCP socket, or has been closed meanwhile
            pass
    return bool(states & {TCP_CLOSE, TCP_CLOSE_WAIT}) if states - {TCP_LISTEN} else None
