"""Measure one session with 1,000 workers, each of which reports progress every two seconds; and with 10,000.

The workers are simulated: their agents' side of the connections, over TLS, runs in a few processes, on a platform that
launches nothing else; the session is a real one, with a cluster's journal. Baseline: a bare asyncio TLS server that
receives the same messages, parses their JSON and discards them. It wakes up for each message, while Muster's session,
with so many connections, wakes up twenty times a second for all. Also measured, as often, are messages about what
processes use and print, which real agents send. Of 10,000 workers each reports as often as the session asks for, every
twenty seconds; in the end one of them fails, and all are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import multiprocessing
import random
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from muster.agent import frames, wire
from muster.errors import RunFailed
from muster.events import Event
from muster.job import Job, SessionAddress, Status, Worker, WorkerSpec
from muster.platforms.base import Platform
from muster.pools.endpoint import REPORTS_PER_SECOND
from muster.run.cluster import Cluster
from muster.security.certificates import make_certificate

from benchmarks.idle import Idle
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home

PROCESSES = 3  # processes that the simulated agents share
SETTLE_SECONDS = 1.0  # time until every agent has reported once
START_SECONDS = 600.0
AT_ONCE = 100  # agents of one process that connect at the same time
LIMIT = 10  # percent of one core
STATUS = 3  # exit status of the rank that fails
PROGRESS = ("progress",)
EVERYTHING = ("progress", "usage", "output")


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and the bare server by turns, with progress reports alone and with everything that agents send."""
    workers, seconds = (100, 1) if quick else (1000, 20)
    contenders: dict[tuple[str, Sequence[str]], Callable[[], dict[str, float]]] = {
        (side.__name__, reports): functools.partial(fresh, side, workers, seconds, reports)
        for reports in (PROGRESS, EVERYTHING)
        for side in (muster, bare)
    }
    with private_home():
        taken = by_turns(1 if quick else 3, contenders)

    def figure(what: str, unit: str, key: str, reports: Sequence[str], target: Target | None = None) -> Figure:
        values, floor_values = ([one[key] for one in taken[name, reports]] for name in ("muster", "bare"))
        return Figure(f"{workers:,} workers: {what}", unit, values, "bare TLS server", floor_values, target)

    of_thousand = [
        figure("all connected", "s", "ready", PROGRESS),
        figure(
            f"a core's share, for {REPORTS_PER_SECOND} progress reports a second",
            "%",
            "cpu",
            PROGRESS,
            Target(LIMIT, "%"),
        ),
        figure("the same, with usage and a line of output for each report", "%", "cpu", EVERYTHING),
        figure("memory that the session has gained", "MB", "memory", PROGRESS),
    ]
    return of_thousand + ([] if quick else measure_many(10_000, seconds))


def measure_many(workers: int, seconds: float) -> list[Figure]:
    """Return the figures of ``workers`` workers, one of which fails at the end."""
    with private_home():
        taken = by_turns(
            2, {side: functools.partial(fresh, side, workers, seconds, PROGRESS) for side in (muster, bare)}
        )

    def figure(what: str, unit: str, key: str, target: Target | None, has_floor: bool = True) -> Figure:
        values, floor_values = ([one.get(key, 0.0) for one in taken[side]] for side in (muster, bare))
        floor: tuple[str, list[float]] = ("bare TLS server", floor_values) if has_floor else ("", [])
        return Figure(f"{workers:,} workers: {what}", unit, values, *floor, target)

    return [
        figure("all connected", "s", "ready", Target(1.2)),
        figure(f"a core's share, for {REPORTS_PER_SECOND} progress reports a second", "%", "cpu", Target(LIMIT, "%")),
        figure("memory that the session has gained", "MB", "memory", Target(600, "MB")),
        figure("one fails: until it is told", "s", "told", Target(1, "s"), has_floor=False),
        figure("one fails: until all others have been told to stop", "s", "stopped", Target(2, "s")),
    ]


def muster(workers: int, seconds: float, reports: Sequence[str]) -> dict[str, float]:
    """Return the figures of a session with a cluster as users start it; at the end one of its workers fails."""
    entered: dict[str, float] = {}
    taken = 0
    told = 0.0

    def observe(event: Event) -> None:
        nonlocal taken, told
        if event.kind == "run_phase":
            entered.setdefault(event.data["phase"], event.time)
        taken += event.kind == "progress"
        if event.kind == "process_exited" and event.data["exit_code"] == STATUS:
            told = time.time()

    with simulated_agents(workers, reports) as channels:
        memory = resident()
        started = time.time()
        cluster = Cluster(
            Job(None, workers),
            strategy=Idle(),
            platform=Simulated(channels),
            observers=[observe],
            timeout_seconds=START_SECONDS,
        )
        with contextlib.suppress(RunFailed), cluster:
            cpu = share_of_core(workers, seconds, lambda: taken)
            figures = {"ready": entered["starting"] - started, "cpu": cpu, "memory": resident() - memory}
            failed = time.time()
            channels[0].send(STATUS)
            cluster.wait()
        figures["told"] = told - failed
        figures["stopped"] = max(channel.recv() for channel in channels) - failed
        return figures


