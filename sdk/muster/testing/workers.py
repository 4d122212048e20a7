"""Scripted workers: they speak to a session like a worker's agent, and behave as a test tells them to."""

from __future__ import annotations

import asyncio
import signal as signals
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from muster.agent import frames, wire
from muster.agent.files import Files
from muster.agent.outbox import Inbox
from muster.job import WorkerSpec
from muster.runtime import clock
from muster.testing.loop import SimulatedLoop

Rank = int | None
HOST_KEY = "ssh-ed25519 " + "A" * 68

FILE_ORDERS = frozenset(["put", "get", "find", "sync", "have", "missing", "chunk"])


class _FilesLoop:
    """The part of an event loop's interface that the agent's side of a transfer uses."""

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(delay, call)


@dataclass
class Behaviour:
    """Behaviour of a worker as long as a test does not interfere. Times are in seconds; None stands for never.

    Attributes:
        hello_after: time from its launch to its hello.
        hello: fields that replace those of its hello.
        starts_after: time from an order to start a process until the process runs.
        runs_for: time that each process runs, until it exits with status 0.
        listens_after: time from an order to watch a port until something listens on it.
        stops_after: time that its processes take to end when they are asked to.
        leaves_after: time from the order to end until it disconnects.
        deaf_to: types of orders that it ignores.
        clocks_ahead: how many seconds its clocks are ahead of the session's.
        is_stopped: ``is_stopped`` of its answers when it is asked for stacks.
    """

    hello_after: float | None = 0.1
    hello: dict[str, Any] = field(default_factory=dict)
    starts_after: float | None = 0.1
    runs_for: float | None = 10.0
    listens_after: float | None = 0.1
    stops_after: float | None = 0.1
    leaves_after: float | None = 0.1
    deaf_to: frozenset[str] = frozenset()
    clocks_ahead: float = 0.0
    is_stopped: bool = False


