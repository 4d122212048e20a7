"""A tunnel from a pod to a session that it cannot dial, through the cluster's exec.

The first process of the pod has a relay, which listens on a loopback port that the agent dials in place of the
session. The session has the cluster run this file as a program in the pod, whose input and output are a stream to the
session. The relay hands the agent's connection over to that program, which carries its bytes in small frames, and sends
beats, by which either side notices a stream that was cut without an error. Each stream carries one connection. The
bytes are TLS between agent and session: nothing in between has to be trusted.
"""

import array
import contextlib
import os
import select
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

BEAT_SECONDS = 2.0  # between two beats of a stream on which nothing else is sent
SILENCE = 8.0  # seconds without anything from the other side, after which a stream counts as torn
DIAL_SECONDS = 3.0  # that the session may take to answer, until it counts as one that cannot be dialled
PATIENCE = 60.0  # seconds that the pod waits for the session to come
FLUSH_SECONDS = 1.0  # for the last bytes of a connection that has ended
LARGEST = 1 << 14  # bytes of a frame
ROOM = 1 << 17  # bytes that may wait for a side to take them, until the other one is not read any more
LENGTH = struct.Struct(">H")
BEAT, END = LENGTH.pack(0), LENGTH.pack(0xFFFF)
HERE = "127.0.0.1"


def frame(data: bytes) -> bytes:
    """Return a frame with bytes of a connection, LARGEST of them at most."""
    return LENGTH.pack(len(data)) + data


class Frames:
    """A decoder of the frames in a stream.

    Attributes:
        has_ended: whether the other side's connection has ended.
    """

    def __init__(self) -> None:
        self.has_ended = False
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Add received bytes, and return the bytes of the connection in the frames that are complete now."""
        self._buffer += data
        found = bytearray()
        while not self.has_ended and len(self._buffer) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._buffer)
            if length > LARGEST:
                self.has_ended = True
                break
            if len(self._buffer) < LENGTH.size + length:
                break
            found += self._buffer[LENGTH.size : LENGTH.size + length]
            del self._buffer[: LENGTH.size + length]
        return bytes(found)


# -- the pod's first process ------------------------------------------------------------------------------------------


class TunnelEnd:
    """The relay, which hands the agent's connections to the programs that carry them.

    Args:
        path: path of the socket at which the programs request a connection.

    Attributes:
        port: the port that the agent dials, on the loopback address.
        has_come: set once a program of the session has connected.
    """

    def __init__(self, path: str) -> None:
        self._agents = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._agents.bind((HERE, 0))
        self._agents.listen(8)
        self._programs = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._programs.bind(path)
        self._programs.listen(8)
        self._waiting: "list[socket.socket]" = []
        self.port = int(self._agents.getsockname()[1])
        self.has_come = threading.Event()
        threading.Thread(target=self._serve, name="muster-tunnel", daemon=True).start()

    def _serve(self) -> None:
        while True:
            agents = [self._agents] if self._waiting else []
            readable, _, _ = select.select([self._programs] + self._waiting + agents, [], [])
            for program in [program for program in self._waiting if program in readable]:  # ended: it says nothing
                self._waiting.remove(program)
                program.close()
            if self._programs in readable:
                self._waiting.append(self._programs.accept()[0])
                self.has_come.set()
            elif self._agents in readable and self._waiting:
                self._hand_over(self._agents.accept()[0], self._waiting.pop())  # the newest: its stream lives

    @staticmethod
    def _hand_over(agent: socket.socket, program: socket.socket) -> None:
        with agent, program, contextlib.suppress(OSError):  # it has just ended: the agent dials again
            number = array.array("i", [agent.fileno()])
            program.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, number)])


# -- the program that the cluster runs --------------------------------------------------------------------------------


def main(path: str) -> None:
    """Carry one connection of the agent from the relay at ``path`` over this process's input and output."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as relay:
        try:
            relay.connect(path)
        except OSError:
            sys.exit("nothing here waits for a stream (yet)")
        os.set_blocking(0, False)
        os.set_blocking(1, False)
        Carrier(relay).run()


class Carrier:
    """Carries one connection.

    Args:
        relay: connection to the relay, which hands over the agent's connection.
    """

    def __init__(self, relay: socket.socket) -> None:
        self._relay = relay
        self._agent: "socket.socket | None" = None
        self._frames = Frames()
        self._to_agent = bytearray()
        self._to_session = bytearray(BEAT)
        self._heard_at = time.monotonic()
        self._beats_at = self._heard_at + BEAT_SECONDS
        self._is_over = False

    def run(self) -> None:
        """Pass bytes between the agent and the session until either has closed its side."""
        try:
            while not self._is_over:
                self._turn()
            if self._agent is not None and self._to_agent:
                self._agent.settimeout(FLUSH_SECONDS)
                self._agent.sendall(self._to_agent)
            os.set_blocking(1, True)
            _write_all(1, bytes(self._to_session) + END)
        except (OSError, EOFError):
            pass
        finally:
            if self._agent is not None:
                self._agent.close()

    def _turn(self) -> None:
        now = time.monotonic()
        hears = len(self._to_agent) < ROOM
        if not hears:
            self._heard_at = now  # the other side is not to blame for it
        elif now - self._heard_at > SILENCE:
            raise EOFError
        if now >= self._beats_at:
            self._beats_at = now + BEAT_SECONDS
            if not self._to_session:
                self._to_session += BEAT
        reads: "list[Any]" = [0] if hears else []
        if self._agent is None:
            reads.append(self._relay)
        elif len(self._to_session) < ROOM:
            reads.append(self._agent)
        writes: "list[Any]" = [1] if self._to_session else []
        if self._agent is not None and self._to_agent:
            writes.append(self._agent)
        readable, writable, _ = select.select(reads, writes, [], max(0.0, self._beats_at - now))
        if 0 in readable:
            self._hear()
        if self._relay in readable:
            self._take_over()
        elif self._agent in readable:
            self._read_agent()
        if 1 in writable and self._to_session:
            del self._to_session[: os.write(1, self._to_session[:LARGEST])]
        if self._agent in writable and self._agent is not None:
            del self._to_agent[: self._agent.send(self._to_agent[:LARGEST])]

    def _hear(self) -> None:
        data = os.read(0, LARGEST)
        self._heard_at = time.monotonic()
        self._to_agent += self._frames.feed(data)
        self._is_over = not data or self._frames.has_ended

    def _take_over(self) -> None:
        number = array.array("i")
        data, ancillary, _, _ = self._relay.recvmsg(1, socket.CMSG_SPACE(number.itemsize))
        for level, kind, value in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                number.frombytes(value[: number.itemsize])
        if not data or not number:
            raise EOFError
        self._agent = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=number[0])
        self._agent.setblocking(False)

    def _read_agent(self) -> None:
        assert self._agent is not None
        data = self._agent.recv(LARGEST)
        if data:
            self._to_session += frame(data)
        else:
            self._is_over = True


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main(sys.argv[1])
