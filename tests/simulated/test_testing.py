"""The parts of ``muster.testing``: the examples of its guide, and each by itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.errors import LaunchRefused
from muster.testing import NothingHappens, Program, Scene, SimulatedLoop
from muster.testing.network import MemoryTransport

GUIDE = Path(__file__).parents[2] / "docs" / "testing.md"


def examples() -> dict[str, Any]:
    """The tests in the guide, by name."""
    program = "\n".join(re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL))
    names: dict[str, Any] = {}
    exec(program, names)
    return {name: value for name, value in names.items() if name.startswith("test_")}


@pytest.mark.parametrize("name", examples())
def test_the_guide(name: str) -> None:
    examples()[name]()


def test_the_same_scene_goes_the_same_way() -> None:
    def play() -> list[Any]:
        with Scene(3) as scene:
            scene.at(3, scene.workers["worker-1"].hang_up)
            scene.at(3, scene.workers["worker-2"].exit, 1, 2)
            return [(event.time, event.kind, event.worker) for event in scene.play().events]

    assert play() == play()


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop()
    yield loop
    loop.close()


class Heard(asyncio.Protocol):
    def __init__(self) -> None:
        self.what: list[Any] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, MemoryTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.what.append(data)

    def eof_received(self) -> None:
        self.what.append("end")

    def connection_lost(self, exc: Exception | None) -> None:
        self.what.append("lost")


def test_connections_in_memory(loop: SimulatedLoop) -> None:
    accepted: list[Heard] = []

    def accept() -> Heard:
        accepted.append(Heard())
        return accepted[-1]

    async def main() -> Heard:
        server = await loop.create_server(accept, "10.0.0.1", 80)
        with pytest.raises(OSError, match="in use"):
            await loop.create_server(accept, "10.0.0.1", 80)
        transport, ours = await loop.create_connection(Heard, "10.0.0.1", 80)
        assert isinstance(ours, Heard)
        theirs = accepted[0].transport
        theirs.pause_reading()
        transport.writelines([b"1", b"2"])
        await asyncio.sleep(1)
        assert accepted[0].what == []
        theirs.resume_reading()
        await asyncio.sleep(1)
        theirs.write(b"3")
        theirs.close()
        await asyncio.sleep(1)
        assert accepted[0].what == [b"12", "lost"]
        transport.write(b"into the void")
        server.close()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Heard, "10.0.0.1", 80)
        await server.wait_closed()
        return ours

    assert loop.run(main()).what == [b"3", "end", "lost"]


def test_a_cable_that_is_pulled_ends_no_connection(loop: SimulatedLoop) -> None:
    accepted = Heard()

    async def main() -> Heard:
        await loop.create_server(lambda: accepted, "10.0.0.1", 80)
        _, ours = await loop.create_connection(Heard, "10.0.0.1", 80)
        assert isinstance(ours, Heard)
        accepted.transport.is_cut = True
        accepted.transport.write(b"1")
        accepted.transport.abort()
        await asyncio.sleep(1)
        return ours

    assert loop.run(main()).what == []
    assert accepted.what == ["lost"]


def test_what_blocks_takes_time_and_holds_up_what_comes_after_it(loop: SimulatedLoop) -> None:
    finished = {}

    async def call(name: str, executor: object, seconds: float) -> None:
        await loop.run_in_executor(executor, loop.sleep, seconds)
        finished[name] = loop.time() - 1000

    async def main() -> None:
        calls = [call("first", 1, 5), call("second", 1, 5), call("beside them", 2, 7)]
        await asyncio.wait([asyncio.create_task(work) for work in (*calls, call("never", 2, float("inf")))], timeout=60)

    loop.run(main())
    assert finished == pytest.approx({"first": 5, "second": 10, "beside them": 7})


def test_processes_in_memory(loop: SimulatedLoop) -> None:
    stubborn = Program(ignores_sigterm=True)
    loop.programs = lambda argv: stubborn

    async def main() -> int:
        process = await asyncio.create_subprocess_exec("sleep", "9", stdin=asyncio.subprocess.PIPE)
        assert process.stdin is not None
        process.stdin.write(b"a line\nand a ")
        process.terminate()
        await asyncio.sleep(1)
        assert stubborn.is_running
        process.kill()
        code = await process.wait()
        with pytest.raises(ProcessLookupError):
            process.kill()
        assert await process.wait() == code
        return code

    assert loop.run(main()) == -9
    assert stubborn.lines == [b"a line"]


def test_what_is_not_there_cannot_be_started(loop: SimulatedLoop) -> None:
    with pytest.raises(FileNotFoundError):
        loop.run(asyncio.create_subprocess_exec("horovodrun"))


def test_waiting_for_what_never_comes_is_an_error(loop: SimulatedLoop) -> None:
    with pytest.raises(NothingHappens):
        loop.run(loop.create_future())  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        loop.run(asyncio.sleep(100), limit=10)


def test_a_worker_that_has_not_been_launched_dials_nobody() -> None:
    with Scene() as scene:
        scene.platform.seconds["submit"] = 5.0
        scene.platform.errors["submit"] = LaunchRefused("no")
        scene.at(1, scene.workers["worker-0"].dial)
        assert isinstance(scene.play().error, LaunchRefused)
        assert not scene.workers["worker-0"].is_connected
