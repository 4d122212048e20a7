"""Processes that a launcher asks for over ssh: the agent's side of :mod:`~muster.agent.entry`.

``horovodrun`` logs in to a worker once per rank. The entry, which sshd runs for it, hands the request to the agent over
``agent.sock``; so a rank is the agent's own child, writes straight to the worker's log, and ends with the agent.
"""

import socket

from . import wire
from .loop import Loop
from .processes import Child, cannot_start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .agent import Agent

CANCEL_GRACE = 1.0  # seconds that a rank gets to end when its launcher has gone
CANNOT_START = 127  # what a shell exits with in that case


class Ranks:
    """Serves the entries of one worker.

    Args:
        loop: the agent's event loop.
        agent: the agent, which starts the processes.
        path: where to listen.
    """

    def __init__(self, loop: Loop, agent: "Agent", path: str) -> None:
        self._loop = loop
        self._agent = agent
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
        Request(self._loop, self._agent, connection)


class Request:
    """One entry that has connected: a rank to start, or a question for the worker's environment."""

    def __init__(self, loop: Loop, agent: "Agent", connection: socket.socket) -> None:
        self._loop = loop
        self._agent = agent
        self._connection = connection
        self._decoder = wire.Decoder()
        self._child: "Child | None" = None
        connection.setblocking(False)
        loop.on_readable(connection, self._receive)

    def _receive(self) -> None:
        try:
            data = self._connection.recv(1 << 16)
            messages = self._decoder.feed(data)
        except BlockingIOError:
            return
        except (OSError, wire.ProtocolError):
            data = b""
        if not data:
            self._hang_up()
            if self._child is not None:  # ssh is gone, and so is the launcher or its interest in this rank
                self._agent.processes.end(self._child, CANCEL_GRACE, "stopped")
            return
        for message in messages:
            if message["type"] == "rank":
                self._start(message["argv"], message["env"], message["rank"])
            else:
                self._answer("environment", env=self._agent.environment, cwd=self._agent.config["cwd"])

    def _start(self, argv: "list[str]", launcher_env: "dict[str, str]", rank: int) -> None:
        expected = self._agent.expected
        if expected is None:
            self._answer("exited", code=CANNOT_START, error="the session has not announced any ranks")
            return
        known = dict(self._agent.environment, **expected["env"])
        env = dict(expected["env"], **launcher_variables(launcher_env, known))
        try:
            self._child = self._agent.start_process(argv, env, expected["cwd"], rank, self._ended)
        except OSError as error:
            text = cannot_start(argv, error)
            self._agent.complain("rank {}: {}".format(rank, text))
            self._answer("exited", code=CANNOT_START, error=text)

    def _ended(self, child: Child) -> None:
        self._child = None
        code = child.exit_code if child.signal is None else 128 + child.signal
        self._answer("exited", code=code)
        self._agent.process_ended(child)

    def _answer(self, kind: str, **fields: object) -> None:
        try:
            self._connection.setblocking(True)
            self._connection.settimeout(1)
            self._connection.sendall(wire.encode(kind, **fields))
            self._connection.setblocking(False)
        except OSError:
            pass  # the entry has gone; what matters of that is done on end of file

    def _hang_up(self) -> None:
        self._loop.forget(self._connection)
        self._connection.close()


def launcher_variables(given: "dict[str, str]", known: "dict[str, str]") -> "dict[str, str]":
    """What a rank takes of the environment that its launcher sent along.

    The launcher's own variables count. The rest is whatever the launcher itself was started with, such as its PATH:
    that only fills gaps in the environment ``known`` to the worker.
    """
    own = ("HOROVOD_", "NCCL_", "OMPI_", "PMI_")
    return {name: value for name, value in given.items() if name.startswith(own) or name not in known}
