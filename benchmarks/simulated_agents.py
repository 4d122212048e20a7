"""Agents that only speak the protocol with a session: thousands of them in a few processes, with no worker behind any.

Each dials the session, as real agents do; or a relay does for many of them (``relays.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import random
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from muster.agent import frames, wire
from muster.job import SessionAddress, Status, Worker, WorkerSpec
from muster.platforms.base import Platform

from benchmarks.relays import Splitter, framed

PROCESSES = 3  # processes that the simulated agents share
AT_ONCE = 100  # agents of one process that connect at the same time
PROGRESS = ("progress",)
EVERYTHING = ("progress", "usage", "output")

Address = tuple[str, SessionAddress]  # name of a worker, and what its agent dials


class Seen(NamedTuple):
    """What the agents of one process have seen.

    Attributes:
        failed_at: when the process of one of them failed, in seconds since 1970; 0.0 if none did.
        stopped_at: when the last of them was told to stop, for the first time; 0.0 if none was.
        stopped: how many were told to stop, without the one whose process had failed.
    """

    failed_at: float
    stopped_at: float
    stopped: int


class Simulated(Platform):
    """A platform whose workers are simulated agents."""

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
        """Return the workers as starting until they are stopped. Making them anew is no work of the session's."""
        return self._workers

    def stop(self, handles: Sequence[str]) -> None:
        """Say from now on that the workers have been stopped: they end by themselves, with the session."""
        self._workers = [replace(worker, status=Status.STOPPED) for worker in self._workers]

    def list(self) -> list[Worker]:
        """Return all workers."""
        return self._workers

    def logs(self, handle: str) -> Iterator[str]:
        """Return no lines."""
        return iter(())


def send_specs(channels: Sequence[Connection], agents: Sequence[Address]) -> None:
    """Distribute the agents among the processes."""
    for index, channel in enumerate(channels):
        channel.send(agents[index :: len(channels)])


def fail(channels: Sequence[Connection], rank: int, status: int) -> None:
    """Have the process of a rank fail, by the agent that simulates it, with this exit status."""
    for channel in channels:
        channel.send((rank, status))


@contextlib.contextmanager
def simulated_agents(workers: int, reports: Sequence[str], relays: int = 0) -> Iterator[list[Connection]]:
    """Run processes that simulate agents, and yield a channel to each, on which it waits for its agents' names.

    Args:
        workers: how many agents there will be.
        reports: what each of them reports, of ``EVERYTHING``.
        relays: how many connections they share; 0: each has its own.
    """
    spawn = multiprocessing.get_context("spawn")
    channels, processes = [], []
    for number in range(PROCESSES):
        ours, theirs = spawn.Pipe()
        share = len(range(number, relays, PROCESSES))
        processes.append(spawn.Process(target=be_agents, args=(theirs, reports, share), daemon=True))
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


def be_agents(channel: Connection, reports: Sequence[str], relays: int) -> None:
    """Simulate the agents whose names arrive on the channel, until all have been told to end.

    A rank may arrive on it later, with an exit status: its process fails, if its agent is among these. At the end, what
    they have seen is sent on the channel.
    """
    channel.send("ready")
    addresses: list[Address] = channel.recv()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=addresses[0][1].certificate)
    agents: dict[int, Agent] = {}

    def fail_one() -> None:
        rank, status = channel.recv()
        if rank in agents:
            agents[rank].fail(status)

    async def all_of_them() -> None:
        asyncio.get_running_loop().add_reader(channel.fileno(), fail_one)
        if relays:
            shares = [addresses[number::relays] for number in range(relays)]
            await asyncio.gather(*(behind_relay(share, context, reports, agents) for share in shares))
        else:
            may_connect = asyncio.Semaphore(AT_ONCE)
            await asyncio.gather(*(by_itself(address, context, reports, may_connect, agents) for address in addresses))

    asyncio.run(all_of_them())
    stopped_at = [agent.stopped_at for agent in agents.values() if agent.stopped_at]
    failed_at = max((agent.failed_at for agent in agents.values()), default=0.0)
    channel.send(Seen(failed_at, max(stopped_at, default=0.0), len(stopped_at)))


