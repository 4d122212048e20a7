"""One session with 1,000 workers, each of which reports progress once a second.

The workers are simulated: their agents' side of the wire, over TLS, in a few processes, on a platform that launches
nothing else; the session is Muster's own, with a cluster's journal. Floor: a bare asyncio TLS server that takes the
same messages, parses their JSON, and does nothing with them; it wakes up for each, where Muster's session, with so many
connections, wakes up twenty times a second for all. Real agents also send what their processes use and print:
measured as well, once a second each.
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
from muster.events import Event
from muster.job import Job, SessionAddress, Status, Worker, WorkerSpec
from muster.platforms.base import Platform
from muster.run.cluster import Cluster
from muster.security.certificates import make_certificate

from benchmarks.idle import Idle
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home

PROCESSES = 3  # that the simulated agents live in
SETTLE_SECONDS = 1.0  # until every agent has reported once
LIMIT = 10  # percent of one core
PROGRESS = ("progress",)
EVERYTHING = ("progress", "usage", "output")


def measure(quick: bool) -> list[Figure]:
    """Muster and the bare server by turns, with progress reports alone and with everything that agents send."""
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

    return [
        figure("all connected", "s", "ready", PROGRESS),
        figure("a core's share, for a progress report each a second", "%", "cpu", PROGRESS, Target(LIMIT, "%")),
        figure("the same, with usage and a line of output each a second", "%", "cpu", EVERYTHING),
        figure("memory that the session has gained", "MB", "memory", PROGRESS),
    ]


def muster(workers: int, seconds: float, reports: Sequence[str]) -> dict[str, float]:
    """The session's figures, with a cluster as users start it."""
    entered: dict[str, float] = {}
    taken = 0

    def observe(event: Event) -> None:
        nonlocal taken
        if event.kind == "run_phase":
            entered.setdefault(event.data["phase"], event.time)
        taken += event.kind == "progress"

    with simulated_agents(workers, reports) as channels:
        memory = resident()
        started = time.time()
        with Cluster(Job(None, workers), strategy=Idle(), platform=Simulated(channels), observers=[observe]):
            cpu = share_of_core(workers, seconds, lambda: taken)
            return {"ready": entered["starting"] - started, "cpu": cpu, "memory": resident() - memory}


def bare(workers: int, seconds: float, reports: Sequence[str]) -> dict[str, float]:
    """The same figures of a server that only parses what comes."""

    async def serve(channels: Sequence[Connection]) -> dict[str, float]:
        memory = resident()
        started = time.time()
        server = BareServer(workers)
        address = await server.open()
        send_specs(channels, [(f"worker-{index}", address) for index in range(workers)])
        await server.all_here
        ready = time.time() - started
        cpu = await asyncio.to_thread(share_of_core, workers, seconds, lambda: server.taken)
        server.close()
        return {"ready": ready, "cpu": cpu, "memory": resident() - memory}

    with simulated_agents(workers, reports) as channels:
        return asyncio.run(serve(channels))


def share_of_core(workers: int, seconds: float, taken: Callable[[], int]) -> float:
    """Percent of one core that this process needs for one progress report of each worker a second.

    Measured for each report that came: on a busy machine the agents may not manage all.
    """
    time.sleep(SETTLE_SECONDS)
    cpu, before = time.process_time(), taken()
    time.sleep(seconds)
    return 100 * (time.process_time() - cpu) * workers / (taken() - before)


def resident() -> float:
    """This process's resident memory in MB."""
    return psutil.Process().memory_info().rss / 1e6


class Simulated(Platform):
    """Workers that are nothing but their agents' side of the wire."""

    name = "simulated"

    def __init__(self, channels: Sequence[Connection]) -> None:
        self._channels = channels
        self._workers: list[Worker] = []

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Tell the processes which agents to be."""
        self._workers = [Worker(spec.name, spec.name, Status.STARTING) for spec in specs]
        send_specs(self._channels, [(spec.name, spec.session) for spec in specs if spec.session])
        return [spec.name for spec in specs]

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Nothing ever happens to them."""
        return [Worker(handle, handle, Status.STARTING) for handle in handles]

    def reattach(self, handles: Sequence[str]) -> list[Worker]:
        """Nothing has to be done."""
        return self.poll(handles)

    def stop(self, handles: Sequence[str]) -> None:
        """They end by themselves, with the session."""

    def list(self) -> list[Worker]:
        """All of them."""
        return self._workers

    def logs(self, handle: str) -> Iterator[str]:
        """None."""
        return iter(())


