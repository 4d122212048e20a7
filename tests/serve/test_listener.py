"""The connections and the bodies of a service, bounded: real sockets, small limits, and a clock that is set forward."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvicorn
from fastapi import HTTPException
from muster.serve import app, listener
from muster.serve.listener import ClientConnection, HttpListener, Server

OK = b"HTTP/1.1 200"
LARGE = 16 << 20  # bytes of an answer: more than the kernel keeps for a client that does not read


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be set forward."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


async def let_pass(seconds: float) -> None:
    """Set the clock forward, and have everything done that is due by then. Limits differ from it by seconds."""
    loop: Any = asyncio.get_running_loop()
    loop.ahead += seconds
    for _ in range(20):
        await asyncio.sleep(0)


class Keys:
    """Knows the keys a, b and c; each is its own caller."""

    def authenticate(self, key: str) -> str | None:
        return key if key in ("a", "b", "c") else None


class Served:
    """A service whose only answer comes once all of a body has come, and the connections to it."""

    def __init__(self) -> None:
        self.bounds: Any = app.RequestBounds(self._answer, Keys())  # type: ignore[arg-type]
        self.answer = b"done"
        self.requests = 0
        self._clients: list[socket.socket] = []
        self._address: Any = None
        self.listener: Any = None

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        try:
            while (await receive()).get("more_body"):
                pass
            status = 200
        except HTTPException as error:
            status = error.status_code
        length = str(len(self.answer)).encode()
        await send({"type": "http.response.start", "status": status, "headers": [(b"content-length", length)]})
        await send({"type": "http.response.body", "body": self.answer})

    @property
    def open(self) -> list[ClientConnection]:
        """The connections that there are, oldest first."""
        return list(self.listener._connections)

    @property
    def protocol(self) -> Any:
        """What serves the newest connection."""
        return self.open[-1].transport.get_protocol()  # type: ignore[union-attr]

    async def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """A connection that the service has accepted, and waits for something of."""
        before = set(self.open)
        client = socket.socket()
        self._clients.append(client)
        client.setblocking(False)
        client.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(client, self._address)
        await until(lambda: bool(self.open) and self.open[-1] not in before and self.open[-1].transport is not None)
        return client

    async def begin(self, key: str, length: int = 2, body: bytes = b"") -> socket.socket:
        """A connection over which a request of a caller has begun to come."""
        client = await self.connect()
        connection = self.open[-1]
        await send(client, head(key, length) + body)
        await until(lambda: connection.caller is not None)
        return client

    def play(self, test: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def main() -> None:
            config = uvicorn.Config(self.bounds, lifespan="off", log_config=None, ws="none", timeout_keep_alive=600)
            config.load()
            server = Server(config)
            server.lifespan = config.lifespan_class(config)
            with socket.create_server(("127.0.0.1", 0)) as listens:
                self._address = listens.getsockname()
                await server.startup([listens])
                self.listener = server.servers[0]
                assert isinstance(self.listener, HttpListener)
                try:
                    await test()
                finally:
                    self.listener.close()
                    for client in self._clients:
                        client.close()
                    await until(lambda: not self.open)

        loop = Loop()
        try:
            loop.run_until_complete(main())
        finally:
            loop.close()


@pytest.fixture
def served() -> Served:
    return Served()


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets limits."""

    def set_limits(where: Any = listener, **values: int) -> None:
        for name, value in values.items():
            monkeypatch.setattr(where, name, value)

    return set_limits


def head(key: str, length: int = 2) -> bytes:
    proof = base64.b64encode(f"{key}:".encode()).decode()
    return f"POST / HTTP/1.1\r\nHost: x\r\nAuthorization: Basic {proof}\r\nContent-Length: {length}\r\n\r\n".encode()