class ScriptedWorker(asyncio.Protocol):
    """One simulated worker: its agent, and the agent's processes.

    It uses the real encoder and decoder, over the network of its event loop, simulated or real.

    Args:
        name: its name in the run.

    Attributes:
        behaviour: how it behaves by itself.
        orders: every message that the session has sent it, in order: the message's type and its fields.
        runs_launcher: whether a launcher runs here.
        running: its processes: pid by rank (None if there are no ranks).
        on_order: called with the type and the fields of each order.
        places: its own folders by the name of the place, such as "run" and "library", if its platform shares no files
            with the session.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.behaviour = Behaviour()
        self.orders: list[tuple[str, dict[str, Any]]] = []
        self.running: dict[Rank, int] = {}
        self.on_order: Callable[[str, dict[str, Any]], object] = lambda kind, fields: None
        self.runs_launcher = False
        self._expected: dict[str, Any] | None = None
        self._decoder = frames.Decoder(limit=None)
        self._transport: asyncio.Transport | None = None
        self._pid = 100
        self.places: dict[str, str] = {}
        self._spec: WorkerSpec | None = None
        self._inbox = Inbox()
        self._is_cut = False
        self._kept: list[bytes] = []  # messages to send once its connection is no longer cut
        self._files: Files | None = None
        self._dialling: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """True if its connection to the session is open."""
        return self._transport is not None and not self._transport.is_closing()

    def order_types(self) -> list[str]:
        """Return the types of all orders that it was sent, in order."""
        return [kind for kind, _ in self.orders]

    # -- faults, and other actions of a test --------------------------------------------------------------------------

    def launch(self, spec: WorkerSpec) -> None:
        """Launch the worker: it connects to the session and says hello, after the time that its behaviour gives."""
        self._spec = spec
        self._inbox, self._kept, self._is_cut = Inbox(), [], False  # this may be another generation of the worker
        self._later(self.behaviour.hello_after, self.dial)

    def dial(self) -> None:
        """Connect to the session and say hello, for the first time or after the connection has been cut.

        Does nothing before the worker has been launched.
        """
        if self._spec is None:
            return
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message, valid or not."""
        self.send(frames.encode(kind, **fields))

    def send(self, data: bytes) -> None:
        """Send bytes, which need not be a message; keep them while the connection is cut."""
        if self._is_cut:
            self._kept.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def report(self, kind: str, **fields: Any) -> None:
        """Forward a report to the session, as from ``muster.training`` in one of the worker's processes."""
        self.say("report", report={"kind": kind, **fields})

    def start(self, rank: Rank = None) -> None:
        """Start a process."""
        self._pid += 1
        self.running[rank] = self._pid
        self.say("started", pid=self._pid, rank=rank)
        self._later(self.behaviour.runs_for, self._exit_of, rank, self._pid)

    def exit(
        self,
        code: int = 0,
        rank: Rank = None,
        *,
        signal: int | None = None,
        reason: str | None = None,
        memory: int | None = None,
    ) -> None:
        """End a process, with a status or by a signal; do nothing if it is not running."""
        pid = self.running.pop(rank, None)
        if pid is not None:
            exit_code = None if signal else code
            self.say(
                "exited",
                pid=pid,
                rank=rank,
                exit_code=exit_code,
                signal=signal,
                reason=reason,
                memory=memory,
                **self._clocks(),
            )

    def end_launcher(self, code: int = 0, *, signal: int | None = None) -> None:
        """End the launcher that runs here, with a status or by a signal; do nothing if there is none."""
        if self.runs_launcher:
            self.runs_launcher = False
            self.say("launcher_exited", exit_code=None if signal else code, signal=signal)

    def raise_exception(self, type: str = "ValueError", message: str = "it went wrong", rank: Rank = None) -> None:
        """Report an exception of a script, whose process exits with status 1 a moment later."""
        trace = f"Traceback (most recent call last):\n{type}: {message}"
        self.report("exception", type=type, message=message, traceback=trace, rank=rank, **self._clocks())
        self._later(0.05, self.exit, 1, rank)

    def cut(self) -> None:
        """Cut the connection; processes go on, and messages are kept until the worker connects again."""
        self._is_cut = True
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """End the connection and all processes, as when the agent is killed."""
        self.running.clear()
        if self._transport is not None:
            self._transport.abort()

    # -- good behaviour -----------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        assert self._spec is not None, "it has been launched"
        address = self._spec.session
        assert address is not None, "a worker that a run has launched has a session"
        loop = asyncio.get_running_loop()
        context = None if isinstance(loop, SimulatedLoop) else _tls(address.certificate)
        try:
            await loop.create_connection(lambda: self, address.host, address.port, ssl=context)
        except OSError:  # the session has gone
            return
        self._is_cut = False
        self.say("hello", **{**self._hello(self._spec), "token": address.token, **self.behaviour.hello})
        while self._kept:
            self.send(self._kept.pop(0))

    def _hello(self, spec: WorkerSpec) -> dict[str, Any]:
        return {
            "version": wire.VERSION,
            "worker": self.name,
            "generation": spec.generation,
            "pid": 100,
            "received": self._inbox.received,
            "host": "127.0.0.1",
            "ports": list(range(2300, 2300 + spec.ports)),
            "ssh_port": 2222 if spec.ssh else None,
            "host_key": HOST_KEY if spec.ssh else None,
            "interfaces": ["lo"],
            "cores": 1,
            "gpus": [],
            "python": "3.11.0",
        }

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called when the worker is connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the connection has ended: the processes end, too, unless the connection was cut."""
        if not self._is_cut:
            self.running.clear()

    def data_received(self, data: bytes) -> None:
        """Called when orders have arrived."""
        for message in self._decoder.feed(data):
            if not self._inbox.is_new(message):
                continue
            message.pop("n", None)
            if message["type"] in FILE_ORDERS:
                self._take_file_order(message)
                continue
            kind = message.pop("type")
            self.orders.append((kind, message))
            self.on_order(kind, message)
            if kind not in self.behaviour.deaf_to:
                getattr(self, "_on_" + kind, lambda **_: None)(**message)
        self._acknowledge()

    def _acknowledge(self) -> None:
        said = self._inbox.acknowledgement()
        if said is not None:
            self.send(wire.encode(said))

    def _take_file_order(self, message: dict[str, Any]) -> None:
        if self._files is None:
            self._files = Files(_FilesLoop(), lambda said: self.send(wire.encode(said)), self.places)  # type: ignore[arg-type]
        getattr(self._files, message["type"])(wire.from_session(message))

    def _on_ping(self, number: int, **_: Any) -> None:
        self.say("clock", number=number, **self._clocks())

    def _clocks(self) -> dict[str, float]:
        ahead = self.behaviour.clocks_ahead
        return {"monotonic": clock.now() + ahead, "time": clock.wall_time() + ahead}

    def _on_start(self, rank: Rank = None, **_: Any) -> None:
        self._later(self.behaviour.starts_after, self.start, rank)

    def _on_watch(self, port: int, **_: Any) -> None:
        self._later(self.behaviour.listens_after, lambda: self.say("listening", port=port))

    def _on_launch(self, **_: Any) -> None:
        self.runs_launcher = True
        self.say("launcher_output", text="ready\n")

    def _on_stop_launcher(self, grace: float = 0.0, **_: Any) -> None:
        takes = self.behaviour.stops_after
        number = signals.SIGTERM if takes is not None and takes <= grace else signals.SIGKILL
        self._later(grace if takes is None else min(takes, grace), partial(self.end_launcher, signal=int(number)))

    def _on_stacks(self, **_: Any) -> None:
        for rank in self.running:
            self.say("stacks", rank=rank, text=f"stack of {self.name}", is_stopped=self.behaviour.is_stopped)

    def _on_release(self, **_: Any) -> None:
        pass

    def _on_stop(self, grace: float = 0.0, **_: Any) -> None:
        for rank, pid in list(self.running.items()):
            takes = self.behaviour.stops_after
            if takes is not None and takes <= grace:
                self._later(takes, self._stop_of, rank, pid, signals.SIGTERM)
            else:
                self._later(grace, self._stop_of, rank, pid, signals.SIGKILL)

    def _on_end(self, **_: Any) -> None:
        self._later(self.behaviour.leaves_after, self.hang_up)

    def _exit_of(self, rank: Rank, pid: int) -> None:
        if self.running.get(rank) == pid:
            self.exit(0, rank)

    def _stop_of(self, rank: Rank, pid: int, signal: int) -> None:
        if self.running.get(rank) == pid:
            self.exit(rank=rank, signal=int(signal), reason="stopped")

    def _later(self, seconds: float | None, function: Callable[..., object], *args: Any) -> None:
        if seconds is not None:
            asyncio.get_running_loop().call_later(seconds, function, *args)


def _tls(certificate: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # this one certificate is trusted, whatever its name
    context.load_verify_locations(cadata=certificate)
    return context
