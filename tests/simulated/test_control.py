"""The control socket of a run: what its clients may cost, and streams that stay open."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import pytest
from muster.agent import wire
from muster.records import control as records
from muster.run import control
from muster.run.control import MOST_CONNECTIONS, Control
from muster.run.streams import Stream, Streams

OPENED = wire.Opened(1)
Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Controlled:
    """A run that can be asked for the time, and for a command on its worker."""

    def __init__(self, folder: Path, answer: Any = OPENED) -> None:
        self.to_worker: list[Any] = []
        self.streams = Streams(self._send)
        self._answer = answer
        self.times, self.asked = "noon", 0
        self._folder = folder
        self._control = Control(folder, {"time": self._time, "exec": self._exec})
        self._clients: list[asyncio.StreamWriter] = []

    async def _time(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.asked += 1
        return {"time": self.times}

    async def _exec(self, request: Mapping[str, Any]) -> Stream:
        return await self.streams.open("worker-0", wire.Execute(0, ("ls",), {}))

    def _send(self, worker: str, message: Any) -> bool:
        self.to_worker.append(message)
        if isinstance(message, wire.Execute) and self._answer is not None:
            self.hear(self._answer._replace(stream=message.stream))
        return True

    def hear(self, message: Any) -> None:
        """Have the worker say this."""
        self.streams.on_message("worker-0", message)

    async def dial(self) -> Client:
        path = json.loads(records.control_file(self._folder).read_text())["socket"]
        reader, writer = await asyncio.open_unix_connection(path)
        self._clients.append(writer)
        return reader, writer

    async def ask(self, what: str) -> Client:
        reader, writer = await self.dial()
        token = json.loads(records.control_file(self._folder).read_text())["token"]
        writer.write(json.dumps({"token": token, "ask": what}).encode() + b"\n")
        return reader, writer

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        scratch = self._folder / "scratch"
        scratch.mkdir()
        await self._control.open(scratch)
        try:
            yield
        finally:
            await self._control.close()
            for writer in self._clients:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()


def play(controlled: Controlled, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with controlled.opened():
            await asyncio.wait_for(test(), 10)

    asyncio.run(main())


async def line(client: Client) -> Any:
    said = await client[0].readline()
    return json.loads(said) if said else None


def test_of_too_many_clients_the_oldest_has_to_go(tmp_path: Path) -> None:
    controlled = Controlled(tmp_path)

    async def test() -> None:
        silent = [await controlled.dial() for _ in range(MOST_CONNECTIONS)]
        assert await line(await controlled.ask("time")) == {"time": "noon"}
        assert await line(silent[0]) is None
        assert not silent[1][0].at_eof()

    play(controlled, test)


def test_one_that_says_nothing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SECONDS", 0.01)
    controlled = Controlled(tmp_path)

    async def test() -> None:
        assert await line(await controlled.dial()) is None

    play(controlled, test)


def test_of_one_that_never_reads_its_answer_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "SECONDS", 0.01)
    controlled = Controlled(tmp_path)
    text = "x" * (1 << 20)  # more than a socket takes

    async def test() -> None:
        path = json.loads(records.control_file(tmp_path).read_text())["socket"]
        controlled.times = text
        descriptors = len(os.listdir("/proc/self/fd"))
        silent = [socket.socket(socket.AF_UNIX) for _ in range(MOST_CONNECTIONS)]
        token = json.loads(records.control_file(tmp_path).read_text())["token"]
        for client in silent:
            client.connect(path)
            client.sendall(json.dumps({"token": token, "ask": "time"}).encode() + b"\n")
        try:
            while controlled.asked < len(silent):
                await asyncio.sleep(0.01)
            while len(os.listdir("/proc/self/fd")) > descriptors + len(silent):
                await asyncio.sleep(0.01)
        finally:
            for client in silent:
                client.close()

    play(controlled, test)


def test_a_stream_stays_open_until_its_worker_has_ended_it(tmp_path: Path) -> None:
    controlled = Controlled(tmp_path)

    async def test() -> None:
        client = await controlled.ask("exec")
        assert await line(client) == {"opened": True}
        controlled.hear(wire.Data(1, 1, b"words"))
        assert await line(client) == {"type": "data", "stream": 1, "channel": 1, "payload": 5}
        assert await client[0].readexactly(5) == b"words"
        client[1].write(wire.encode(wire.Eof(7)))
        controlled.hear(wire.Closed(1, 0))
        assert (await line(client))["type"] == "closed"
        assert await line(client) is None

    play(controlled, test)
    assert controlled.to_worker[-1] == wire.Close(1)


@pytest.mark.parametrize("who", ["client", "session"])
def test_what_a_stream_has_started_ends_with_it(tmp_path: Path, who: str) -> None:
    controlled = Controlled(tmp_path)

    async def test() -> None:
        client = await controlled.ask("exec")
        assert await line(client) == {"opened": True}
        if who == "client":
            client[1].close()
            while controlled.to_worker[-1] != wire.Close(1):
                await asyncio.sleep(0.001)

    play(controlled, test)
    assert controlled.to_worker[-1] == wire.Close(1)


def test_one_that_never_began_says_why(tmp_path: Path) -> None:
    controlled = Controlled(tmp_path, wire.Closed(1, 127, text="no such program"))

    async def test() -> None:
        closed = (await line(await controlled.ask("exec")))["closed"]
        assert (closed["exit_code"], closed["text"]) == (127, "no such program")

    play(controlled, test)


def test_there_are_only_so_many_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MOST_STREAMS", 1)
    controlled = Controlled(tmp_path)

    async def test() -> None:
        assert await line(await controlled.ask("exec")) == {"opened": True}
        assert "1 streams" in (await line(await controlled.ask("exec")))["error"]
        assert await line(await controlled.ask("time")) == {"time": "noon"}

    play(controlled, test)
    assert [type(message) for message in controlled.to_worker] == [wire.Execute, wire.Close], "none is begun in vain"


def test_a_stream_that_is_being_opened_is_ended_by_no_other_client(tmp_path: Path) -> None:
    controlled = Controlled(tmp_path, answer=None)

    async def test() -> None:
        clients = []
        for number in range(1, MOST_CONNECTIONS + 2):
            clients.append(await controlled.ask("exec"))
            while len(controlled.to_worker) < number:
                await asyncio.sleep(0.001)
        assert await line(await controlled.ask("time")) == {"time": "noon"}
        for number, client in enumerate(clients, 1):
            controlled.hear(wire.Opened(number))
            assert await line(client) == {"opened": True}

    play(controlled, test)
