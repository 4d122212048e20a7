"""The agent's link by itself: it waits for nobody for ever, and its one thread never waits for a name."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import link, wire
from muster.agent.loop import Loop
from muster.pools.listener import server_context
from muster.runtime.background import call_in_background

from tests.listening import Listening, eventually

HELLO = wire.Hello(wire.VERSION, "token", "worker-0", 5, "10.0.0.1")


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def run_for(loop: Loop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run()


def assert_dialled(loop: Loop, listener: socket.socket, certificate: str, serve: Callable[[], None]) -> None:
    """Dial a session that ``serve`` plays on a thread, and see that it is reached."""
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    agent = link.Link(loop, lambda fields: None, lambda cause: None)
    agent.dial({"host": "127.0.0.1", "port": listener.getsockname()[1], "certificate": certificate})
    assert agent.is_open
    thread.join(20)
    agent.close()


def test_a_session_that_never_answers_the_first_hello_is_given_up(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = server_context(tmp_path, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[ssl.SSLSocket] = []
        thread = threading.Thread(target=lambda: held.append(context.wrap_socket(listener.accept()[0], True)))
        thread.start()
        lost: list[str] = []

        def on_lost(cause: str) -> None:
            lost.append(cause)
            loop.stop()

        agent = link.Link(loop, lambda fields: None, on_lost)
        agent.dial({"host": "127.0.0.1", "port": listener.getsockname()[1], "certificate": certificate})
        thread.join(20)
        monkeypatch.setattr(link, "DIAL_TIMEOUT", 0.5)
        agent.introduce(HELLO)
        run_for(loop, 15)
        for connection in held:
            connection.close()
    assert lost == ["the session did not answer in time"]


@pytest.mark.parametrize("linger", [b"", struct.pack("ii", 1, 0)], ids=["closed", "reset"])
def test_a_session_that_hangs_up_before_it_has_said_who_it_is_is_dialled_again(
    loop: Loop, tmp_path: Path, linger: bytes
) -> None:
    """As it, or a relay to it, does where strangers hold as many connections as there may be."""
    context, certificate = server_context(tmp_path, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            hung_up, _ = listener.accept()
            hung_up.recv(1 << 16)
            if linger:
                hung_up.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            hung_up.close()
            context.wrap_socket(listener.accept()[0], True).close()

        assert_dialled(loop, listener, certificate, serve)


def test_a_session_that_is_about_to_listen_is_dialled_again(loop: Loop, tmp_path: Path) -> None:
    context, certificate = server_context(tmp_path, "127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

        def serve() -> None:
            time.sleep(0.2)
            listener.listen()
            context.wrap_socket(listener.accept()[0], True).close()

        assert_dialled(loop, listener, certificate, serve)


# A session in namespaces of its own, whose network, or name, becomes ready after a while.
NOT_READY_YET = """
import errno, os, socket, subprocess, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from muster.agent import link, worker
from muster.agent.loop import Loop
from muster.pools.listener import server_context

context, certificate = server_context(Path(sys.argv[1]), "192.0.2.1")
listener = socket.create_server(("0.0.0.0", 0))
port = listener.getsockname()[1]
host, before, after = sys.argv[2:]
subprocess.run(before, shell=True, check=True, cwd=sys.argv[1])
try:
    socket.create_connection((host, port), 1)
except OSError as error:
    print(errno.errorcode.get(error.errno, error.errno))

def serve():
    time.sleep(0.3)
    subprocess.run(after, shell=True, check=True)
    context.wrap_socket(listener.accept()[0], True).close()

