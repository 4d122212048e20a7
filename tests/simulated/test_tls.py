"""The transport of a connection over TLS: both ways, in both ends, and what it costs. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest
from muster.errors import PlatformError
from muster.pools import tls
from muster.pools.listener import server_context
from muster.pools.tls import TlsTransport

from tests.agent.test_full_disk import fill

LARGE = os.urandom(1 << 21)


class Took(asyncio.Protocol):
    """Bytes that the session's side has taken."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ends: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.ends.append(exc)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """TLS contexts of the session's side and of the other."""
    ours, certificate = server_context(tmp_path_factory.mktemp("tls"), "127.0.0.1")
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    theirs.check_hostname = False
    theirs.load_verify_locations(cadata=certificate)
    return ours, theirs


@pytest.mark.parametrize("year", [1975, 2020, 2099])
def test_a_clock_that_is_wrong_keeps_no_worker_out(tmp_path: Path, year: int) -> None:
    _, certificate = server_context(tmp_path, "127.0.0.1")
    pinned = tmp_path / "pinned.pem"
    pinned.write_text(certificate)
    shown = int(datetime.datetime(year, 1, 1, tzinfo=datetime.timezone.utc).timestamp())
    said = subprocess.run(
        ["openssl", "verify", "-attime", str(shown), "-CAfile", pinned, pinned], capture_output=True, text=True
    )
    assert not said.returncode, said.stdout + said.stderr


def test_a_key_for_which_there_is_no_room_is_said(small_disk: Callable[[int], Path]) -> None:
    disk = small_disk(64)
    fill(disk)
    with pytest.raises(PlatformError, match="The session's key cannot be written to .*: No space left on device"):
        server_context(disk, "127.0.0.1")


class Ends:
    """Both ends of a connection; the other one is asyncio's own."""

    def __init__(self, contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
        self._theirs = contexts[1]
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.took = Took()
        self.transport = TlsTransport(self.near, contexts[0], lambda: self.took)
        self.transport.trust()

    async def shake_hands(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        dialled = asyncio.open_connection(sock=self.far, ssl=self._theirs, server_hostname="")
        return (await asyncio.gather(dialled, self.transport.open()))[0]


@pytest.fixture
def play(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Callable[..., None]:
    def playing(test: Callable[[Ends], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            ends = Ends(contexts)
            await asyncio.wait_for(test(ends), 10)
            await until(lambda: ends.transport.fileno() < 0)
            ends.far.close()

        asyncio.run(main())

    return playing


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_much_goes_both_ways_at_once_and_all_of_it_before_the_end(play: Callable[..., None]) -> None:
    async def test(ends: Ends) -> None:
        reader, writer = await ends.shake_hands()
        assert ends.transport.get_extra_info("socket").fileno() == ends.transport.fileno()
        ends.transport.write(LARGE)
        assert 0 < ends.transport.get_write_buffer_size() < len(LARGE)
        writer.write(LARGE)
        await until(lambda: len(ends.took.data) == len(LARGE))
        ends.transport.write(b"the last")
        ends.transport.close()
        ends.transport.write(b"into the void")
        assert ends.transport.is_closing()
        assert await reader.read() == LARGE + b"the last"
        await until(lambda: bool(ends.took.ends))
        assert ends.took.data == LARGE
        assert ends.took.ends == [None]
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    play(test)


def test_what_comes_while_it_is_not_read_waits(play: Callable[..., None]) -> None:
    async def test(ends: Ends) -> None:
        _, writer = await ends.shake_hands()
        take = ends.took.data_received

        def take_and_pause(data: bytes) -> None:
            take(data)
            ends.transport.pause_reading()

        ends.took.data_received = take_and_pause  # type: ignore[method-assign]
        writer.write(LARGE)
        while len(ends.took.data) < len(LARGE):
            before = len(ends.took.data)
            ends.transport.resume_reading()
            await until(lambda: len(ends.took.data) > before)  # noqa: B023
            assert len(ends.took.data) <= before + tls.RECORD
        assert ends.took.data == LARGE
        ends.transport.abort()
        ends.transport.resume_reading()
        writer.close()

    play(test)


def test_whoever_has_not_identified_itself_is_read_seldom_and_all_of_it_once_it_has(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async def main() -> None:
        ends = Ends(contexts)
        ends.transport = TlsTransport(ends.near, contexts[0], lambda: ends.took)
        _, writer = await ends.shake_hands()
        began = asyncio.get_running_loop().time()
        for _ in range(400):
            writer.write(b"x")  # each is a record of its own
        await until(ends.transport.is_resting)
        await asyncio.sleep(0.05)
        seconds = asyncio.get_running_loop().time() - began
        assert len(ends.took.data) <= tls.FREE_READS + seconds / tls.REST_SECONDS + 1
        ends.transport.trust()
        await until(lambda: len(ends.took.data) == 400)
        assert not ends.transport.is_resting()
        writer.close()
        await until(lambda: ends.transport.fileno() < 0)
        ends.far.close()

    asyncio.run(main())


def test_a_stranger_that_is_given_up_while_nobody_reads_it_is_gone(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async def main() -> None:
        ends = Ends(contexts)
        ends.transport = TlsTransport(ends.near, contexts[0], lambda: ends.took)
        _, writer = await ends.shake_hands()
        for _ in range(100):
            writer.write(b"x")
        await until(ends.transport.is_resting)
        raised: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: raised.append(context))
        ends.transport.abort()
        await asyncio.sleep(3 * tls.REST_SECONDS)
        assert ends.transport.fileno() < 0
        assert raised == []
        writer.close()
        ends.far.close()

    asyncio.run(main())


def test_the_end_of_a_connection_is_noticed_while_much_waits_to_be_sent(play: Callable[..., None]) -> None:
    async def test(ends: Ends) -> None:
        _, writer = await ends.shake_hands()
        ends.transport.write(LARGE)
        await asyncio.sleep(0)
        assert ends.transport.get_write_buffer_size()
        ends.far.shutdown(socket.SHUT_WR)
        await until(lambda: bool(ends.took.ends))
        assert ends.transport.get_write_buffer_size() == 0
        writer.transport.abort()

    play(test)


def test_the_last_words_of_whoever_hangs_up_are_read_although_it_hears_nothing_any_more(
    play: Callable[..., None],
) -> None:
    async def test(ends: Ends) -> None:
        _, writer = await ends.shake_hands()
        writer.write(b"last words")
        ends.far.shutdown(socket.SHUT_RDWR)
        ends.transport.write(b"ping")  # before the loop could read
        ends.transport.write(b"another")
        assert ends.transport.get_write_buffer_size() == 0
        await until(lambda: bool(ends.took.ends))
        assert ends.took.data == b"last words"
        writer.transport.abort()

    play(test)


def test_an_error_of_the_connection_is_told(play: Callable[..., None]) -> None:
    async def test(ends: Ends) -> None:
        _, writer = await ends.shake_hands()
        ends.far.send(b"\x17\x03\x03\x00\x10" + b"no record of TLS")
        await until(lambda: bool(ends.took.ends))
        assert isinstance(ends.took.ends[0], ssl.SSLError)
        ends.transport.abort()
        ends.transport.close()
        writer.transport.abort()
        await asyncio.sleep(0.001)
        assert len(ends.took.ends) == 1

    play(test)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n"])
def test_whoever_does_not_speak_tls_is_hung_up_on(play: Callable[..., None], sent: bytes) -> None:
    async def test(ends: Ends) -> None:
        opening = asyncio.ensure_future(ends.transport.open())
        await asyncio.sleep(0)
        ends.far.sendall(sent)
        ends.far.shutdown(socket.SHUT_WR)
        with pytest.raises(OSError):  # noqa: PT011  (of whichever kind)
            await opening
        assert not ends.took.ends

    play(test)


def test_a_handshake_that_is_given_up_ends_the_connection(play: Callable[..., None]) -> None:
    async def test(ends: Ends) -> None:
        opening = asyncio.ensure_future(ends.transport.open())
        ends.far.sendall(b"\x16")
        await asyncio.sleep(0.01)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    play(test)


def test_one_that_is_reset_before_its_handshake_leaves_its_number_to_the_next(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            far = socket.create_connection(server.getsockname())
            near, _ = server.accept()
            near.setblocking(False)
            number = near.fileno()
            opening = asyncio.ensure_future(TlsTransport(near, contexts[0], Took).open())
            await asyncio.sleep(0)
            far.send(b"\x16")
            far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            far.close()
            with pytest.raises(OSError):  # noqa: PT011  (of whichever kind)
                await opening
            await asyncio.sleep(0)
            ends = Ends(contexts)
            assert number in (ends.near.fileno(), ends.far.fileno())
            _, writer = await asyncio.wait_for(ends.shake_hands(), 5)
            ends.transport.abort()
            writer.transport.abort()
            await asyncio.sleep(0.001)

    asyncio.run(main())


def test_a_connection_takes_less_than_40_kib(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    """Both ends are in this process, and so their memory together is an upper bound."""
    many = 60

    async def connect() -> tuple[TlsTransport, ssl.SSLSocket]:
        near, far = socket.socketpair()
        near.setblocking(False)
        far.setblocking(False)
        client = contexts[1].wrap_socket(far, do_handshake_on_connect=False)
        transport = TlsTransport(near, contexts[0], Took)
        opening = asyncio.ensure_future(transport.open())
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
                break
            await asyncio.sleep(0)
        await opening
        transport.write(b"welcome")
        client.write(b"hello")
        return transport, client

    async def main() -> None:
        held = [await connect() for _ in range(10)]
        before = psutil.Process().memory_info().rss
        held += [await connect() for _ in range(many)]
        await asyncio.sleep(0.01)
        assert (psutil.Process().memory_info().rss - before) / many < 40 * 1024
        for transport, client in held:
            transport.abort()
            client.close()
        await asyncio.sleep(0)

    asyncio.run(main())
