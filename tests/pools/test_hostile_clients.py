"""The endpoint against clients that only have its port: what they cost, and whether agents still get in."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from muster.agent import frames
from muster.pools import listener

from tests.listening import Listening, answer, eventually, not_reading

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # storms, and what the whole process has open

MANY = 300


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    """Connections that are closed after the test."""
    connections: list[socket.socket] = []
    yield connections
    for connection in connections:
        connection.close()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def is_let_in(endpoint: Listening, within: float = 5.0) -> bool:
    """Return whether an agent is welcome, in time."""
    started = time.monotonic()
    with endpoint.dial() as client:
        client.sendall(frames.encode("hello", **endpoint.hello()))
        welcome = answer(client)["type"] == "welcome"
    return welcome and time.monotonic() - started < within


def test_idle_connections_eat_no_descriptors_and_write_no_logs(
    endpoint: Listening, crowd: list[socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    before = descriptors()
    crowd += [endpoint.connect() for _ in range(MANY)]
    most = 0
    for _ in range(20):
        time.sleep(0.05)
        most = max(most, descriptors() - before - MANY)
    assert most < MANY / 2  # those that are let in, and those that are being closed
    assert is_let_in(endpoint)
    assert len(caplog.records) < 20


def test_a_handshake_that_fails_without_a_word_is_told_by_its_kind(
    endpoint: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(connection: ssl.SSLSocket) -> None:
        raise ConnectionAbortedError

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", refuse)
    with endpoint.connect() as client:
        client.sendall(b"x")
        eventually(lambda: bool(caplog.messages))
    assert caplog.messages == ["a connection from 127.0.0.1 came to nothing: ConnectionAbortedError"]


def test_so_does_nobody_who_has_shaken_hands(endpoint: Listening, crowd: list[socket.socket]) -> None:
    def shake_hands() -> None:
        with contextlib.suppress(OSError):
            while len(crowd) < 150:
                crowd.append(endpoint.dial())

    threads = [threading.Thread(target=shake_hands, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert is_let_in(endpoint)
    for thread in threads:
        thread.join(20)


def test_connections_that_say_nothing_cost_no_memory(endpoint: Listening, crowd: list[socket.socket]) -> None:
    """TLS keeps a third of a megabyte for each, so it begins when a client does."""
    crowd.append(endpoint.dial())
    before = psutil.Process().memory_info().rss
    crowd += [endpoint.connect() for _ in range(MANY)]
    time.sleep(1)
    assert psutil.Process().memory_info().rss - before < 10e6
    assert is_let_in(endpoint)


def test_a_hello_that_does_not_end_costs_no_memory(endpoint: Listening) -> None:
    before = psutil.Process().memory_info().rss
    for _ in range(20):
        with endpoint.dial() as client, contextlib.suppress(OSError):
            client.sendall(b"x" * 3_000_000)
    assert psutil.Process().memory_info().rss - before < 20e6


@pytest.mark.parametrize(
    "sent",
    [
        b"x" * 16_000,
        json.dumps({"type": "chunk", "payload": frames.MAX_PAYLOAD}).encode() + b"\n",
        json.dumps({"type": "chunk", "payload": 1}).encode() + b"\n",
    ],
    ids=["a line that does not end", "a payload to come", "a small one"],
)
def test_more_than_a_hello_ends_the_connection_at_once(
    endpoint: Listening, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 600.0)  # the time for a hello is not what ends it
    with endpoint.dial() as client:
        client.sendall(sent)
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            assert client.recv(1) == b""
    eventually(lambda: not endpoint.session._listener._unidentified)


def test_whoever_is_refused_and_stays_is_ended(endpoint: Listening, crowd: list[socket.socket]) -> None:
    client = endpoint.dial()
    crowd.append(client)
    client.sendall(frames.encode("hello", **endpoint.hello(token="guessed")))
    assert answer(client)["type"] == "refused"
    eventually(lambda: not endpoint.session._listener._unidentified)


def test_whoever_says_nothing_is_ended(
    endpoint: Listening, crowd: list[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HELLO_SECONDS", 0.3)
    crowd += [endpoint.connect(), endpoint.dial()]
    for client in crowd:
        client.settimeout(5)
        with contextlib.suppress(ConnectionResetError, ssl.SSLError):
            assert client.recv(1) == b""


def test_one_byte_at_a_time_keeps_nobody_out(endpoint: Listening) -> None:
    done = threading.Event()

    def drip() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError), endpoint.dial() as client:
                while not done.is_set():
                    client.sendall(b"x")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    try:
        assert is_let_in(endpoint)
    finally:
        done.set()
        thread.join(20)


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + b"\0" * 100])
def test_a_storm_of_connections_keeps_nobody_out(
    endpoint: Listening, sent: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    def storm() -> None:
        held: list[socket.socket] = []
        while not done.is_set():
            with contextlib.suppress(OSError):
                held.append(socket.create_connection((endpoint.address.host, endpoint.address.port), timeout=0.2))
                held[-1].sendall(sent)
            if len(held) > 200:
                held.pop(0).close()
        for client in held:
            client.close()

    thread = threading.Thread(target=storm, daemon=True)
    thread.start()
    try:
        time.sleep(0.5)
        assert is_let_in(endpoint, within=15)
    finally:
        done.set()
        thread.join(20)
    assert len(caplog.records) < 30


def test_without_descriptors_it_waits_for_some(
    endpoint: Listening, crowd: list[socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with not_reading():
        crowd += [endpoint.connect() for _ in range(20)]
        highest = max(int(number) for number in os.listdir("/proc/self/fd"))
        free = os.open(os.devnull, os.O_RDONLY)
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(free, highest), limits[1]))
    try:
        eventually(lambda: any("cannot take another" in record.getMessage() for record in caplog.records))
        time.sleep(0.5)
        assert len(caplog.records) < 10
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert is_let_in(endpoint)


def test_the_key_is_on_no_disk_while_it_listens(endpoint: Listening, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []
