"""A relay's connection, which many agents share, at the session: for the simulation of 100,000 agents.

No platform starts such relays. The session takes their agents through the same seam as those that dial it themselves:
a carrier for each (``muster.pools.connection.AgentCarrier``), handed over by the listener. What goes through the
connection is, in both directions, the number of an agent, a length, and as many bytes; none where that agent has hung
up.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterator

from muster.checks import planning
from muster.pools.connection import AgentConnection
from muster.pools.listener import Listener, UnidentifiedConnection
from muster.run import check
from muster.runtime.background import background_loop

HEADER = struct.Struct("!II")  # number of the agent, and how many bytes follow

Connect = Callable[[UnidentifiedConnection], AgentConnection]


def expect_relays(workers: int) -> None:
    """Have this process's sessions expect relays, for so many workers. Nothing else counts on a connection for each."""
    vars(background_loop())["make_listener"] = RelayListener
    planning.MAX_WORKERS = max(planning.MAX_WORKERS, workers)
    vars(check)["_make_room_for"] = lambda n_workers: None  # descriptors


def framed(number: int, data: bytes) -> bytes:
    """Return bytes of an agent as they go through the connection."""
    return HEADER.pack(number, len(data)) + data


class Splitter:
    """Splits what comes through the connection into the bytes of each agent."""

    def __init__(self) -> None:
        self._received = bytearray()

    def split(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the number of an agent and its bytes, for all that is complete with ``data``."""
        received = self._received
        received += data
        at = 0
        while len(received) - at >= HEADER.size:
            number, size = HEADER.unpack_from(received, at)
            begin, end = at + HEADER.size, at + HEADER.size + size
            if end > len(received):
                break
            at = end
            yield number, bytes(received[begin:end])
        del received[:at]


class RelayListener(Listener):
    """A listener whose connections come from relays."""

    def __init__(self, connect: Connect, expected: Callable[[], int]) -> None:
        super().__init__(lambda connection: RelayConnection(connection, connect), expected)


class RelayConnection(asyncio.Protocol):
    """The connection of one relay.

    Args:
        unidentified: the connection as the listener knows it, until its first agent has identified itself.
        connect: makes the connection of an agent.
    """

    transport: asyncio.Transport

    def __init__(self, unidentified: UnidentifiedConnection, connect: Connect) -> None:
        self._unidentified = unidentified
        self._connect = connect
        self._shares: dict[int, Share] = {}
        self._ended: set[int] = set()  # numbers of agents that have hung up, which are not given to others
        self._splitter = Splitter()
        self._unsent: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport, once the handshake is done."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Give each agent's connection its bytes."""
        for number, part in self._splitter.split(data):
            share = self._shares.get(number)
            if share is None:
                if number in self._ended:  # what comes crosses what has ended it
                    continue
                agent = self._connect(self._unidentified)
                share = self._shares[number] = Share(self, number, agent)
                agent.connection_made(share)
            if part:
                share.take(part)
            else:
                self.end(number)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the relay: its agents are cut off."""
        for number in list(self._shares):
            self.end(number)

    def send(self, number: int, data: bytes) -> None:
        """Send bytes to an agent, together with all that is written in this turn of the event loop."""
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(framed(number, data))

    def end(self, number: int) -> None:
        """End an agent's share, and tell its connection."""
        self._ended.add(number)
        share = self._shares.pop(number, None)
        if share is not None:
            asyncio.get_running_loop().call_soon(share.agent.connection_lost, None)

    def _flush(self) -> None:
        self.transport.write(b"".join(self._unsent))
        self._unsent.clear()


class Share:
    """One agent's share of a relay's connection: a carrier."""

    __slots__ = ("_held", "_number", "_relay", "agent")

    def __init__(self, relay: RelayConnection, number: int, agent: AgentConnection) -> None:
        self._relay = relay
        self._number = number
        self._held: list[bytes] | None = None  # what has come while nothing is to be read
        self.agent = agent

    def take(self, data: bytes) -> None:
        """Pass on what has come from the agent, or hold it back. A real relay would have to be told to wait."""
        if self._held is None:
            self.agent.data_received(data)
        else:
            self._held.append(data)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if data:
            self._relay.send(self._number, data)

    def get_write_buffer_size(self) -> int:
        """Return how many bytes of the relay's connection wait to be sent, whoever they are for."""
        return self._relay.transport.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Hold back what comes."""
        self._held = []

    def resume_reading(self) -> None:
        """Pass on what was held back, and what comes later."""
        held, self._held = self._held or [], None
        for data in held:
            self.take(data)

    def fileno(self) -> int:
        """Return the descriptor of the relay's connection."""
        return int(self._relay.transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        """Tell the relay that the agent is to hang up, after what was written before."""
        self._relay.send(self._number, b"")
        self._relay.end(self._number)

    def abort(self) -> None:
        """Do the same: what other agents wait for is not to be lost."""
        self.close()