thread = threading.Thread(target=serve, daemon=True)
thread.start()
address = ThreadPoolExecutor().submit(worker.address_towards, (host, port))
agent = link.Link(Loop(), print, print)
agent.dial({"host": host, "port": port, "certificate": certificate})
print(agent.is_open, address.result())
thread.join()
"""
UP = "ip link set lo up && ip addr add 192.0.2.1/32 dev lo"
# Where no program serves names, or where one does that does not know this one yet.
NAMES = "echo hosts: {} > names; touch hosts; mount --bind names /etc/nsswitch.conf; mount --bind hosts /etc/hosts"
NAMED = "echo 192.0.2.1 session.test >> /etc/hosts"
FIREWALL = "iptables --append INPUT --protocol tcp --jump REJECT"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can make a network")
@pytest.mark.parametrize(
    ("host", "before", "after", "error"),
    [
        ("192.0.2.1", "ip link set lo down", UP, "ENETUNREACH"),
        ("192.0.2.1", "ip route add unreachable 192.0.2.0/24 metric 9", UP, "EHOSTUNREACH"),
        ("session.test", NAMES.format("files dns"), f"{UP} && {NAMED}", str(socket.EAI_AGAIN)),
        ("session.test", NAMES.format("files"), f"{UP} && {NAMED}", str(socket.EAI_NONAME)),
        pytest.param(
            *("192.0.2.1", f"{UP} && {FIREWALL}", f"sleep {link.REFUSED_SECONDS} && iptables --flush", "ECONNREFUSED"),
            marks=pytest.mark.skipif(not shutil.which("iptables"), reason="iptables is not installed"),
        ),
    ],
)
def test_a_network_that_is_about_to_be_ready_is_waited_for(
    tmp_path: Path, host: str, before: str, after: str, error: str
) -> None:
    """As of a container that has just been started."""
    command = ["unshare", "--net", "--mount", sys.executable, "-c", NOT_READY_YET, str(tmp_path), host, before, after]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (result.stdout.split(), result.stderr) == ([error, "True", "192.0.2.1"], "")


@pytest.mark.parametrize(
    "answer", [b"SSH-2.0-OpenSSH_9.2\r\n", b"", None], ids=["another program", "hangs up", "silent"]
)
def test_who_is_not_the_session_is_told_with_its_address(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes | None
) -> None:
    """What answers there is a forwarded port without a session behind it, perhaps, or what a firewall has put there."""
    monkeypatch.setattr(link, "AGAIN_SECONDS", 0.3)
    monkeypatch.setattr(link, "DIAL_TIMEOUT", 0.5)
    _, certificate = server_context(tmp_path, "127.0.0.1")
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    held.append(listener.accept()[0])
                    if answer is not None:
                        held[-1].sendall(answer)
                        held[-1].shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        agent = link.Link(loop, lambda fields: None, lambda cause: None)
        with pytest.raises(link.Unreachable, match=f"it cannot reach the session at 127.0.0.1:{port}: "):
            agent.dial({"host": "127.0.0.1", "port": port, "certificate": certificate})
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    for connection in held:
        connection.close()


@pytest.mark.parametrize("lease", [0.0, 60.0], ids=["no lease", "lease"])
def test_a_session_that_hangs_up_before_the_first_hello_is_lost_as_at_any_other_time(
    loop: Loop, tmp_path: Path, lease: float
) -> None:
    """So without a lease it is lost for good, and within a lease it is dialled again."""
    context, certificate = server_context(tmp_path, "127.0.0.1")
    causes: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        hung_up = threading.Event()

        def serve() -> None:
            connection = context.wrap_socket(listener.accept()[0], True)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            hung_up.set()

        threading.Thread(target=serve, daemon=True).start()
        agent = link.Link(loop, lambda fields: None, causes.append)
        address = {"host": "127.0.0.1", "port": listener.getsockname()[1], "certificate": certificate}
        agent.dial({**address, "lease_seconds": lease})
        assert hung_up.wait(20)
        agent.introduce(HELLO)
        assert (len(causes), agent.is_open) == ((0, True) if lease else (1, False))
        if lease:
            listener.settimeout(20)
            run_for(loop, 0.3)
            listener.accept()[0].close()
        agent.close()


def test_dialling_again_looks_up_no_name(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Listening(tmp_path, lease_seconds=60.0)
    came_back: list[str] = []
    endpoint.session.on_back = came_back.append
    lost: list[str] = []
    agent = link.Link(loop, lambda fields: None, lost.append)
    agent.dial({**vars(endpoint.address), "host": "localhost"})
    agent.introduce(wire.Hello(**endpoint.hello()))

    def blocked(*_: Any, **__: Any) -> Any:
        raise OSError("a name is looked up")

    def cut() -> None:
        assert agent._connection is not None
        agent._connection.fail("cut")

    def welcomed(welcome: wire.Welcome) -> None:
        welcomes.append(welcome)
        loop.call_later(0.1, cut if len(welcomes) == 1 else loop.stop)

    welcomes: list[wire.Welcome] = []
    agent.on_welcome = welcomed
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", blocked)
        run_for(loop, 20)
    eventually(lambda: came_back == ["worker-0"])
    agent.close()
    call_in_background(endpoint.session.close)
    assert lost == []
