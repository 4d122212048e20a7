"""The endpoint to which a run's agents connect over TLS, each with its own token. It lives on the background loop.

Everything that agents send is decoded and checked here; other modules get only messages of :mod:`muster.agent.wire`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import secrets
import time
import weakref
from collections.abc import Callable, Collection, Sequence, Set
from pathlib import Path
from typing import Any

from muster.agent import frames, wire
from muster.errors import JobError
from muster.job import SessionAddress
from muster.pools.connection import AgentConnection, GenerationState
from muster.pools.leases import Leases
from muster.pools.listener import Listener, UnidentifiedConnection
from muster.runtime import clock
from muster.runtime.forks import in_forked_children
from muster.text.arguments import Argument, ArgumentText

logger = logging.getLogger("muster")

NO_TOKEN = "not the token of this run"
MOST_UNSENT = 1 << 26  # bytes that may wait to be sent to one agent: more than it can have asked for
SHARE = 0.25  # part of a core that messages of all workers together may take, divided equally among them
LEAST_SHARE = 0.01  # part of a core that messages of one worker may take in any case
BYTE_SECONDS = 2e-9  # core time of receiving and decrypting one byte, which is spent before a message is handled
ASKED_FOR = frozenset(wire.KINDS[kind] for kind in (wire.Chunk, wire.Data))  # not charged up to what was requested
ASKS = frozenset((wire.Get, wire.Find, wire.Have, wire.Execute, wire.Dial, wire.Credit))  # messages that request them
GRANT = 1 << 19  # most bytes that each such message requests
MOST_GRANTED = 1 << 23  # most bytes that count as requested of one worker
REPORTS_PER_SECOND = 500  # reports of one kind that all workers together are to send at most: under 10 % of a core
OF_CONNECTION = frozenset((wire.Hello, wire.Clock, wire.Ack, wire.Leaving))  # messages that are handled here alone
REFUSED = (frames.ProtocolError, wire.Misfit)  # errors of the peer, which end its connection


class Endpoint:
    """Listens for the agents of one run, and passes their messages on.

    Args:
        workers: names of the workers that may say hello.
        lease_seconds: how long each worker may act without a connection, until it counts as lost; 0: not at all.

    Attributes:
        on_message: called with a worker's name and its message, on the event loop; its ``Hello`` comes first. To be
            set before the workers are launched.
        on_lost: called with the name of a worker whose connection and lease have ended. To be set early, too.
        on_cut: called with the name of a worker whose connection has ended, but not its lease.
        on_back: called with the name of such a worker when it is connected again.
        on_connected: called with the name of a worker each time that it has been identified.
        on_defect: called with every exception that one of these callbacks raises.
        leases: the leases of the workers, which say which generation of each may act.
    """

    def __init__(self, workers: Collection[str], lease_seconds: float = 0.0) -> None:
        self.leases = Leases(lease_seconds, clock.now)
        self.on_message: Callable[[str, Any], None] = lambda worker, message: None
        self.on_lost: Callable[[str], None] = lambda worker: None
        self.on_cut: Callable[[str], None] = lambda worker: None
        self.on_back: Callable[[str], None] = lambda worker: None
        self.on_connected: Callable[[str], None] = lambda worker: None
        self.on_defect: Callable[[Exception], None] = lambda error: logger.error("a message is lost", exc_info=error)
        self._secret = secrets.token_bytes(32)
        self._host = ""
        self._port = 0
        self._listens_on = ""
        self._states: dict[str, GenerationState] = {}
        for worker in workers:
            self.leases.add(worker)
            self._states[worker] = GenerationState()
        self._inbox: list[tuple[AgentConnection, bytes, float]] = []
        self._warned: set[str] = set()
        self._is_closed = False
        # Kept, since counting them at each of ten thousand connections would be slow.
        self._connected: set[str] = set()
        self._gone: set[str] = set()  # workers whose present generation has ended
        self._listener = Listener(self._connect, self._expected)
        _endpoints.add(self)

    async def open(self, scratch: Path, host: str, port: int = 0, listen: str = "", is_coming: bool = False) -> None:
        """Start to listen.

        Args:
            scratch: a private folder.
            host: address that agents dial.
            port: the port; 0 for any that is free.
            listen: address to listen on, where it differs from ``host``.
            is_coming: whether this machine may get that address only later.

        Raises:
            JobError: the address cannot be listened on.
        """
        made = getattr(asyncio.get_running_loop(), "make_listener", Listener)  # a simulated loop has its own
        self._listener = made(self._connect, self._expected)
        try:
            self._port = await self._listener.open(scratch, host, port, listen or host, is_coming)
        except OSError as error:
            raise JobError(
                f"The session cannot listen on {listen or host}:{port}: {error.strerror or error}.",
                advice=ArgumentText(Argument("session_address", ""), " another host:port, or none for any free port"),
            ) from error
        self._host = host
        self._listens_on = listen or host

    @property
    def listening(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._listens_on, self._port

    def address_for(self, worker: str) -> SessionAddress:
        """Return the address and credentials with which the agent of a worker's present generation dials."""
        token = self._token(worker, self.leases.generation(worker))
        return SessionAddress(self._host, self._port, self._listener.certificate, token, self.leases.seconds)

    def renew(self, worker: str) -> int:
        """Begin the next generation of a worker, and return its number.

        Raises:
            LeaseHeld: the generation before may still act.
        """
        generation = self.leases.renew(worker)
        self._states[worker] = GenerationState()
        self._connected.discard(worker)
        self._gone.discard(worker)
        return generation

    def ended(self, worker: str) -> None:
        """Record that a worker has ended, according to its platform. No callback is called."""
        state = self._states[worker]
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
        if state.connection is not None:
            connection, state.connection = state.connection, None
            self._connected.discard(worker)
            connection.abort()
        self._end_lease(worker)

    @property
    def connected(self) -> Set[str]:
        """Names of the workers whose agents are connected: a live view, which changes as agents come and go."""
        return self._connected

    @property
    def report_seconds(self) -> float:
        """Seconds between two reports of the same kind that each agent is asked for: the more agents, the more."""
        return max(1.0, len(self._states) / REPORTS_PER_SECOND)

    def heard_at(self, worker: str) -> float | None:
        """Return when bytes last came from a worker's agent; None if none are to come: not yet, or not any more."""
        state = self._states[worker]
        return None if state.hello is None or state.is_leaving or worker in self._gone else state.heard_at

    def ask_for_life(self, worker: str) -> None:
        """Have a worker's agent show that it is alive, by its answer to a ping; nothing is sent if it is not there."""
        state = self._states[worker]
        if state.connection is not None:
            state.connection.ping()

    def send(self, worker: str, message: tuple[Any, ...]) -> bool:
        """Send a message to a worker's agent, at once or when it is back; return False if it is gone for good."""
        state = self._states.get(worker)
        if state is None or (state.connection is None and not self._may_come_back(state)):
            return False
        if self.leases.seconds and type(message) in wire.LASTING:
            try:
                data = state.outbox.add(message)
            except frames.ProtocolError as error:
                self._end_deaf(worker, state, str(error))
                return False
        else:
            data = wire.encode(message)
        if isinstance(message, wire.End):
            state.is_leaving = True
        if type(message) in ASKS:
            state.granted = min(state.granted + GRANT, MOST_GRANTED)
        if isinstance(message, (wire.Stop, wire.End)):  # its answer is awaited, and comes after all it has sent before
            state.is_unpaced = True
            if state.connection is not None:
                state.connection.go_on()
        if state.connection is not None and not state.connection.is_dismissed:
            state.connection.write(data)
            unsent = state.connection.carrier.get_write_buffer_size()
            if unsent > MOST_UNSENT:
                self._end_deaf(worker, state, f"{unsent} bytes wait to be sent")
        return True

    @staticmethod
    def _end_deaf(worker: str, state: GenerationState, why: str) -> None:
        """End the connection of an agent that does not read what is sent to it."""
        if state.connection is not None and not state.connection.is_dismissed:
            logger.warning("the connection of %s was ended: %s", worker, why)
            state.connection.abort()

    def close(self) -> None:
        """End all connections and stop listening."""
        self._is_closed = True
        self._listener.close()
        for state in self._states.values():
            if state.timer is not None:
                state.timer.cancel()
            if state.connection is not None:
                state.connection.abort()

    def _connect(self, unidentified: UnidentifiedConnection) -> AgentConnection:
        return AgentConnection(unidentified, self._received, self._connection_lost)

    def _expected(self) -> int:
        """Return the number of agents that are not connected, and may connect."""
        return len(self._states) - len(self._connected) - len(self._gone)

    def _may_come_back(self, state: GenerationState) -> bool:
        return state.timer is not None

    def _token(self, worker: str, generation: int) -> str:
        """Return the token of one generation of a worker, so that no other worker or generation can act in its name."""
        return hmac.new(self._secret, f"{generation}/{worker}".encode(), "sha256").hexdigest()

    def _received(self, connection: AgentConnection, data: bytes) -> None:
        """Buffer bytes. They are handled once all readable connections have been read: alternating would be slower."""
        if not self._inbox:
            asyncio.get_running_loop().call_soon(self._take_inbox)
        now = clock.now()
        if connection.state is not None:
            connection.state.heard_at = now
        self._inbox.append((connection, data, now))

    def _take_inbox(self) -> None:
        inbox, self._inbox = self._inbox, []
        to_acknowledge: set[AgentConnection] = set()
        to_charge: list[tuple[AgentConnection, float, int]] = []  # with the seconds that passed, and the bytes
        cpu_began = time.thread_time()  # a call of the system's, which takes long: once for all
        began = passed = time.perf_counter()
        for connection, data, came_at in inbox:
            is_free = connection.state is not None and connection.state.granted > 0
            try:
                for message in connection.decoder.feed(data):
                    is_free = is_free and message["type"] in ASKED_FOR
                    self._take(connection, message, came_at)
                if is_free and connection.state is not None:
                    connection.state.granted -= len(data)
                else:
                    to_charge.append((connection, time.perf_counter() - passed, len(data)))
                if connection.state is not None and not connection.state.inbox.is_told:
                    to_acknowledge.add(connection)
            except Exception as error:  # an error of one connection does not affect the next ones
                whose, is_ours = connection.worker or "an unknown client", not isinstance(error, REFUSED)
                if is_ours:
                    logger.warning("the connection of %s was ended", whose, exc_info=error)
                else:
                    self._listener.warn("the connection of %s was ended: %s", whose, error)
                connection.abort()
            passed = time.perf_counter()
        # Other threads and processes may have run meanwhile: only this thread's time is charged, by parts of the whole.
        self._charge(to_charge, min(1.0, (time.thread_time() - cpu_began) / max(passed - began, 1e-9)))
        for connection in to_acknowledge:
            connection.acknowledge()

    def _charge(self, costs: Sequence[tuple[AgentConnection, float, int]], busy: float) -> None:
        """Charge connections for the core time that their messages took.

        Args:
            costs: each connection, with the seconds that passed over its messages, and their bytes.
            busy: the part of these seconds in which the core was used.
        """
        now, share = clock.now(), max(LEAST_SHARE, SHARE / len(self._states))
        for connection, passed, size in costs:
            if connection.state is not None and not connection.state.is_unpaced:
                connection.charge(passed * busy + size * BYTE_SECONDS, share, now)

    def _take(self, connection: AgentConnection, fields: dict[str, Any], came_at: float) -> None:
        """Handle a message: the hello of a new connection, or anything of an identified one."""
        if connection.is_dismissed:
            return
        if connection.worker is None or connection.state is None:
            self._identify(connection, fields)
            return
        if not connection.state.inbox.is_new(fields):
            return
        try:
            message = wire.from_agent(fields)
        except wire.Misfit as error:
            if fields["type"] != "report" and not isinstance(error, wire.UnknownKind):
                raise
            self._drop(connection.worker, error)  # not the agent's fault: any process of the worker may have sent it
            return
        if type(message) not in OF_CONNECTION:
            self._tell(connection.worker, message)
        elif isinstance(message, wire.Clock):
            connection.clock.answered(message, came_at)
            if connection.clock.wants_more:
                connection.ping()
            elif offset := connection.clock.news():
                self._tell(connection.worker, offset)
        elif isinstance(message, wire.Ack):
            connection.state.outbox.has(message.number)
        elif isinstance(message, wire.Leaving):
            connection.state.is_leaving = True
            connection.abort()

    def _tell(self, worker: str, message: Any) -> None:
        self._call(self.on_message, worker, message)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        """Call a callback. An exception that it raises is not the worker's fault, so that its connection stays."""
        try:
            callback(*args)
        except Exception as error:
            self.on_defect(error)

    def _identify(self, connection: AgentConnection, fields: dict[str, Any]) -> None:
        """Handle the first message of a connection, which must be a hello."""
        try:
            hello = wire.from_agent(fields)
            refusal = self._refusal(hello)
        except wire.Misfit as error:
            has_token = self._is_token(fields.get("token"), fields.get("worker"), fields.get("generation"))
            refusal = f"its hello makes no sense: {error}" if has_token else NO_TOKEN
            if has_token and fields.get("version") != wire.VERSION:
                refusal = f"another version of the protocol than {wire.VERSION}"
        if refusal:
            self._listener.warn("a connection to the session was refused: %s", refusal)
            connection.refuse(refusal)
            return
        self._listener.welcome(connection.unidentified)
        state = self._states[hello.worker]
        before, state.connection = state.connection, connection
        self._connected.add(hello.worker)
        if before is not None:
            before.abort()
        if state.timer is not None:
            state.timer.cancel()
            state.timer = None
        connection.worker, connection.state = hello.worker, state
        state.heard_at = clock.now()
        connection.decoder.limit = frames.MAX_LINE
        connection.decoder.payload_limit = frames.MAX_PAYLOAD
        self.leases.connected(hello.worker)
        state.outbox.has(hello.received)
        connection.send(wire.Welcome(state.inbox.received, self.report_seconds))
        connection.write(state.outbox.rest())
        connection.ping()
        self._call(self.on_connected, hello.worker)
        if state.hello is None:
            state.hello = hello
            self._tell(hello.worker, hello)
        else:
            logger.info("the connection of %s is back", hello.worker)
            self._call(self.on_back, hello.worker)

    def _drop(self, worker: str, error: wire.Misfit) -> None:
        """Ignore a message, and warn once for each worker, since more of the same are likely to follow."""
        if worker not in self._warned:
            self._warned.add(worker)
            logger.warning("a message of %s is dropped, and so are others like it: %s", worker, error)

    def _connection_lost(self, connection: AgentConnection) -> None:
        """Handle the end of a connection."""
        self._listener.forget(connection.unidentified)
        worker, state = connection.worker, connection.state
        if worker is None or state is None or state.connection is not connection:
            return
        state.connection = None
        self._connected.discard(worker)
        self.leases.cut(worker)
        if not self.leases.seconds or state.is_leaving or self._is_closed:
            self._lose(worker, state)
            return
        left = self.leases.seconds_left(worker)
        logger.info("the connection of %s has ended; it has %.0f s to come back", worker, left)
        state.timer = asyncio.get_running_loop().call_later(left, self._lose, worker, state)
        self._call(self.on_cut, worker)

    def _lose(self, worker: str, state: GenerationState) -> None:
        """Count a worker as lost: its lease has ended, so that nothing of it acts any more."""
        state.timer = None
        if self._states[worker] is state:
            self._end_lease(worker)
            self._call(self.on_lost, worker)

    def _end_lease(self, worker: str) -> None:
        self.leases.ended(worker)
        self._gone.add(worker)

    def _abandon(self) -> None:
        """Close the sockets in a forked child, which would otherwise keep the port and the connections open."""
        connections = [state.connection for state in self._states.values() if state.connection is not None]
        held = {connection.carrier.fileno() for connection in connections}
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in [*held, *self._listener.descriptors()]:
            if number >= 0:
                os.dup2(nowhere, number)  # not closed: the owning object would close the same number again later
        os.close(nowhere)

    def _refusal(self, hello: Any) -> str | None:
        """Return why a hello is refused; None if it is not. Says nothing about the run before the token is right."""
        if not isinstance(hello, wire.Hello) or not self._is_token(hello.token, hello.worker, hello.generation):
            return NO_TOKEN
        if hello.version != wire.VERSION:
            return f"protocol version {hello.version} instead of {wire.VERSION}"
        state = self._states[hello.worker]
        refusal = self.leases.refusal(hello.worker, hello.generation)
        if refusal or state.hello is None:
            return refusal
        if state.connection is not None and not self.leases.seconds:
            return f"worker {hello.worker!r} is connected already"
        if hello.pid != state.hello.pid:
            return f"another agent of {hello.worker!r} was here before"
        return None

    def _is_token(self, token: object, worker: object, generation: object) -> bool:
        if not isinstance(token, str) or not isinstance(worker, str) or worker not in self._states:
            return False
        right = self._token(worker, generation if isinstance(generation, int) else 0)
        return hmac.compare_digest(token.encode("utf-8", "surrogatepass"), right.encode())


_endpoints: weakref.WeakSet[Endpoint] = weakref.WeakSet()


def _abandon_endpoints() -> None:
    for session in list(_endpoints):
        session._abandon()


in_forked_children(_abandon_endpoints)