def bare(workers: int, seconds: float, reports: Sequence[str]) -> dict[str, float]:
    """Return the same figures of a server that only parses the messages that arrive."""

    async def serve(channels: Sequence[Connection]) -> dict[str, float]:
        memory = resident()
        started = time.time()
        server = BareServer(workers)
        address = await server.open()
        send_specs(channels, [(f"worker-{index}", address) for index in range(workers)])
        await server.all_here
        ready = time.time() - started
        cpu = await asyncio.to_thread(share_of_core, workers, seconds, lambda: server.taken)
        figures = {"ready": ready, "cpu": cpu, "memory": resident() - memory, "ordered": time.time()}
        await server.stop()
        server.close()
        return figures

    with simulated_agents(workers, reports) as channels:
        figures = asyncio.run(serve(channels))
        figures["stopped"] = max(channel.recv() for channel in channels) - figures.pop("ordered")
        return figures


def share_of_core(workers: int, seconds: float, taken: Callable[[], int]) -> float:
    """Return the percentage of a core that this process needs for as many reports a second as it asks for.

    It is computed from the CPU time per report that arrived: on a busy machine the agents may not manage all.
    """
    time.sleep(SETTLE_SECONDS)
    cpu, before = time.process_time(), taken()
    time.sleep(seconds)
    return 100 * (time.process_time() - cpu) * min(workers, REPORTS_PER_SECOND) / (taken() - before)


def resident() -> float:
    """Return this process's resident memory in MB."""
    return psutil.Process().memory_info().rss / 1e6


class Simulated(Platform):
    """A platform whose workers are simulated agents, which only speak the protocol with the session."""

    name = "simulated"

    def __init__(self, channels: Sequence[Connection]) -> None:
        self._channels = channels
        self._workers: list[Worker] = []

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Tell the processes which agents to simulate."""
        self._workers = [Worker(spec.name, spec.name, Status.STARTING) for spec in specs]
        send_specs(self._channels, [(spec.name, spec.session) for spec in specs if spec.session])
        return [spec.name for spec in specs]

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as starting: their state never changes. Making them anew is no work of the session's."""
        return self._workers

    def reattach(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers, as ``poll`` does."""
        return self.poll(handles)

    def stop(self, handles: Sequence[str]) -> None:
        """Do nothing: the workers end by themselves, with the session."""

    def list(self) -> list[Worker]:
        """Return all workers."""
        return self._workers

    def logs(self, handle: str) -> Iterator[str]:
        """Return no lines."""
        return iter(())


class BareServer:
    """A TLS server that sends agents the messages that they wait for, and parses theirs."""

    def __init__(self, workers: int) -> None:
        self._workers = self._missing = workers
        self.taken = 0  # progress reports
        self._transports: list[asyncio.Transport] = []
        self._running = workers
        self.all_here: asyncio.Future[None]
        self._all_ended: asyncio.Future[None]

    async def open(self) -> SessionAddress:
        """Start to listen, and return the address."""
        loop = asyncio.get_running_loop()
        self.all_here, self._all_ended = loop.create_future(), loop.create_future()
        certificate, key = make_certificate("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.pem"
            path.write_text(key + certificate)
            context.load_cert_chain(path)
        server = await loop.create_server(lambda: _BareConnection(self), "127.0.0.1", 0, ssl=context, backlog=1024)
        return SessionAddress("127.0.0.1", server.sockets[0].getsockname()[1], certificate, "")

    def hello(self, transport: asyncio.Transport) -> None:
        """Welcome an agent that has said hello, and order it to start."""
        self._transports.append(transport)
        self._missing -= 1
        transport.write(frames.encode("welcome", interval=max(1.0, self._workers / REPORTS_PER_SECOND)))
        transport.write(frames.encode("start"))
        if not self._missing:
            self.all_here.set_result(None)

    async def stop(self) -> None:
        """Order all agents to stop their processes, and wait until they have."""
        for transport in self._transports:
            transport.write(frames.encode("stop"))
        await self._all_ended

    def exited(self) -> None:
        """Take the message that an agent's process has ended."""
        self._running -= 1
        if not self._running:
            self._all_ended.set_result(None)

    def close(self) -> None:
        """End all connections."""
        for transport in self._transports:
            transport.abort()


class _BareConnection(asyncio.Protocol):
    def __init__(self, server: BareServer) -> None:
        self._server = server
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            kind = json.loads(line)["type"]
            if kind == "hello":
                self._server.hello(self._transport)
            elif kind == "exited":
                self._server.exited()
            self._server.taken += kind == "report"


@contextlib.contextmanager
def simulated_agents(workers: int, reports: Sequence[str]) -> Iterator[list[Connection]]:
    """Run processes that simulate agents, and yield a channel to each, on which it waits for its agents' names."""
    spawn = multiprocessing.get_context("spawn")
    channels, processes = [], []
    for _ in range(PROCESSES):
        ours, theirs = spawn.Pipe()
        processes.append(spawn.Process(target=be_agents, args=(theirs, reports), daemon=True))
        processes[-1].start()
        channels.append(ours)
    for channel in channels:
        channel.recv()  # it has imported everything
    try:
        yield channels
    finally:
        for process in processes:
            process.join(10)
            process.kill()
            process.join()


def send_specs(channels: Sequence[Connection], agents: Sequence[tuple[str, SessionAddress]]) -> None:
    """Distribute the agents among the processes."""
    for index, channel in enumerate(channels):
        channel.send(agents[index :: len(channels)])


def be_agents(channel: Connection, reports: Sequence[str]) -> None:
    """Simulate the agents whose names arrive on the channel, until all have been told to end.

    Rank 0, if its agent is among them, fails with the exit status that arrives on the channel later. At the end, the
    time at which the last of the agents was told to stop is sent on the channel.
    """
    channel.send("ready")
    agents: list[tuple[str, SessionAddress]] = channel.recv()
    orders = Orders()

    async def all_of_them() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=agents[0][1].certificate)
        asyncio.get_running_loop().add_reader(channel.fileno(), lambda: orders.fail(channel.recv()))
        await asyncio.gather(*(live(name, address, context, reports, orders) for name, address in agents))

    asyncio.run(all_of_them())
    channel.send(orders.stopped_at)


