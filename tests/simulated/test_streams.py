"""Streams between a client at the control socket and a worker: what goes on, what is cut off, and what ends them."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from muster.agent import frames, wire
from muster.errors import PlatformError
from muster.run import streams as streams_module
from muster.run.streams import Stream, Streams
from muster.testing import SimulatedLoop

CALL = wire.Execute(0, ("ls",), {})


class Writer:
    """The client's side of the control socket: what the session has written there."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self._decoder = frames.Decoder()

    def write(self, data: bytes) -> None:
        self.messages += [wire.from_agent(fields) for fields in self._decoder.feed(data)]

    async def drain(self) -> None:
        await asyncio.sleep(0)


class Ends:
    """A client and a worker, and the streams between them."""

    def __init__(self) -> None:
        self.to_worker: list[Any] = []
        self.is_connected = True
        self.on_order: Callable[[Any], None] = lambda order: None
        self.streams = Streams(self._send)
        self.writer = Writer()
        self.reader: asyncio.StreamReader

    def _send(self, worker: str, message: Any) -> bool:
        if self.is_connected:
            self.to_worker.append(message)
            self.on_order(message)
        return self.is_connected

    async def open(self, *answers: Any) -> Stream:
        for answer in answers:
            asyncio.get_running_loop().call_soon(self.streams.on_message, "worker-0", answer)
        return await self.streams.open("worker-0", CALL)

    def play(self, main: Coroutine[Any, Any, Any]) -> Any:
        loop = SimulatedLoop()
        try:
            return loop.run(main)
        finally:
            loop.close()

    async def relay(self, stream: Stream, *said: Any, eof: bool = False) -> None:
        """Relay until it ends, while the client says this."""
        self.reader = asyncio.StreamReader()
        for message in said:
            self.reader.feed_data(wire.encode(message))
        if eof:
            self.reader.feed_eof()
        await stream.relay(self.reader, self.writer)  # type: ignore[arg-type]


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_what_either_says_comes_to_the_other_until_the_worker_has_ended_it(ends: Ends) -> None:
    said: list[Any] = [wire.Data(7, 0, b"in"), wire.Credit(7, 5), wire.Resize(7, 24, 80), wire.Eof(7)]
    answers = [wire.Data(1, 1, b"out"), wire.Credit(1, 9), wire.Closed(1, 0)]

    async def main() -> None:
        stream = await ends.open(wire.Opened(1))
        for answer in answers:
            asyncio.get_running_loop().call_later(1, ends.streams.on_message, "worker-0", answer)
        await ends.relay(stream, *said)

    ends.play(main())
    assert ends.to_worker == [CALL._replace(stream=1), *(message._replace(stream=1) for message in said), wire.Close(1)]
    assert ends.writer.messages == answers


def test_one_that_has_ended_before_it_began_says_why(ends: Ends) -> None:
    stream = ends.play(ends.open(wire.Closed(1, 127, text="there is no ls")))
    assert stream.failure == wire.Closed(1, 127, text="there is no ls")


@pytest.mark.parametrize(("answers", "why"), [((), "does not answer"), ((wire.Eof(1),), "answered nonsense")])
def test_a_worker_that_does_not_open_it_is_an_error_and_told_to_close(
    ends: Ends, answers: tuple[Any, ...], why: str
) -> None:
    with pytest.raises(PlatformError, match=why):
        ends.play(ends.open(*answers))
    assert ends.to_worker[-1] == wire.Close(1)


def test_a_worker_that_is_not_there(ends: Ends) -> None:
    ends.is_connected = False
    with pytest.raises(PlatformError, match="not connected"):
        ends.play(ends.open())


def test_a_worker_that_is_lost_ends_its_streams(ends: Ends) -> None:
    async def main() -> None:
        stream = await ends.open(wire.Opened(1))
        asyncio.get_running_loop().call_later(1, ends.streams.on_lost, "worker-0")
        await ends.relay(stream)

    ends.play(main())
    assert [message.text for message in ends.writer.messages] == ["worker-0: its connection has ended"]


@pytest.mark.parametrize("said", [wire.Close(1), wire.Stop(1.0), wire.Data(1, 0, bytes(wire.WINDOW))])
def test_a_client_that_closes_or_sends_what_it_may_not_is_cut_off(ends: Ends, said: Any) -> None:
    async def main() -> None:
        await ends.relay(await ends.open(wire.Opened(1)), said)

    ends.play(main())
    assert ends.to_worker[-1] == wire.Close(1)
    assert not [message for message in ends.to_worker if isinstance(message, (wire.Data, wire.Stop))]


def test_a_client_that_goes_ends_it(ends: Ends) -> None:
    async def main() -> None:
        await ends.relay(await ends.open(wire.Opened(1)), eof=True)

    ends.play(main())
    assert ends.to_worker[-1] == wire.Close(1)


def test_a_worker_that_sends_more_than_it_may_is_cut_off(ends: Ends) -> None:
    async def main() -> None:
        stream = await ends.open(wire.Opened(1))
        data = wire.Data(1, 1, bytes(wire.WINDOW // 2))
        for _ in range(3):
            ends.streams.on_message("worker-0", data)
        await ends.relay(stream)

    ends.play(main())
    assert "more than it may" in ends.writer.messages[-1].text


def test_a_flood_of_small_messages_is_not_kept(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "MOST_WAITING", 3)

    async def main() -> None:
        stream = await ends.open(wire.Opened(1))
        for _ in range(10):
            ends.streams.on_message("worker-0", wire.Data(1, 1, b"x"))
        await ends.relay(stream)

    ends.play(main())
    assert [type(message) for message in ends.writer.messages] == [wire.Closed]


def test_what_a_worker_may_not_send_is_not_kept_for_a_slow_client(ends: Ends) -> None:
    async def kept() -> int:
        await ends.open(wire.Opened(1))
        tracemalloc.start()
        try:
            for _ in range(100):
                ends.streams.on_message("worker-0", wire.Data(1, 1, bytes(frames.MAX_PAYLOAD)))
            return tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()

    assert ends.play(kept()) < 2 * wire.WINDOW


def test_an_answer_that_comes_too_late_is_closed(ends: Ends) -> None:
    ends.streams.on_message("worker-0", wire.Opened(9))
    ends.streams.on_message("worker-0", wire.Eof(9))
    assert ends.to_worker == [wire.Close(9)]
