"""Scripted workers: what speaks to a session as a worker's agent does, and does whatever a test wants it to."""

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
    """The part of a loop that the agent's side of a transfer uses."""

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        asyncio.get_running_loop().call_later(delay, call)


@dataclass
class Behaviour:
    """Behaviour of a worker with which no test interferes. Times are in seconds; None stands for never.

    Attributes:
        hello_after: when it says hello, counted from its launch.
        hello: what it says differently in its hello.
        starts_after: how long after its order a process runs.
        runs_for: how long each process takes, until it exits with status 0.
        listens_after: how long after it is asked to watch a port something listens on it.
        stops_after: how long its processes take to end when they are asked to.
        leaves_after: how long it takes to leave when it is told to.
        deaf_to: types of orders that it does not hear.
        clocks_ahead: how many seconds its clocks are ahead of the session's.
        is_stopped: what it says of its processes when it is asked for their stacks.
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
    """One worker: its agent, and the processes that it would have.

    It speaks through the real encoder and decoder, over whatever network its event loop has.

    Args:
        name: its name in the run.

    Attributes:
        behaviour: how it behaves by itself.
        orders: every message that the session has sent it, in order: its type and the fields.
        runs_launcher: whether a launcher runs here.
        running: its processes: pid by rank (None where there are no ranks).
        on_order: called with each of them.
        places: folders of its own by the name of the place, such as "run" and "library", where its platform shares
            nothing with the session.
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
        self._kept: list[bytes] = []  # what it says while its connection is cut
        self._files: Files | None = None
        self._dialling: asyncio.Task[None] | None = None

    @property
    def is_connected(self) -> bool:
        """True if its connection to the session is open."""
        return self._transport is not None and not self._transport.is_closing()

    def order_types(self) -> list[str]:
        """The types of all orders that it was sent, in order."""
        return [kind for kind, _ in self.orders]

    # -- faults, and other actions of a test --------------------------------------------------------------------------

    def launch(self, spec: WorkerSpec) -> None:
        """Launch it: it dials the session and says hello, after the time that its behaviour give."""
        self._spec = spec
        self._inbox, self._kept, self._is_cut = Inbox(), [], False  # it may be another generation of it
        self._later(self.behaviour.hello_after, self.dial)

    def dial(self) -> None:
        """Connect to the session, and say hello; also once more, after its connection has been cut.

        Does nothing before it has been launched.
        """
        if self._spec is None:
            return
        self._dialling = asyncio.get_running_loop().create_task(self._dial())

    def say(self, kind: str, **fields: Any) -> None:
        """Send a message, whether or not it makes sense."""
        self.send(frames.encode(kind, **fields))

    def send(self, data: bytes) -> None:
        """Send bytes, which need not be a message."""
        if self._is_cut:
            self._kept.append(data)
        elif self._transport is not None:
            self._transport.write(data)

    def report(self, kind: str, **fields: Any) -> None:
        """Pass on a report, as from ``muster.training`` in one of its processes."""
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
        """End a process: with a status, or by a signal. Does nothing where it does not run."""
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
        """End the launcher that runs here: with a status, or by a signal. Does nothing where none does."""
        if self.runs_launcher:
            self.runs_launcher = False
            self.say("launcher_exited", exit_code=None if signal else code, signal=signal)

    def raise_exception(self, type: str = "ValueError", message: str = "it went wrong", rank: Rank = None) -> None:
        """Have a script raise, and its process exit with status 1 a moment later."""
        trace = f"Traceback (most recent call last):\n{type}: {message}"
        self.report("exception", type=type, message=message, traceback=trace, rank=rank, **self._clocks())
        self._later(0.05, self.exit, 1, rank)

    def cut(self) -> None:
        """Cut its connection; its processes go on, and its messages are kept until it dials again."""
        self._is_cut = True
        if self._transport is not None:
            self._transport.abort()

    def hang_up(self) -> None:
        """End its connection, and its processes with it; as when its agent is killed."""
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
        """Called when it is connected."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when its session has gone: its processes end, too, unless it was cut off."""
        if not self._is_cut:
            self.running.clear()

    def data_received(self, data: bytes) -> None:
        """Called when orders have come."""
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
