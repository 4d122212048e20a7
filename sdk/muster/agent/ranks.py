"""Ranks that a launcher requests over ssh: the agent's side of :mod:`~muster.agent.entry` and of ``mpi_rank.py``.

``horovodrun`` logs in to a worker once per rank. The entry, which sshd runs for it, passes the request to the agent
over ``agent.sock``; so a rank is the agent's own child, writes directly to the worker's log, and ends with the agent.
``mpiexec`` logs in once per worker, and its daemon there starts ``mpi_rank.py`` once per rank, which does the same.

The launcher reaches a worker on a way of its own, so it may be faster than the session's announcement of the ranks,
whose connection may even be cut for a while. Such a request waits for the announcement.
"""

import contextlib
import os
import socket
import struct
import time

from . import frames, wire
from .fields import whole
from .loop import Loop
from .processes import Child, cannot_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, Protocol

    from .processes import Children

    class Agent(Protocol):
        """The part of an agent that the entries use; its own file says what each member means."""

        config: "dict[str, Any]"
        environment: "dict[str, str]"
        expected: "dict[str, Any] | None"
        processes: Children

        def start_process(  # noqa: D102
            self,
            argv: "list[str]",
            env: "dict[str, str]",
            cwd: "str | None",
            rank: "int | None",
            on_exit: "Callable[[Child], object]",
        ) -> Child: ...

        def process_ended(self, child: Child) -> None: ...  # noqa: D102

        def send_to_session(self, message: "tuple[Any, ...]") -> None: ...  # noqa: D102

        def complain(self, text: str) -> None: ...  # noqa: D102

        def remark(self, text: str) -> None: ...  # noqa: D102


HANG_UP_DELAY = 0.2  # seconds in which a rank without its launcher may end by itself, as it may have been told to
CANCEL_GRACE = 1.0  # seconds between SIGTERM and SIGKILL after that
CANNOT_START = 127  # exit status of a shell that cannot start a program
DESCRIPTOR = struct.Struct("i")
MOST_RANKS = 1 << 24
MOST_SILENT = 64  # connections without a request
ANSWER_SECONDS = 0.2  # time limit for sending an answer, for which the other side waits


class Ranks:
    """The server for the entries of one worker.

    Args:
        loop: the agent's event loop.
        agent: the agent, which starts the processes.
        path: path of the Unix socket to listen on.
    """

    def __init__(self, loop: Loop, agent: "Agent", path: str) -> None:
        self._loop = loop
        self._agent = agent
        self._silent: "list[Request]" = []
        self._early: "list[Request]" = []  # before the session's announcement
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        loop.on_readable(self._listener, self._accept)

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:  # too many descriptors
            while self._silent:
                self._silent.pop().close()
            return
        self._silent = [request for request in self._silent if request.is_silent]
        if len(self._silent) >= MOST_SILENT:
            self._silent.pop(0).close()
        self._silent.append(Request(self._loop, self._agent, connection, self._put_off))

    def _put_off(self, request: "Request") -> None:
        self._early = [other for other in self._early if other.is_open and other is not request] + [request]

    def start_early(self) -> None:
        """Start the ranks that were requested before the session announced them."""
        early, self._early = self._early, []
        for request in early:
            request.go_on()