class Agent:
    """One agent, with the process of one rank.

    Args:
        address: its name, and the session's address and its token there.
        write: sends bytes to the session.
        reports: what it reports, of ``EVERYTHING``.

    Attributes:
        rank: the rank.
        interval: seconds between two of its reports, as the session asks for them; 0.0 before it has started.
        failed_at: when its process failed; 0.0 if it has not.
        stopped_at: when it was told to stop, for the first time, while its process ran; 0.0 if it was not.
        has_ended: whether its process has ended.
    """

    def __init__(self, address: Address, write: Callable[[bytes], object], reports: Sequence[str]) -> None:
        self._name, self._session = address
        self._write = write
        self._reports = reports
        self._asked_interval = 1.0
        self._step = 0
        self.has_ended = False
        self.rank = int(self._name.rpartition("-")[2])
        self.interval = 0.0
        self.failed_at = 0.0
        self.stopped_at = 0.0

    def introduce(self) -> None:
        """Say hello."""
        about = {"token": self._session.token, "worker": self._name}
        self._say("hello", version=wire.VERSION, **about, pid=1, host="127.1.1.1", ports=[], cores=1)

    def take(self, line: bytes) -> bool:
        """Do as a message of the session says; return False where that is to end."""
        message = json.loads(line)
        kind = message["type"]
        if kind == "welcome":
            self._asked_interval = message["interval"]
        elif kind == "start":
            self._say("started", pid=1, rank=self.rank)
            self.interval = self._asked_interval
        elif kind == "stop" and not self.has_ended:
            self.stopped_at = time.time()
            self._end(signal=15, reason="stopped")
        return bool(kind != "end")

    def fail(self, status: int) -> None:
        """Have the process fail."""
        self.failed_at = time.time()
        self._end(exit_code=status)

    def report(self) -> None:
        """Report progress, usage and output, as real agents do once in each interval."""
        self._step += 1
        step = self._step
        if "progress" in self._reports:
            metrics = {"loss": 1 / step, "accuracy": 0.5}
            counts = {"step": step, "steps": 1000, "epoch": 1, "epochs": 10, "examples": 32 * step, "metrics": metrics}
            self._say("report", report={"kind": "progress", "time": time.time(), "rank": self.rank, **counts})
        if "usage" in self._reports:
            self._say("usage", cpu=0.987, memory=612345678)
        if "output" in self._reports:
            self._say("output", text=f"step {step}: loss {1 / step:.4f}\n")

    def _end(self, **how: Any) -> None:
        self.has_ended = True
        self._say("exited", pid=1, rank=self.rank, **how)

    def _say(self, kind: str, **fields: Any) -> None:
        self._write(frames.encode(kind, **fields))


async def by_itself(
    address: Address,
    context: ssl.SSLContext,
    reports: Sequence[str],
    may_connect: asyncio.Semaphore,
    agents: dict[int, Agent],
) -> None:
    """Simulate one agent with a connection of its own, until it is told to end.

    Args:
        address: its name, and what it dials.
        context: the TLS context of all connections.
        reports: what it reports.
        may_connect: held while it connects. Agents share a process here, unlike real ones: if too many connected at
            once, each could take longer than the session allows.
        agents: the agents, by rank; this one is added.
    """
    async with may_connect:
        reader, writer = await asyncio.open_connection(address[1].host, address[1].port, ssl=context)
    agent = Agent(address, writer.write, reports)
    agents[agent.rank] = agent
    agent.introduce()
    reporting: asyncio.Task[None] | None = None
    with contextlib.suppress(OSError):
        async for line in reader:
            if not agent.take(line):
                break
            if agent.interval and reporting is None:
                reporting = asyncio.ensure_future(report_repeatedly(agent))
    if reporting:
        reporting.cancel()
    writer.transport.abort()


async def report_repeatedly(agent: Agent) -> None:
    """Have an agent report once in each interval."""
    await asyncio.sleep(agent.interval * random.random())  # so that not all agents report at the same moment
    while True:
        agent.report()
        await asyncio.sleep(agent.interval)


async def behind_relay(
    addresses: Sequence[Address], context: ssl.SSLContext, reports: Sequence[str], agents: dict[int, Agent]
) -> None:
    """Simulate a relay and the agents behind it, which share its connection, until all have been told to end.

    Args:
        addresses, context, reports, agents: as ``by_itself`` takes them, with the addresses of all these agents.
    """
    loop, (_, session) = asyncio.get_running_loop(), addresses[0]
    relay = SimulatedRelay(addresses, reports)
    agents.update({agent.rank: agent for agent in relay.agents})
    await loop.create_connection(lambda: relay, session.host, session.port, ssl=context)
    reporting = asyncio.ensure_future(report_in_turn(relay.agents))
    await relay.has_ended.wait()
    reporting.cancel()


class SimulatedRelay(asyncio.Protocol):
    """A relay's connection to the session, and the agents that share it.

    Attributes:
        agents: the agents.
        has_ended: set once all of them have been told to end, or the connection has ended.
    """

    def __init__(self, addresses: Sequence[Address], reports: Sequence[str]) -> None:
        self.agents = [Agent(address, self._writer(number), reports) for number, address in enumerate(addresses)]
        self.has_ended = asyncio.Event()
        self._left = len(addresses)
        self._splitter = Splitter()

    def _writer(self, number: int) -> Callable[[bytes], object]:
        return lambda data: self._transport.write(framed(number, data))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Have all agents say hello."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        for agent in self.agents:
            agent.introduce()

    def data_received(self, data: bytes) -> None:
        """Give the agents what is for them. What the session writes at once is whole messages."""
        for number, part in self._splitter.split(data):
            for line in part.splitlines():
                if not self.agents[number].take(line):
                    self._transport.write(framed(number, b""))
                    self._left -= 1
        if not self._left:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self.has_ended.set()


async def report_in_turn(agents: Sequence[Agent]) -> None:
    """Have agents report one after the other, each once in each interval."""
    while True:
        for agent in agents:
            if agent.interval and not agent.has_ended:
                agent.report()
            await asyncio.sleep(agent.interval / len(agents) if agent.interval else 1.0)
