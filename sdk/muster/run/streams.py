"""Streams between other processes of the user and a run's workers: to commands on workers, and to their ports.

Such a process opens a stream at the run's control socket. Then the same messages go over that as over the agent's
connection (:mod:`muster.agent.streams`), and the session only relays them: each side grants the other credit to send,
and a side that sends more than that is cut off, so that little is buffered here however slow a side is.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from muster.agent import frames, wire
from muster.errors import PlatformError

MOST_WAITING = 2 * wire.WINDOW // wire.OVERHEAD  # messages: more cannot arrive within the credit that was granted
OPEN_SECONDS = 35.0  # how long a worker may take to connect to a port
FROM_CLIENT = (wire.Data, wire.Credit, wire.Eof, wire.Resize, wire.Close)
READ = 1 << 16  # bytes


class Streams:
    """All streams of a run. To be used on the background loop only.

    Args:
        send: sends a message to a worker's agent; returns False if it is not connected.
    """

    def __init__(self, send: Callable[[str, tuple[Any, ...]], bool]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._streams: dict[tuple[str, int], Stream] = {}

    def on_message(self, worker: str, message: Any) -> None:
        """Handle a worker's message about a stream; close a stream that has been given up here."""
        stream = self._streams.get((worker, message.stream))
        if stream is None:
            if isinstance(message, wire.Opened):
                self._send(worker, wire.Close(message.stream))
        elif not stream.take(message):
            self._drop(worker, message.stream, "it has sent more than it may")

    def on_lost(self, worker: str) -> None:
        """End the streams of a worker whose connection has ended."""
        for name, number in list(self._streams):
            if name == worker:
                self._drop(worker, number, "its connection has ended")

    def _drop(self, worker: str, number: int, why: str) -> None:
        self._streams.pop((worker, number)).cut_off(f"{worker}: {why}")
        self._send(worker, wire.Close(number))

    async def open(self, worker: str, order: wire.Execute | wire.Dial) -> Stream:
        """Have a worker run a command, or connect to one of its ports.

        Raises:
            PlatformError: the worker is not connected, or gives no proper answer.
        """
        number = next(self._numbers)
        stream = self._streams[worker, number] = Stream(self, worker, number)
        try:
            if not self._send(worker, order._replace(stream=number)):
                raise PlatformError(f"{worker} is not connected.", worker=worker)
            try:
                answer = await stream.answer(OPEN_SECONDS)
            except asyncio.TimeoutError:
                raise PlatformError(f"{worker} does not answer within {OPEN_SECONDS:g} s.", worker=worker) from None
            if isinstance(answer, wire.Closed):
                stream.failure = answer
            elif isinstance(answer, wire.Opened):
                stream.source = answer.source
            else:
                raise PlatformError(f"{worker} has answered nonsense.", worker=worker)
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self, worker: str, number: int) -> None:
        """Forget a stream, and end its command or connection."""
        if self._streams.pop((worker, number), None) is not None:
            self._send(worker, wire.Close(number))


class Stream:
    """A stream between this session and a command or port of a worker.

    Attributes:
        failure: the worker's message that it could not be opened; None if it was opened.
        source: of a connection that the worker has made at its loopback interface, the port that it came from.
    """

    def __init__(self, streams: Streams, worker: str, number: int) -> None:
        self.failure: wire.Closed | None = None
        self.source: int | None = None
        self._streams = streams
        self._worker = worker
        self._number = number
        self._inbox: asyncio.Queue[Any] = asyncio.Queue(MOST_WAITING)
        self._down = self._up = wire.WINDOW  # bytes that the worker, and the client, may still send

    @property
    def opening(self) -> dict[str, Any]:
        """The answer that tells the client how the opening went."""
        if self.failure is not None:
            return {"closed": self.failure._asdict()}
        return {"opened": True} if self.source is None else {"opened": True, "source": self.source}

    def take(self, message: Any) -> bool:
        """Queue a worker's message for the client; return False if the worker has sent more than it may."""
        if isinstance(message, wire.Data):
            self._down -= wire.cost(message.payload)
        if self._down < 0 or self._inbox.full():
            return False
        self._inbox.put_nowait(message)
        return True

    def cut_off(self, why: str) -> None:
        """Drop all queued messages, and send the client only the reason."""
        while not self._inbox.empty():
            self._inbox.get_nowait()
        self._inbox.put_nowait(wire.Closed(self._number, text=why))

    async def answer(self, seconds: float) -> Any:
        """Return the worker's first message. Raises TimeoutError."""
        return await asyncio.wait_for(self._inbox.get(), seconds)

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay both directions until the worker has ended the stream or the client has hung up."""
        upward = asyncio.ensure_future(self._relay_up(reader))
        downward = asyncio.ensure_future(self._relay_down(writer))
        try:
            await asyncio.wait([upward, downward], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            for task in (upward, downward):
                task.cancel()
            await asyncio.gather(upward, downward, return_exceptions=True)

    def close(self) -> None:
        """End the stream."""
        self._streams.close(self._worker, self._number)

    async def _relay_up(self, reader: asyncio.StreamReader) -> None:
        """Relay the client's messages until it hangs up, or sends a message or an amount that it may not send."""
        decoder = frames.Decoder()
        while data := await reader.read(READ):
            for fields in decoder.feed(data):
                message = wire.from_session({**fields, "stream": self._number})
                if not isinstance(message, FROM_CLIENT):
                    return
                if isinstance(message, wire.Data):
                    self._up -= wire.cost(message.payload)
                    if self._up < 0:
                        return
                elif isinstance(message, wire.Credit):
                    self._down += message.size
                self._streams._send(self._worker, message)
                if isinstance(message, wire.Close):
                    return

    async def _relay_down(self, writer: asyncio.StreamWriter) -> None:
        """Relay the worker's messages until it has ended the stream."""
        while True:
            message = await self._inbox.get()
            if isinstance(message, wire.Credit):
                self._up += message.size
            writer.write(wire.encode(message))
            await writer.drain()
            if isinstance(message, wire.Closed):
                return
