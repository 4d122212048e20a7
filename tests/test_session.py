"""The session's endpoint against clients that are not what they should be. Real TLS, on the real background thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import wire
from muster.errors import JobError
from muster.job import SessionAddress
from muster.pools import endpoint as endpoints
from muster.pools.endpoint import Session, parse_address
from muster.runtime.background import background_loop


class Endpoint:
    """A session that listens, and what has come in."""

    def __init__(self, folder: Path) -> None:
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self.lost: list[str] = []
        self.session = Session(["worker-0", "worker-1"])
        self.session.on_message = lambda worker, message: self.messages.append((worker, message))
        self.session.on_lost = self.lost.append
        opened = asyncio.run_coroutine_threadsafe(self.session.open(folder, "127.0.0.1"), background_loop())
        self.address: SessionAddress = opened.result(timeout=10)

    def dial(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self.address.certificate)
        return context.wrap_socket(socket.create_connection((self.address.host, self.address.port), timeout=5))

    def hello(self, **fields: Any) -> dict[str, Any]:
        return {"version": wire.VERSION, "token": self.address.token, "worker": "worker-0", "host": "h", **fields}


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path)
    yield made
    background_loop().call_soon_threadsafe(made.session.close)


def answer(client: ssl.SSLSocket) -> dict[str, Any]:
    """The next message of the session; empty at the end of the connection."""
    line = client.makefile("rb").readline()
    return dict(json.loads(line)) if line else {}


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_agent_with_the_token_is_welcome_and_heard(endpoint: Endpoint) -> None:
    with endpoint.dial() as client:
        client.sendall(wire.encode("hello", **endpoint.hello()) + wire.encode("usage", cpu=1.0, memory=5))
        assert answer(client)["type"] == "welcome"
        eventually(lambda: len(endpoint.messages) == 2)
        assert endpoint.session.connected == {"worker-0"}
    eventually(lambda: endpoint.lost == ["worker-0"])


@contextlib.contextmanager
def not_reading() -> Iterator[None]:
    """Sessions read in one round what is sent meanwhile."""
    reading = threading.Event()
    background_loop().call_soon_threadsafe(reading.wait)
    try:
        yield
    finally:
        reading.set()


def test_last_words_are_heard_before_the_end(endpoint: Endpoint) -> None:
    heard: list[str] = []
    endpoint.session.on_message = lambda worker, message: heard.append(message["type"])
    endpoint.session.on_lost = heard.append
    with endpoint.dial() as client:
        client.settimeout(0.5)
        with not_reading():
            client.sendall(wire.encode("hello", **endpoint.hello()) + 9 * wire.encode("usage") + wire.encode("exited"))
            with contextlib.suppress(TimeoutError):
                client.unwrap()  # says goodbye at once, and waits for an answer
    eventually(lambda: "worker-0" in heard)
    assert heard == ["hello", *["usage"] * 9, "exited", "worker-0"]


def test_a_hello_in_time_counts_although_it_is_taken_late(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "HELLO_SECONDS", 0.5)
    with endpoint.dial() as client:
        eventually(lambda: bool(endpoint.session._unidentified))
        with not_reading():
            client.sendall(wire.encode("hello", **endpoint.hello()))
            time.sleep(0.6)
        assert answer(client)["type"] == "welcome"


def test_a_closed_session_hears_nothing_any_more(endpoint: Endpoint) -> None:
    def on_message(worker: str, message: dict[str, Any]) -> None:
        endpoint.messages.append((worker, message))
        endpoint.session.close()

    endpoint.session.on_message = on_message
    with endpoint.dial() as client:
        client.sendall(wire.encode("hello", **endpoint.hello()) + wire.encode("usage"))
        eventually(lambda: endpoint.lost == ["worker-0"])
    assert [message["type"] for _, message in endpoint.messages] == ["hello"]


def test_what_one_sends_costs_no_other_its_messages(endpoint: Endpoint) -> None:
    def on_message(worker: str, message: dict[str, Any]) -> None:
        endpoint.messages.append((worker, message))
        if message["type"] == "usage":
            raise AttributeError

    endpoint.session.on_message = on_message
    hello = endpoint.hello()
    with endpoint.dial() as bad, endpoint.dial() as good:
        with not_reading():
            bad.sendall(wire.encode("hello", **hello) + wire.encode("usage") + wire.encode("late"))
            good.sendall(wire.encode("hello", **{**hello, "worker": "worker-1"}) + wire.encode("output"))
        eventually(lambda: endpoint.session.connected == {"worker-1"})
    assert sorted((worker, message["type"]) for worker, message in endpoint.messages) == [
        ("worker-0", "hello"),
        ("worker-0", "usage"),
        ("worker-1", "hello"),
        ("worker-1", "output"),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token": "guessed"}, "not the token"),
        ({"token": None}, "not the token"),
        ({"token": "\udcff"}, "not the token"),
        ({"version": 99}, "protocol version 99"),
        ({"worker": "worker-9"}, "no worker 'worker-9'"),
        ({"worker": ["worker-0"]}, "no worker"),
    ],
)
def test_others_are_refused_with_the_reason(endpoint: Endpoint, fields: dict[str, Any], why: str) -> None:
    with endpoint.dial() as client:
        client.sendall(wire.encode("hello", **endpoint.hello(**fields)) + wire.encode("usage", cpu=1.0))
        refused = answer(client)
        assert refused["type"] == "refused"
        assert why in refused["text"]
        assert answer(client) == {}
    assert endpoint.messages == []


def test_a_worker_is_connected_once(endpoint: Endpoint) -> None:
    with endpoint.dial() as first, endpoint.dial() as second:
        first.sendall(wire.encode("hello", **endpoint.hello()))
        assert answer(first)["type"] == "welcome"
        second.sendall(wire.encode("hello", **endpoint.hello()))
        assert "connected already" in answer(second)["text"]


@pytest.mark.parametrize("data", [b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"no": "type"}\n', b"x" * (wire.MAX_LINE + 2)])
def test_what_is_not_the_protocol_ends_the_connection(endpoint: Endpoint, data: bytes) -> None:
    with endpoint.dial() as client:
        client.sendall(data)
        with contextlib.suppress(ConnectionResetError):  # the session need not read all of it first
            assert client.recv(1) == b""


def test_whoever_has_not_the_certificate_is_not_talked_to(endpoint: Endpoint) -> None:
    context = ssl.create_default_context()
    with (
        socket.create_connection((endpoint.address.host, endpoint.address.port), timeout=5) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname="127.0.0.1")


def test_secrets_are_in_no_repr_and_on_no_disk(endpoint: Endpoint, tmp_path: Path) -> None:
    assert endpoint.address.token not in repr(endpoint.address)
    assert list(tmp_path.iterdir()) == []


def test_a_forked_child_does_not_keep_the_port(endpoint: Endpoint) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(30)
        os._exit(0)
    try:
        background_loop().call_soon_threadsafe(endpoint.session.close)

        def is_free() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex((endpoint.address.host, endpoint.address.port)) != 0

        eventually(is_free)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.parametrize(("text", "parsed"), [("10.0.0.5:80", ("10.0.0.5", 80)), ("[::1]:0", ("::1", 0))])
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["", "host", ":80", "::1", "host:99999", "host:http"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(JobError):
        parse_address(text)