class BareServer:
    """A TLS server that says what agents wait for, and parses what they say."""

    def __init__(self, workers: int) -> None:
        self._missing = workers
        self.taken = 0  # progress reports
        self._transports: list[asyncio.Transport] = []
        self.all_here: asyncio.Future[None]

    async def open(self) -> SessionAddress:
        """Listen, and return where."""
        loop = asyncio.get_running_loop()
        self.all_here = loop.create_future()
        certificate, key = make_certificate("127.0.0.1")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.pem"
            path.write_text(key + certificate)
            context.load_cert_chain(path)
        server = await loop.create_server(lambda: _BareConnection(self), "127.0.0.1", 0, ssl=context, backlog=1024)
        return SessionAddress("127.0.0.1", server.sockets[0].getsockname()[1], certificate, "")

    def hello(self, transport: asyncio.Transport) -> None:
        """One more is here."""
        self._transports.append(transport)
        self._missing -= 1
        transport.write(frames.encode("start"))
        if not self._missing:
            self.all_here.set_result(None)

    def close(self) -> None:
        """Hang up on all."""
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
            self._server.taken += kind == "report"


@contextlib.contextmanager
def simulated_agents(workers: int, reports: Sequence[str]) -> Iterator[list[Connection]]:
    """Processes that wait for the names of the agents they are to be, on a channel each."""
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
    """Share the agents out among the processes."""
    for index, channel in enumerate(channels):
        channel.send(agents[index :: len(channels)])


def be_agents(channel: Connection, reports: Sequence[str]) -> None:
    """Be some agents, from the moment that their names are known until the session hangs up."""
    channel.send("ready")
    agents: list[tuple[str, SessionAddress]] = channel.recv()

    async def all_of_them() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=agents[0][1].certificate)
        await asyncio.gather(*(live(name, address, context, reports) for name, address in agents))

    asyncio.run(all_of_them())


async def live(name: str, address: SessionAddress, context: ssl.SSLContext, reports: Sequence[str]) -> None:
    """One agent with one process of one rank, from its hello until it is told to end."""
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=context)

    def say(kind: str, **fields: Any) -> None:
        writer.write(frames.encode(kind, **fields))

    say("hello", version=wire.VERSION, token=address.token, worker=name, pid=1, host="127.1.1.1", ports=[], cores=1)
    rank = int(name.rpartition("-")[2])
    reporting: asyncio.Task[None] | None = None
    with contextlib.suppress(OSError):
        async for line in reader:
            kind = json.loads(line)["type"]
            if kind == "start":
                say("started", pid=1, rank=rank)
                reporting = asyncio.ensure_future(report_every_second(say, rank, reports))
            elif kind == "stop":
                say("exited", pid=1, rank=rank, exit_code=None, signal=15, reason="stopped")
            elif kind == "end":
                break
    if reporting:
        reporting.cancel()
    writer.transport.abort()


async def report_every_second(say: Callable[..., None], rank: int, reports: Sequence[str]) -> None:
    """Progress, what the process uses, and what it prints, as real agents send them."""
    await asyncio.sleep(random.random())  # not all at the same moment
    for step in range(1, 1 << 30):
        if "progress" in reports:
            metrics = {"loss": 1 / step, "accuracy": 0.5}
            counts = {"step": step, "steps": 1000, "epoch": 1, "epochs": 10, "examples": 32 * step}
            say("report", report={"kind": "progress", "time": time.time(), "rank": rank, **counts, "metrics": metrics})
        if "usage" in reports:
            say("usage", cpu=0.987, memory=612345678)
        if "output" in reports:
            say("output", text=f"step {step}: loss {1 / step:.4f}\n")
        await asyncio.sleep(1)


if __name__ == "__main__":
    main("thousand_agents")