class Request:
    """The connection of one entry, with a request to start a rank or to return the worker's environment.

    Args:
        loop, agent: see ``Ranks``.
        connection: the connection.
        put_off: called with this object if it asks for a rank before the session has announced any; ``go_on`` is to be
            called afterwards.

    Attributes:
        is_open: whether it is open.
        is_silent: whether it is open and has made no request yet.
    """

    def __init__(
        self, loop: Loop, agent: "Agent", connection: socket.socket, put_off: "Callable[[Request], object]"
    ) -> None:
        self._loop = loop
        self._agent = agent
        self._connection = connection
        self._put_off = put_off
        self._early: "dict[str, Any] | None" = None  # its message, if it was put off
        self._decoder = frames.Decoder()
        self._child: "Child | None" = None
        self._descriptor: "int | None" = None
        self.is_silent = True
        self.is_open = True
        connection.setblocking(False)
        loop.on_readable(connection, self._receive)

    def _receive(self) -> None:
        try:
            data = self._receive_data()
            messages = list(self._decoder.feed(data))
        except BlockingIOError:
            return
        except (OSError, frames.ProtocolError):
            data = b""
        if not data:
            self._end()
            return
        for message in messages:
            self.is_silent = False
            self._try(message)

    def go_on(self) -> None:
        """Start the rank that was requested before it was announced, if it is still wanted."""
        message, self._early = self._early, None
        if message is not None:
            self._try(message)

    def _try(self, message: "dict[str, Any]") -> None:
        if self.is_open:
            try:
                self._obey(message)
            except (KeyError, OverflowError, TypeError, ValueError) as error:
                # Any process of the worker may ask for anything.
                self._agent.remark("a login asked for what makes no sense: {!r}".format(error))
                self._end()

    def _end(self) -> None:
        """Close the connection, and end its rank after a delay.

        An entry's connection ends with its ssh login: then the launcher has ended, or has given the rank up.
        """
        self.close()
        if self._child is not None:
            self._agent.send_to_session(wire.HungUp(self._child.rank, time.monotonic()))
            self._loop.call_later(HANG_UP_DELAY, self._cancel)

    def _obey(self, message: "dict[str, Any]") -> None:
        if message["type"] == "rank":
            argv, env, rank, cores = (message.get(name) for name in ("argv", "env", "rank", "cores"))
            if not (_are_texts(argv) and argv and type(env) is dict and _are_texts([*env, *env.values()])):
                raise ValueError("no command, or no environment")
            if type(rank) is not int or not 0 <= rank < MOST_RANKS or self._child is not None:
                raise ValueError("no rank")
            if self._agent.expected is None:
                self._early = message
                self._put_off(self)
            else:
                self._start(self._agent.expected, argv, env, rank, cores)
        elif message["type"] == "broken":
            self._agent.send_to_session(wire.Broken(whole(0, 255)(message["code"])))
        else:
            self._answer("environment", env=self._agent.environment, cwd=self._agent.config["cwd"])

    def _receive_data(self) -> bytes:
        """Return the next bytes; a descriptor that is sent with them is kept, for the rank to inherit."""
        data, control, _, _ = self._connection.recvmsg(
            1 << 16, socket.CMSG_LEN(DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
        )
        for _, _, content in control:
            self._close_descriptor()
            (self._descriptor,) = DESCRIPTOR.unpack(content)
        return data

    def _start(
        self,
        expected: "dict[str, Any]",
        argv: "list[str]",
        launcher_env: "dict[str, str]",
        rank: int,
        cores: "list[int] | None",
    ) -> None:
        if any(child.rank == rank for child in self._agent.processes.running.values()):
            text = "rank {} runs already".format(rank)
            self._agent.remark("a login asked for a rank that runs already: {}".format(rank))
            self._answer("exited", code=CANNOT_START, error=text)
            self._close_descriptor()
            return
        argv = expected["argv"] or argv
        known = dict(self._agent.environment, **expected["env"])
        env = dict(expected["env"], **launcher_variables(launcher_env, known))
        if self._descriptor is not None:
            env["PMI_FD"] = str(self._descriptor)
            os.set_inheritable(self._descriptor, True)
        try:
            with _bound_to(cores):
                self._child = self._agent.start_process(argv, env, expected["cwd"], rank, self._ended)
        except OSError as error:
            text = cannot_start(argv, error)
            self._agent.complain("rank {}: {}".format(rank, text))
            self._answer("exited", code=CANNOT_START, error=text)
        self._close_descriptor()

    def _cancel(self) -> None:
        if self._child is not None:
            self._agent.processes.end(self._child, CANCEL_GRACE, "stopped")

    def _ended(self, child: Child) -> None:
        self._child = None
        code = child.exit_code if child.signal is None else 128 + child.signal
        self._answer("exited", code=code)
        self._agent.process_ended(child)

    def _answer(self, kind: str, **fields: object) -> None:
        try:
            self._connection.settimeout(ANSWER_SECONDS)
            self._connection.sendall(frames.encode(kind, **fields))
            self._connection.setblocking(False)
        except OSError:  # the entry has gone, which is acted upon at the end of file, or does not take its answer
            with contextlib.suppress(OSError):
                self._connection.setblocking(False)
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        if self.is_open:
            self.is_open = self.is_silent = False
            self._early = None
            self._loop.forget(self._connection)
            self._connection.close()
            self._close_descriptor()

    def _close_descriptor(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _are_texts(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


@contextlib.contextmanager
def _bound_to(cores: "list[int] | None") -> "Iterator[None]":
    """Pin processes that are started within the block to these cores; None for the agent's own cores."""
    if cores is None:
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def launcher_variables(given: "dict[str, str]", known: "dict[str, str]") -> "dict[str, str]":
    """Return the variables that a rank takes from the environment that its launcher sent along.

    The launcher's own variables are taken in any case. The others are those that the launcher itself was started with,
    such as PATH: they are taken only if the worker's environment ``known`` lacks them.
    """
    own = ("HOROVOD_", "NCCL_", "OMPI_", "PMI_", "PMIX_")
    return {name: value for name, value in given.items() if name.startswith(own) or name not in known}
