"""Whoever has no more than the port of a service costs it little, and holds up nobody who has a key."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import select
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from muster.security.certificates import make_certificate

from tests.serve.service import Client, Service, serving
from tests.support import eventually

pytestmark = pytest.mark.alone  # storms, and what the service has open

BODY = 4 << 20
SOON = 8.0  # seconds: well before those who hold a service up are given up, also on a busy machine
QUICK = "import muster.serve.listener as listener; listener.RECEIVE_SECONDS = 1.0; listener.BODY_SECONDS = 2.0"


def head(length: int, key: str | None = None) -> bytes:
    """The beginning of a launch."""
    proof = f"Authorization: Basic {base64.b64encode(f'{key}:'.encode()).decode()}\r\n" if key else ""
    return (
        f"POST /api/v1/project/dashboards HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{proof}"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def memory_of(service: Service) -> int:
    """Bytes that a service has in memory."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


def descriptors_of(service: Service) -> int:
    """Return the number of files and connections that a service has open."""
    return len(os.listdir(f"/proc/{service.process.pid}/fd"))


def connect(service: Service) -> socket.socket:
    """A connection that says nothing."""
    host, _, port = service.url.rpartition("/")[2].rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(10)
    return connection


@contextlib.contextmanager
def connections(service: Service, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing."""
    made = [connect(service) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


def push(connection: socket.socket, data: bytes, seconds: float = 1) -> None:
    """Send as much as the other side takes within so many seconds."""
    connection.settimeout(seconds)
    with contextlib.suppress(OSError):
        connection.sendall(data)


def is_served(service: Service) -> float:
    """Seconds until a client with a key has an answer."""
    client = Client(service.client_environment())
    began = time.monotonic()
    assert client.list().status_code == 200
    return time.monotonic() - began


def test_bodies_without_a_key_are_not_read(service: Service) -> None:
    is_served(service)
    before = memory_of(service)
    with connections(service, 40) as connected:
        for client in connected:
            push(client, head(BODY) + b"x" * (BODY - 1))
        assert memory_of(service) - before < 30 << 20
        assert is_served(service) < SOON
        assert all(client.recv(100).startswith(b"HTTP/1.1 401") for client in connected)


def test_bodies_of_those_who_have_a_key_are_bounded(service: Service) -> None:
    is_served(service)
    before = memory_of(service)
    with connections(service, 40) as clients:
        for client in clients:
            push(client, head(BODY, service.key) + b"x" * (BODY - 1), 10)  # one that has a key is read or refused
        assert memory_of(service) - before < 100 << 20
        assert is_served(service) < SOON
        # Which of them there is room for is chance: what they send waits in the kernel until the service reads it.
        refused: set[socket.socket] = set()

        def rest_is_refused() -> bool:
            readable, _, _ = select.select([client for client in clients if client not in refused], [], [], 1)
            assert all(client.recv(100).startswith(b"HTTP/1.1 503") for client in readable)
            refused.update(readable)
            return len(refused) >= 32

        eventually(rest_is_refused, "those are refused for whom there is no room")
    eventually(lambda: Client(service.client_environment()).launch(code="1").status_code == 200, "there is room again")


def test_idle_connections_hold_up_nobody(service: Service) -> None:
    is_served(service)
    before, memory = descriptors_of(service), memory_of(service)
    with requests.Session() as known:
        known.auth = (service.key, "")
        url = service.printed["CDSW_ENGINE_URL"] + "/workers"
        assert known.get(url).status_code == 200
        with connect(service) as kept:
            kept.sendall(head(2, service.key))
            with connections(service, 600):
                assert is_served(service) < SOON
                assert descriptors_of(service) - before < 200
                assert memory_of(service) - memory < 30 << 20
                assert known.get(url).status_code == 200
                kept.sendall(b"{}")
                assert kept.recv(100).startswith(b"HTTP/1.1 422"), "a request with a key is not ended for others"


def test_bodies_of_one_who_has_a_key_leave_room_for_those_of_others(service: Service, other_client: Client) -> None:
    with connections(service, 20) as greedy:
        for connection in greedy:
            push(connection, head(BODY, service.key) + b"x" * (BODY - 1), 10)
        assert other_client.launch(code="1" + " " * (BODY // 2)).status_code == 200


@pytest.mark.slow
def test_with_tls_idle_connections_hold_up_nobody_either(tmp_path: Path) -> None:
    certificate, key = make_certificate("127.0.0.1")
    (tmp_path / "cert.pem").write_text(certificate)
    (tmp_path / "key.pem").write_text(key)
    tls = ("--tls-cert", f"{tmp_path}/cert.pem", "--tls-key", f"{tmp_path}/key.pem")
    with serving(tmp_path, *tls, before=QUICK) as service:
        assert is_served(service) < SOON
        before = descriptors_of(service)
        with connections(service, 300) as connected:
            assert is_served(service) < SOON
            assert descriptors_of(service) - before < 200
            assert connected[-1].recv(1) == b"", "the time for a handshake is over"
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with context.wrap_socket(connect(service), server_hostname="127.0.0.1") as slow:
            slow.sendall(b"GET /openapi")
            assert slow.recv(1) == b""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "seconds", "with_key"),
    [
        (b"", 1, False),
        (b"GET /openapi.json HTTP/1.1\r\n", 1, False),
        (head(BODY), 1, False),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", 1, False),
        (b"", 2, True),
    ],
)
def test_a_request_must_come_in_time(quick_service: Service, text: bytes, seconds: float, with_key: bool) -> None:
    with connect(quick_service) as slow:
        began = time.monotonic()
        slow.sendall(head(BODY, quick_service.key) if with_key else text)
        slow.settimeout(0.05)
        while time.monotonic() - began < seconds + 2:
            with contextlib.suppress(TimeoutError):
                try:
                    slow.sendall(b"1")  # a byte now and then keeps nothing alive
                    if not slow.recv(1000):
                        break
                except ConnectionError:
                    break
        assert seconds - 0.2 < time.monotonic() - began < seconds + 1


@pytest.fixture(scope="module")
def quick_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that is less patient."""
    folder = tmp_path_factory.mktemp("quick")
    with serving(folder, home=folder / "home", before=QUICK) as service:
        yield service


def test_a_connection_may_be_used_again_after_a_wrong_key(service: Service) -> None:
    with connect(service) as client:
        client.sendall(head(5))
        with client.makefile("rb") as answers:
            assert answers.readline().startswith(b"HTTP/1.1 401")
            client.sendall(b"12345" + head(2, service.key) + b"{}")
            assert any(line.startswith(b"HTTP/1.1 422") or b"}HTTP/1.1 422" in line for line in answers)


def test_garbage_fills_no_log(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        for _ in range(500):
            with connect(service) as client:
                push(client, b"\x16\x03\x01 no request at all\r\n\r\n")
        assert is_served(service) < SOON
    assert service.output.count("Invalid HTTP request") <= 20


def test_more_descriptors_than_there_are(tmp_path: Path) -> None:
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    with serving(tmp_path, before=few) as service:
        with connections(service, 200):
            assert is_served(service) < SOON
        assert is_served(service) < SOON
    assert len(service.output) < 10_000
