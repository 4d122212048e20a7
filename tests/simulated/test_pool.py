"""A pool whose workers are scripted: what is replaced, and when it may be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.errors import LaunchRefused, PlatformError
from muster.job import Resources, Status, WorkerSpec
from muster.pools.endpoint import Endpoint
from muster.pools.leases import LeaseHeld
from muster.pools.pool import AgentPool
from muster.testing import ScriptedPlatform, SimulatedLoop

LEASE = 15.0


class Pooled:
    """A pool with one worker, which is connected."""

    def __init__(self, loop: SimulatedLoop, folder: Path) -> None:
        self.loop = loop
        self.platform = ScriptedPlatform()
        self.endpoint = Endpoint(["worker-0"], LEASE)
        self.lost: list[str] = []
        self.hellos = 0
        self._folder = folder

    async def launch(self) -> None:
        await self.endpoint.open(self._folder, "127.0.0.1")
        self.pool = AgentPool("test", self.platform, self.endpoint, owns_platform=True)
        ignore = lambda *_: None  # noqa: E731
        self.pool.listen(self._hear, self.lost.append, ignore, ignore, ignore)
        address = self.endpoint.address_for("worker-0")
        log = scratch = self._folder
        spec = WorkerSpec("worker-0", "worker", 0, "run", Resources(), log, scratch, "/", session=address)
        await self.pool.submit([spec], "first")
        await asyncio.sleep(1)
        assert self.pool.connected == {"worker-0"}

    def _hear(self, worker: str, message: object) -> None:
        self.hellos += type(message).__name__ == "Hello"

    def stops(self) -> list[tuple[str, ...]]:
        return [names for method, names in self.platform.calls if method == "stop"]


@pytest.fixture
def pooled(tmp_path: Path) -> Iterator[Pooled]:
    loop = SimulatedLoop()
    yield Pooled(loop, tmp_path)
    loop.close()


def test_one_that_is_given_up_while_it_may_act_keeps_its_lease(pooled: Pooled) -> None:
    async def play() -> None:
        await pooled.launch()
        pooled.platform.player("worker-0").cut()
        await asyncio.sleep(1)
        await pooled.pool.give_up("worker-0")
        with pytest.raises(LeaseHeld):
            pooled.endpoint.renew("worker-0")
        await asyncio.sleep(LEASE + 5)
        assert pooled.endpoint.renew("worker-0") == 1
        await pooled.pool.close()

    pooled.loop.run(play())


def test_a_worker_is_replaced_once_its_lease_has_ended_and_no_sooner(pooled: Pooled) -> None:
    async def play() -> None:
        await pooled.launch()
        player = pooled.platform.player("worker-0")
        with pytest.raises(LeaseHeld):
            await pooled.pool.replace("worker-0", "second")
        player.cut()
        await asyncio.sleep(LEASE - 1)
        with pytest.raises(LeaseHeld):
            await pooled.pool.replace("worker-0", "second")
        assert pooled.stops() == [], "one that may come back is left alone"
        await asyncio.sleep(5)
        assert pooled.lost == ["worker-0"]
        await pooled.pool.replace("worker-0", "second")
        assert pooled.stops() == [("worker-0",)], "what is left of it would hold its cores and GPUs"
        assert pooled.endpoint.leases.generation("worker-0") == 1
        await asyncio.sleep(1)
        assert pooled.pool.connected == {"worker-0"}
        assert pooled.hellos == 2
        await pooled.pool.close()

    pooled.loop.run(play())


def test_one_that_the_platform_knows_to_have_ended_is_replaced_without_waiting_for_its_lease(pooled: Pooled) -> None:
    async def play() -> None:
        await pooled.launch()
        pooled.platform.player("worker-0").cut()
        pooled.platform.end("worker-0", Status.FAILED, "its node is gone")
        await pooled.pool.replace("worker-0", "second")
        await asyncio.sleep(2 * LEASE)
        assert pooled.pool.connected == {"worker-0"}
        assert pooled.lost == [], "the lease of the generation before ends nothing of this one"
        await pooled.pool.close()

    pooled.loop.run(play())


def test_a_platform_that_does_not_answer_lets_nobody_take_a_place(pooled: Pooled) -> None:
    async def play() -> None:
        await pooled.launch()
        pooled.platform.player("worker-0").cut()
        pooled.platform.errors["poll"] = PlatformError("no answer")
        with pytest.raises(LeaseHeld):
            await pooled.pool.replace("worker-0", "second")
        await pooled.pool.close()

    pooled.loop.run(play())


def test_a_replacement_that_is_refused_can_be_tried_again(pooled: Pooled) -> None:
    async def play() -> None:
        await pooled.launch()
        pooled.platform.end("worker-0", Status.FAILED, "its node is gone")
        pooled.platform.errors.update(submit=LaunchRefused("no room"), stop=PlatformError("no answer"))
        with pytest.raises(LaunchRefused):
            await pooled.pool.replace("worker-0", "second")
        del pooled.platform.errors["submit"]
        await pooled.pool.replace("worker-0", "third")
        await asyncio.sleep(1)
        assert pooled.pool.connected == {"worker-0"}
        assert pooled.endpoint.leases.generation("worker-0") == 2
        await pooled.pool.close()

    pooled.loop.run(play())
