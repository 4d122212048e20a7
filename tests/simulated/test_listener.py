"""The listener of an endpoint: who is let in, who has to make room, and what is said of it. Loopback, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from muster.pools import listener
from muster.pools.listener import (
    WARNING_SECONDS,
    WARNINGS,
    Listener,
    RareWarnings,
    UnidentifiedConnection,
    listening_socket,
)
from muster.testing import SimulatedLoop


class Took(asyncio.Protocol):
    """Receiver of the bytes of an unidentified connection."""

    def __init__(self, listens: Listener, connection: UnidentifiedConnection) -> None:
        self._listens = listens
        self._connection = connection

    def connection_lost(self, exc: Exception | None) -> None:
        self._listens.forget(self._connection)


class Listening:
    """A listener that expects nobody, and the connections to it."""

    def __init__(self, folder: Path) -> None:
        self.listener = Listener(lambda connection: Took(self.listener, connection), lambda: 0)
        self._folder = folder
        self._dialled: list[socket.socket] = []
        self._port = 0

    async def dial(self, source: str = "127.0.0.1") -> socket.socket:
        connection = socket.socket()
        self._dialled.append(connection)
        connection.setblocking(False)
        connection.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        return connection

    def play(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            self._port = await self.listener.open(self._folder, "127.0.0.1", 0, "127.0.0.1")
            try:
                await asyncio.wait_for(test(), 10)
            finally:
                self.listener.close()
                self.listener.close()  # once more changes nothing
                for connection in self._dialled:
                    connection.close()
                await asyncio.sleep(0.001)  # in which they are closed

        asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def has_ended(connection: socket.socket) -> bool:
    """Wait for the end of a connection over which nothing comes."""
    with contextlib.suppress(ConnectionError):
        assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
    return True


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listening:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # nobody gets so far that it would need a certificate
    monkeypatch.setattr(listener, "server_context", lambda scratch, host: (context, ""))
    return Listening(tmp_path)


def test_the_oldest_of_the_address_that_holds_the_most_makes_room(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "SPARE", 3)
    monkeypatch.setattr(listener, "SAFE_SECONDS", 0.05)

    async def test() -> None:
        unidentified = listening.listener._unidentified
        quiet = await listening.dial("127.0.0.2")
        await until(lambda: len(unidentified) == 1)
        first, second = await listening.dial(), await listening.dial()
        await until(lambda: len(unidentified) == 3)
        await asyncio.sleep(0.06)  # they are safe no more
        last = await listening.dial()
        assert await has_ended(first)
        await until(lambda: len(unidentified) == 3)
        await asyncio.sleep(0.06)  # nor is the last; and nobody else comes whom they would have to make room for
        assert [found.address for found in unidentified] == ["127.0.0.2", "127.0.0.1", "127.0.0.1"]
        for connection in (quiet, second, last):
            with pytest.raises(BlockingIOError):
                connection.recv(1)

    listening.play(test)
    assert caplog.messages == ["a connection from 127.0.0.1 was ended to make room: it had not identified itself"]


def test_all_that_are_safe_are_kept_and_others_wait(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "SPARE", 2)
    monkeypatch.setattr(listener, "SAFE_SECONDS", 0.1)

    async def test() -> None:
        unidentified = listening.listener._unidentified
        first = await listening.dial()
        await listening.dial()
        await until(lambda: len(unidentified) == 2)
        await listening.dial()
        before = list(unidentified)
        await asyncio.sleep(0.02)
        assert list(unidentified) == before
        assert await has_ended(first)

    listening.play(test)


def test_as_many_are_held_as_agents_are_expected_and_a_few_more(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SAFE_SECONDS", "HELLO_SECONDS"):  # none has to make room, and none is late
        monkeypatch.setattr(listener, name, 600.0)
    monkeypatch.setattr(listener, "FULL_SECONDS", 0.001)
    listening.listener._expected = lambda: 3

    async def test() -> None:
        unidentified = listening.listener._unidentified
        for _ in range(80):
            await listening.dial()
        await until(lambda: len(unidentified) >= 67)
        for _ in range(20):  # in each of which it looks for room
            await asyncio.sleep(0.001)
        assert len(unidentified) == 67
        listening.listener._expected = lambda: 8
        await until(lambda: len(unidentified) == 72)

    listening.play(test)


def test_where_there_are_no_descriptors_left_it_is_tried_again(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "RETRY_SECONDS", 0.01)
    usual = socket.socket.accept
    failed: list[socket.socket] = []

    def accept(listens: socket.socket) -> Any:
        if len(failed) < 2:
            failed.append(listens)
            raise OSError(24, "Too many open files")
        return usual(listens)

    monkeypatch.setattr(socket.socket, "accept", accept)

    async def test() -> None:
        await listening.dial()
        await until(lambda: len(listening.listener._unidentified) == 1)
        assert len(listening.listener.descriptors()) == 2

    listening.play(test)
    assert caplog.messages == ["the session cannot take another connection now: [Errno 24] Too many open files"] * 2


def test_where_there_are_no_descriptors_left_it_is_not_asked_for_them_all_the_time(
    listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "RETRY_SECONDS", 600.0)
    tried: list[socket.socket] = []

    def accept(listens: socket.socket) -> Any:
        tried.append(listens)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(socket.socket, "accept", accept)

    async def test() -> None:
        await listening.dial()
        await until(lambda: bool(tried))
        for _ in range(100):  # rounds of the loop, in each of which it would try again if it still watched the socket
            await asyncio.sleep(0)
        assert len(tried) == 1

    listening.play(test)


def test_many_that_come_to_nothing_are_counted_and_not_written(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        for count in range(3 * WARNINGS):
            (await listening.dial()).close()
            await until(lambda: listening.listener._warnings._count > count)  # noqa: B023  (awaited at once)

    listening.play(test)
    assert len(caplog.messages) == WARNINGS


def test_one_that_ends_before_it_has_said_a_word_is_forgotten(
    listening: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        (await listening.dial()).close()
        await until(lambda: bool(caplog.messages))
        assert not listening.listener._unidentified

    listening.play(test)
    assert caplog.messages == ["a connection from 127.0.0.1 came to nothing: it has ended before it began"]


def test_one_that_never_says_who_it_is_is_ended(
    listening: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 0.05)

    async def test() -> None:
        for _ in range(3):
            connection = await listening.dial()
            await asyncio.get_running_loop().sock_sendall(connection, b"x")
            assert await has_ended(connection)

    listening.play(test)
    (told,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == "a connection from 127.0.0.1 was ended: it has not identified itself"


def test_where_many_are_still_to_come_each_has_longer(listening: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 0.05)
    monkeypatch.setattr(listener, "EACH_SECONDS", 0.05)
    to_come = 3
    listening.listener._expected = lambda: to_come

    async def test() -> None:
        started = asyncio.get_running_loop().time()
        assert await has_ended(await listening.dial())
        assert asyncio.get_running_loop().time() - started >= 0.15

    listening.play(test)


def test_an_address_that_is_yet_to_come_can_be_listened_on_and_no_other() -> None:
    elsewhere = ("192.0.2.1", 0)  # of a block that no machine has
    with pytest.raises(OSError, match="Cannot assign"):
        listening_socket(elsewhere, socket.AF_INET, is_coming=False)
    with listening_socket(elsewhere, socket.AF_INET, is_coming=True) as found:
        assert found.getsockname()[0] == "192.0.2.1"
        taken = found.getsockname()
        with pytest.raises(OSError, match="in use"):
            listening_socket(taken, socket.AF_INET, is_coming=True)


def test_many_warnings_are_counted_and_not_written(caplog: pytest.LogCaptureFixture) -> None:
    loop = SimulatedLoop()

    async def main() -> None:
        warnings = RareWarnings()
        for number in range(WARNINGS + 2):
            warnings.warn("warning %d", number)
        await asyncio.sleep(WARNING_SECONDS)
        warnings.warn("another")

    loop.run(main())
    loop.close()
    left_out = "2 more warnings about connections were left out"
    assert caplog.messages == [*(f"warning {number}" for number in range(WARNINGS)), left_out, "another"]