class Orders:
    """Orders that the agents of one process have received.

    Attributes:
        fail: function that makes rank 0 fail with an exit status, if its agent is among them.
        stopped_at: when the last of them was told to stop, for the first time, in seconds since 1970; 0.0 if none was.
        may_connect: held by agents while they connect. They share a process, unlike real agents: if too many connected
            at once, each could take longer than the session allows.
    """

    def __init__(self) -> None:
        self.may_connect = asyncio.Semaphore(AT_ONCE)
        self.fail: Callable[[int], None] = lambda status: None
        self.stopped_at = 0.0


async def live(
    name: str, address: SessionAddress, context: ssl.SSLContext, reports: Sequence[str], orders: Orders
) -> None:
    """Simulate one agent with the process of one rank, from its hello until it is told to end."""
    async with orders.may_connect:
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)

    def say(kind: str, **fields: Any) -> None:
        writer.write(frames.encode(kind, **fields))

    say("hello", version=wire.VERSION, token=address.token, worker=name, pid=1, host="127.1.1.1", ports=[], cores=1)

    has_ended = False

    def end(status: int | None) -> None:
        nonlocal has_ended
        if not has_ended:
            has_ended = True
            facts = {"exit_code": status} if status else {"signal": 15, "reason": "stopped"}
            say("exited", pid=1, rank=rank, **facts)

    rank = int(name.rpartition("-")[2])
    interval = 1.0
    reporting: asyncio.Task[None] | None = None
    with contextlib.suppress(OSError):
        async for line in reader:
            message = json.loads(line)
            kind = message["type"]
            if kind == "welcome":
                interval = message["interval"]
            elif kind == "start":
                say("started", pid=1, rank=rank)
                reporting = asyncio.ensure_future(report_repeatedly(say, rank, reports, interval))
                if not rank:
                    orders.fail = end
            elif kind == "stop":
                if not has_ended:
                    orders.stopped_at = time.time()
                end(None)
            elif kind == "end":
                break
    if reporting:
        reporting.cancel()
    writer.transport.abort()


async def report_repeatedly(say: Callable[..., None], rank: int, reports: Sequence[str], interval: float) -> None:
    """Send progress, usage and output every ``interval`` seconds, as real agents do."""
    await asyncio.sleep(interval * random.random())  # so that not all agents report at the same moment
    for step in range(1, 1 << 30):
        if "progress" in reports:
            metrics = {"loss": 1 / step, "accuracy": 0.5}
            counts = {"step": step, "steps": 1000, "epoch": 1, "epochs": 10, "examples": 32 * step}
            say("report", report={"kind": "progress", "time": time.time(), "rank": rank, **counts, "metrics": metrics})
        if "usage" in reports:
            say("usage", cpu=0.987, memory=612345678)
        if "output" in reports:
            say("output", text=f"step {step}: loss {1 / step:.4f}\n")
        await asyncio.sleep(interval)


if __name__ == "__main__":
    main("thousand_agents")