async def send(client: socket.socket, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(client, data)
    await let_pass(0)  # it is read before anybody sets the clock forward


async def answer(client: socket.socket) -> bytes:
    """The status line; empty where the connection has ended."""
    found: list[bytes] = []

    def has_come() -> bool:
        with contextlib.suppress(BlockingIOError):
            try:
                found.append(client.recv(1 << 16))
            except ConnectionError:
                found.append(b"")
        return bool(found)

    await until(has_come)
    return found[0][:12]


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


def is_open(client: socket.socket) -> bool:
    """Return whether nothing has come, not even the end."""
    try:
        client.recv(1)
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def test_of_all_connections_the_oldest_of_the_key_that_has_most_goes(
    served: Served, limits: Callable[..., None]
) -> None:
    limits(MOST=4, MOST_UNIDENTIFIED=2)

    async def test() -> None:
        quiet = await served.begin("a")
        first, second, third = [await served.begin("b") for _ in range(3)]
        assert all(map(is_open, (quiet, first, second, third))), "there may be four"
        last = await served.connect()
        assert await answer(first) == b""
        assert len(served.open) == 4
        assert all(map(is_open, (quiet, second, third, last)))
        await send(quiet, b"{}")
        assert await answer(quiet) == OK

    served.play(test)


def test_without_a_key_the_oldest_of_the_address_that_has_most_goes(
    served: Served, limits: Callable[..., None]
) -> None:
    limits(MOST=100, MOST_UNIDENTIFIED=3)

    async def test() -> None:
        known = [await served.begin("a") for _ in range(4)]
        quiet = await served.connect("127.0.0.2")
        first, second = await served.connect(), await served.connect()
        assert all(map(is_open, (quiet, first, second)))
        last = await served.connect()
        assert await answer(first) == b""
        assert all(map(is_open, (quiet, second, last, *known)))

    served.play(test)


def test_there_may_be_as_many_as_the_page_says(served: Served) -> None:
    async def test() -> None:
        assert (served.listener._most_unidentified, served.listener._most) == (128, 512)

    served.play(test)


def test_where_there_are_no_descriptors_left_it_is_not_asked_for_them_all_the_time(
    served: Served, limits: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    limits(PAUSE=600)
    tried: list[socket.socket] = []

    def accept(listens: socket.socket) -> Any:
        tried.append(listens)
        raise OSError(24, "Too many open files")

    async def test() -> None:
        monkeypatch.setattr(socket.socket, "accept", accept)
        client = socket.socket()
        served._clients.append(client)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, served._address)
        await until(lambda: bool(tried))
        for _ in range(100):  # rounds of the loop, in each of which it would try again if it still watched the socket
            await asyncio.sleep(0)
        assert len(tried) == 1

    served.play(test)


def test_who_takes_no_answer_is_ended(served: Served) -> None:
    served.answer = bytes(LARGE)

    async def test() -> None:
        await send(await served.connect(), head("a") + b"{}")
        await until(lambda: served.protocol.flow.write_paused)
        await let_pass(40)
        assert served.open
        await let_pass(30)
        assert not served.open

    served.play(test)


def test_who_takes_an_answer_in_time_is_not(served: Served) -> None:
    served.answer = bytes(LARGE)

    async def test() -> None:
        client = await served.connect()
        await send(client, head("a") + b"{}")
        await until(lambda: served.protocol.flow.write_paused)
        await let_pass(40)
        got = 0
        while got < LARGE:
            got += len(await asyncio.get_running_loop().sock_recv(client, 1 << 20))
        await let_pass(30)
        assert served.open

    served.play(test)


@pytest.mark.parametrize("text", [b"P", b"POST / HTTP/1.1\r\nHost: x\r\n"], ids=["a letter", "half a header"])
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_header_must_come_in_time(served: Served, text: bytes, earlier: int) -> None:
    async def test() -> None:
        client = await served.connect()
        for _ in range(earlier):
            await let_pass(5)
            await send(client, head("a") + b"{}")
            assert await answer(client) == OK
            await let_pass(100)
        await send(client, text)
        await let_pass(5)
        assert is_open(client)
        await let_pass(6)
        assert not served.open

    served.play(test)


def test_who_sends_nothing_has_no_longer(served: Served) -> None:
    async def test() -> None:
        client = await served.connect()
        await let_pass(5)
        assert is_open(client)
        await let_pass(6)
        assert not served.open

    served.play(test)


def test_a_body_without_a_key_has_no_longer(served: Served) -> None:
    async def test() -> None:
        client = await served.connect()
        await send(client, head("nobody's", 100))
        assert await answer(client) == b"HTTP/1.1 401"
        await let_pass(11)
        assert not served.open

    served.play(test)


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_body_must_come_in_time_which_is_longer_than_that_for_a_header(served: Served, earlier: int) -> None:
    async def test() -> None:
        client = await served.connect()
        for _ in range(earlier):
            await send(client, head("a") + b"{}")
            assert await answer(client) == OK
            await let_pass(100)
        await send(client, head("a"))
        await until(lambda: served.requests == earlier + 1)
        await let_pass(40)
        assert is_open(client)
        await let_pass(21)
        assert not served.open

    served.play(test)


def test_the_key_is_asked_for_before_any_of_the_body_is_read() -> None:
    async def nothing(*_: Any) -> Any:
        raise AssertionError("it is neither read nor handed on")

    async def take(message: Any) -> None:
        sent.append(message)

    sent: list[Any] = []
    wrong = base64.b64encode(b"nobody's:")
    for headers in ([], [(b"authorization", b"Basic " + wrong)]):
        scope = {"type": "http", "path": "/api", "headers": headers, "state": {}}
        asyncio.run(app.RequestBounds(nothing, Keys())(scope, nothing, take))  # type: ignore[arg-type]
        assert sent.pop(0)["status"] == 401
        sent.clear()


def test_bodies_of_one_and_of_all_together_are_bounded(served: Served, limits: Callable[..., None]) -> None:
    limits(app, LARGEST_BODY=100, LARGEST_OF_ONE=150, LARGEST_BODIES=200)

    async def test() -> None:
        loop = asyncio.get_running_loop()
        first = await served.begin("a", 91, b"x" * 90)
        await until(lambda: served.bounds._held == 90)
        assert await answer(await served.begin("a", 91, b"x" * 90)) == b"HTTP/1.1 503", "180 of one caller"
        await until(lambda: served.bounds._held == 90)
        second = await served.begin("b", 91, b"x" * 90)
        await until(lambda: served.bounds._held == 180)
        assert await answer(await served.begin("c", 91, b"x" * 90)) == b"HTTP/1.1 503", "270 of three"
        await until(lambda: served.bounds._held == 180)
        assert await answer(await served.begin("c", 102, b"x" * 101)) == b"HTTP/1.1 413", "101 in one"
        await until(lambda: served.bounds._held == 180)
        for client in (first, second):
            await loop.sock_sendall(client, b"x")
            assert await answer(client) == OK
        third = await served.begin("c", 90, b"x" * 90)
        assert await answer(third) == OK, "there is room again"
        assert served.bounds._held == 0
        assert not served.bounds._held_of

    served.play(test)
