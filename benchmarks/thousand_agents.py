"""Measure one session with 1,000 workers, each of which reports progress every two seconds; and with 10,000.

The workers are simulated: their agents' side of the connections, over TLS, runs in a few processes, on a platform that
launches nothing else; the session is a real one, with a cluster's journal. Baseline: a bare asyncio TLS server that
receives the same messages, parses their JSON and discards them. It wakes up for each message, while Muster's session,
with so many connections, wakes up twenty times a second for all. Also measured, as often, are messages about what
processes use and print, which real agents send. Of 10,000 workers each reports as often as the session asks for, every
twenty seconds; in the end the process of one of them fails, and all are stopped. From when its agent knows, it is
measured until an observer, on a thread of its own, has the event that names worker and status; until the last of all
other agents has the order to stop; and until ``wait()`` raises the error that names the worker, when all have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import ssl
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
from muster.agent import frames
from muster.errors import RunFailed
from muster.events import Event
from muster.job import Job, SessionAddress
from muster.pools.endpoint import REPORTS_PER_SECOND
from muster.run.cluster import Cluster
from muster.security.certificates import make_certificate

from benchmarks.idle import Idle
from benchmarks.measuring import Figure, Target, by_turns, fresh, main, private_home
from benchmarks.relays import expect_relays
from benchmarks.simulated_agents import EVERYTHING, PROGRESS, Simulated, fail, send_specs, simulated_agents

SETTLE_SECONDS = 1.0  # time until every agent has reported once
START_SECONDS = 600.0
LIMIT = 10  # percent of one core
STATUS = 3  # exit status of the rank that fails
TOLD_SECONDS = 1.0  # from a failure until the session says whose it is


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
        figure("one fails: until an event says which", "s", "told", Target(TOLD_SECONDS, "s"), has_floor=False),
        figure("one fails: until all others have been told to stop", "s", "stopped", Target(2, "s")),
        figure("one fails: until the error that names it is raised", "s", "raised", None, has_floor=False),
    ]


def muster(workers: int, seconds: float, reports: Sequence[str], relays: int = 0) -> dict[str, float]:
    """Return the figures of a session with a cluster as users start it; at the end one of its workers fails.

    Args:
        workers: number of workers.
        seconds: how long their reports are measured.
        reports: what they report.
        relays: how many connections the agents share; 0: each has its own.
    """
    entered: dict[str, float] = {}
    taken = 0
    told = 0.0
    failing = f"worker-{workers // 2}"

    def observe(event: Event) -> None:
        nonlocal taken, told
        if event.kind == "run_phase":
            entered.setdefault(event.data["phase"], event.time)
        taken += event.kind == "progress"
        if event.kind == "process_exited" and (event.worker, event.data["exit_code"]) == (failing, STATUS):
            told = time.time()

    if relays:
        expect_relays(workers)
    with simulated_agents(workers, reports, relays) as channels:
        memory, cpu = resident(), time.process_time()
        started = time.time()
        cluster = Cluster(
            Job(None, workers),
            strategy=Idle(),
            platform=Simulated(channels),
            observers=[observe],
            timeout_seconds=START_SECONDS,
        )
        with contextlib.suppress(RunFailed), cluster:
            figures = {"ready": entered["starting"] - started, "started": time.process_time() - cpu}
            figures["cpu"] = share_of_core(workers, seconds, lambda: taken)
            figures["memory"] = resident() - memory
            fail(channels, workers // 2, STATUS)
            try:
                cluster.wait()
            except RunFailed as error:
                raised, named = time.time(), error.worker
        seen = [channel.recv() for channel in channels]
    failed = max(one.failed_at for one in seen)
    assert named == failing
    assert sum(one.stopped for one in seen) == workers - 1
    return figures | {
        "told": told - failed,
        "stopped": max(one.stopped_at for one in seen) - failed,
        "raised": raised - failed,
    }


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
        figures["stopped"] = max(channel.recv().stopped_at for channel in channels) - figures.pop("ordered")
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


if __name__ == "__main__":
    main("thousand_agents")
