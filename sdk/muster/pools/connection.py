"""One connection of an agent, and the state of its worker's generation, which outlives it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from muster.agent import frames, wire
from muster.agent.outbox import Inbox, Outbox
from muster.pools.clocks import ClockMeasurement
from muster.pools.listener import UnidentifiedConnection
from muster.runtime import clock

HELLO_LIMIT = 1 << 13  # bytes of a hello; others may not send even so many
REFUSAL_SECONDS = 1.0  # that a refused agent gets to read why
BURST = 0.2  # seconds of a core's time that one may cost the session at once
LONGEST_REST = 1.0  # seconds; who is not read is not seen to hang up, either


class GenerationState:
    """State of one generation of a worker, kept across its connections.

    Attributes:
        connection: the one it has now.
        hello: the first that it said.
        outbox, inbox: what must arrive, in both directions.
        is_leaving: whether the end of its connection is its own.
        granted: bytes of files and streams that it has been asked for, about.
        is_unpaced: whether its messages may cost what they like, as it is being ended.
        timer: runs until its lease ends, while it has no connection.
    """

    def __init__(self) -> None:
        self.connection: AgentConnection | None = None
        self.hello: wire.Hello | None = None
        self.outbox = Outbox()
        self.inbox = Inbox()
        self.is_leaving = False
        self.is_unpaced = False
        self.granted = 0
        self.timer: asyncio.TimerHandle | None = None


class AgentConnection(asyncio.Protocol):
    """One agent's connection.

    Attributes:
        worker: name of its worker; None until it has said so.
        state: of that worker's generation; None until then, too.
        is_dismissed: whether the session has ended it, so that nothing it has sent counts any more.
    """

    transport: asyncio.Transport

    def __init__(
        self,
        unidentified: UnidentifiedConnection,
        on_data: Callable[[AgentConnection, bytes], None],
        on_lost: Callable[[AgentConnection], None],
    ) -> None:
        self.unidentified = unidentified
        self._on_data = on_data
        self._on_lost = on_lost
        self.decoder = frames.Decoder(HELLO_LIMIT, payload_limit=0)
        self.clock = ClockMeasurement()
        self.worker: str | None = None
        self.state: GenerationState | None = None
        self.is_dismissed = False
        self._owed = 0.0  # seconds of a core's time that it has cost beyond its share
        self._charged_at = 0.0
        self._rest: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the handshake is done."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Called when bytes have come."""
        self._on_data(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended."""
        self._on_lost(self)

    def charge(self, seconds: float, share: float) -> None:
        """Note what it has cost, and read nothing of it for a while where that was more than its share.

        Whoever sends without end then waits for room in the connection, as it would for a network that is slow.

        Args:
            seconds: time of a core that its messages have taken.
            share: of a core that it may take.
        """
        now = clock.now()
        owed = max(0.0, self._owed - (now - self._charged_at) * share) + seconds
        self._owed = min(owed, BURST + LONGEST_REST * share)
        self._charged_at = now
        if self._owed > BURST and not self.is_dismissed:
            if self._rest is None:
                self.transport.pause_reading()
            else:
                self._rest.cancel()
            self._rest = asyncio.get_running_loop().call_later((self._owed - BURST) / share, self.go_on)

    def go_on(self) -> None:
        """Read again."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self.transport.resume_reading()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message, which may be lost with the connection."""
        self.write(wire.encode(message))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.transport.write(data)

    def acknowledge(self) -> None:
        """Tell the agent what has come."""
        ack = self.state.inbox.acknowledgement() if self.state else None
        if ack is not None and not self.is_dismissed:
            self.send(ack)

    def ping(self) -> None:
        """Ask for the time of the agent's clocks."""
        if not self.is_dismissed:
            self.send(self.clock.question())

    def refuse(self, why: str) -> None:
        """Tell the agent why, and end the connection."""
        self.is_dismissed = True
        self.send(wire.Refused(why))
        self.transport.close()
        asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self.transport.abort)

    def abort(self) -> None:
        """End it at once."""
        self.is_dismissed = True
        if self._rest is not None:
            self._rest.cancel()
        self.transport.abort()
