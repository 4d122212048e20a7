"""The connection of an agent, what carries it, and the state of its worker's generation, which outlives connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from muster.agent import frames, wire
from muster.agent.outbox import Inbox, Outbox
from muster.pools.clocks import ClockMeasurement
from muster.pools.listener import UnidentifiedConnection

HELLO_LIMIT = 1 << 13  # bytes of a hello, and the most that an unidentified connection may send
REFUSAL_SECONDS = 1.0  # time for a refused agent to read the reason
BURST = 0.2  # seconds of core time that a connection may cost the session at once
LONGEST_REST = 1.0  # seconds; while a connection is not read, its end is not noticed


class GenerationState:
    """State of one generation of a worker, kept across its connections.

    Attributes:
        connection: its present connection; None where it has none.
        hello: the first hello of its agent; None before that.
        heard_at: when bytes last came from its agent, on the monotonic clock.
        outbox, inbox: the messages that must not be lost with a connection, in both directions.
        is_leaving: whether its agent leaves, so that the end of its connection is final.
        granted: about how many bytes of files and streams were requested from it.
        is_unpaced: whether its messages are not charged, as it is being ended.
        timer: the timer of its lease, while it has no connection.
    """

    def __init__(self) -> None:
        self.connection: AgentConnection | None = None
        self.hello: wire.Hello | None = None
        self.heard_at = 0.0
        self.outbox = Outbox()
        self.inbox = Inbox()
        self.is_leaving = False
        self.is_unpaced = False
        self.granted = 0
        self.timer: asyncio.TimerHandle | None = None


class AgentCarrier(Protocol):
    """Carries the bytes of one agent: by a TLS connection of its own, or as a share of one that many agents have.

    Whoever makes a carrier gets an ``AgentConnection`` for it from the endpoint, and calls its ``connection_made`` with
    the carrier, ``data_received`` with what comes, and ``connection_lost`` at the end. The listener does so for each
    connection that it accepts; it would do so for each agent of a relay, too.
    """

    def write(self, data: bytes) -> None:
        """Send bytes as soon as possible; drop them once the agent is gone."""

    def get_write_buffer_size(self) -> int:
        """Return how many bytes wait to be sent."""

    def pause_reading(self) -> None:
        """Pass nothing on of what the agent sends, which waits."""

    def resume_reading(self) -> None:
        """Pass it on again."""

    def fileno(self) -> int:
        """Return the descriptor of the connection, which a forked child closes; -1 where there is none."""

    def close(self) -> None:
        """Have the agent hang up once it has what was written before."""

    def abort(self) -> None:
        """End it at once."""


class AgentConnection(asyncio.Protocol):
    """A connection of one agent.

    Attributes:
        carrier: what carries its bytes.
        worker: name of its worker; None until it is identified.
        state: state of its worker's generation; None until it is identified.
        is_dismissed: whether the session has ended it, so that everything received later is ignored.
    """

    carrier: AgentCarrier

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
        self._owed = 0.0  # seconds of core time that it has cost beyond its share
        self._charged_at = 0.0
        self._rest: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport | AgentCarrier) -> None:
        """Take the carrier, once bytes can be sent."""
        self.carrier = cast(AgentCarrier, transport)

    def data_received(self, data: bytes) -> None:
        """Pass received bytes on."""
        self._on_data(self, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._on_lost(self)

    def charge(self, seconds: float, share: float, now: float) -> None:
        """Charge the connection for core time, and pause reading it for a while if it has taken more than its share.

        A worker that sends without end is then slowed down, as by a slow network.

        Args:
            seconds: core time that its messages have taken.
            share: the part of a core that it may take.
            now: the present time on the monotonic clock.
        """
        owed = max(0.0, self._owed - (now - self._charged_at) * share) + seconds
        self._owed = min(owed, BURST + LONGEST_REST * share)
        self._charged_at = now
        if self._owed > BURST and not self.is_dismissed:
            if self._rest is None:
                self.carrier.pause_reading()
            else:
                self._rest.cancel()
            self._rest = asyncio.get_running_loop().call_later((self._owed - BURST) / share, self.go_on)

    def go_on(self) -> None:
        """Resume reading, if it is paused."""
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
            self.carrier.resume_reading()

    def send(self, message: tuple[Any, ...]) -> None:
        """Send one message, which is lost if the connection ends before it arrives."""
        self.write(wire.encode(message))

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.carrier.write(data)

    def acknowledge(self) -> None:
        """Acknowledge the messages that have arrived."""
        ack = self.state.inbox.acknowledgement() if self.state else None
        if ack is not None and not self.is_dismissed:
            self.send(ack)

    def ping(self) -> None:
        """Ask the agent for the time of its clocks."""
        if not self.is_dismissed:
            self.send(self.clock.question())

    def refuse(self, why: str) -> None:
        """Tell the agent why it is refused, and end the connection."""
        self.is_dismissed = True
        self.send(wire.Refused(why))
        self.carrier.close()
        asyncio.get_running_loop().call_later(REFUSAL_SECONDS, self.carrier.abort)

    def abort(self) -> None:
        """End the connection at once."""
        self.is_dismissed = True
        if self._rest is not None:
            self._rest.cancel()
        self.carrier.abort()
