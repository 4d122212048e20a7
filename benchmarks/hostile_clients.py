"""Clients that know only a port, and attack it.

    python -m benchmarks.hostile_clients PORT ATTACK

runs the attack of this name in ``ATTACKS`` against a port of loopback, until standard input ends.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.measuring import HERE

SECONDS_TO_SEND = 2.0  # after which a connection that takes no more is held as it is


@dataclass
class Attack:
    """Hostile clients of one kind, on one port.

    Args:
        what: title of the attack.
        clients: number of threads that attack.
        act: function that each thread calls, with the port, and with a function that says whether the attack is over.
    """

    what: str
    clients: int
    act: Callable[[int, Callable[[], bool]], None]


def idle(port: int, is_over: Callable[[], bool]) -> None:
    """Hold 300 connections that say nothing."""
    _hold(300, lambda: _connect(port, is_over), b"", is_over)


def hellos(port: int, is_over: Callable[[], bool]) -> None:
    """Open 20 connections one after the other, send 3 MB of a message that does not end on each, and hold them."""
    _hold(20, lambda: _tls(port, is_over), b"x" * 3_000_000, is_over)


def drip(port: int, is_over: Callable[[], bool]) -> None:
    """Send a message that does not end, a byte at a time."""
    _drip(lambda: _tls(port, is_over), b"", is_over)


def half_open(port: int, is_over: Callable[[], bool]) -> None:
    """Begin 2,000 handshakes, and end none of them."""
    greeting = _greeting()
    _hold(2000, lambda: _connect(port, is_over), greeting[: len(greeting) // 2], is_over)


def guesses(port: int, is_over: Callable[[], bool]) -> None:
    """Say hello with one token after the other, none of which is right."""
    guess = 0
    while not is_over():
        with contextlib.suppress(OSError), _tls(port, is_over) as connection:
            hello = {"type": "hello", "worker": "worker-0", "generation": 0, "token": f"{guess:064x}"}
            connection.settimeout(1)
            connection.sendall(json.dumps(hello).encode() + b"\n")
            while connection.recv(1000):
                pass
        guess += 1


def bodies(port: int, is_over: Callable[[], bool]) -> None:
    """Hold 40 requests without a key, each with all but the last byte of a body of 4 MB."""
    head = b"POST /api/v1/project/dashboards HTTP/1.1\r\nHost: x\r\nContent-Length: 4194304\r\n\r\n"
    _hold(40, lambda: _connect(port, is_over), head + b"x" * (4194304 - 1), is_over)


def headers(port: int, is_over: Callable[[], bool]) -> None:
    """Send a header that does not end, a byte at a time."""
    _drip(lambda: _connect(port, is_over), b"GET / HTTP/1.1\r\nX: ", is_over)


def _hold(number: int, connect: Callable[[], socket.socket], first: bytes, is_over: Callable[[], bool]) -> None:
    """Open as many connections, one after the other, send the same on each, and hold them until it is over."""
    with contextlib.ExitStack() as held:
        for _ in range(number):
            with contextlib.suppress(OSError):
                connection = held.enter_context(connect())
                connection.settimeout(SECONDS_TO_SEND)
                connection.sendall(first)
            if is_over():
                return
        while not is_over():
            time.sleep(0.02)


def _drip(connect: Callable[[], socket.socket], first: bytes, is_over: Callable[[], bool]) -> None:
    """Send something, and then a byte at a time; again on another connection where that is ended."""
    while not is_over():
        with contextlib.suppress(OSError), connect() as connection:
            connection.sendall(first)
            while not is_over():
                connection.sendall(b"x")


NOBODY = Attack("nobody", 0, idle)
ON_SESSION = (
    NOBODY,
    Attack("300 idle connections", 1, idle),
    Attack("20 hellos of 3 MB that do not end", 1, hellos),
    Attack("a hello, one byte at a time", 1, drip),
    Attack("2,000 handshakes that do not end", 1, half_open),
    Attack("tokens that are guessed, by 4 clients", 4, guesses),
)
ON_SERVICE = (
    NOBODY,
    Attack("300 idle connections", 1, idle),
    Attack("40 bodies of 4 MB without a key", 1, bodies),
    Attack("a header, one byte at a time", 1, headers),
    Attack("2,000 handshakes that do not end", 1, half_open),
)
ATTACKS = {attack.what: attack for attack in (*ON_SESSION, *ON_SERVICE)}


@contextlib.contextmanager
def attacking(port: int, attack: Attack) -> Iterator[None]:
    """Attack a port, from threads of this process, for as long as the block takes."""
    over = threading.Event()
    threads = [threading.Thread(target=attack.act, args=(port, over.is_set)) for _ in range(attack.clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def attacking_from_outside(port: int, attack: Attack) -> Iterator[None]:
    """Attack a port, from another process, for as long as the block takes."""
    command = [sys.executable, "-m", "benchmarks.hostile_clients", str(port), attack.what]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=HERE):  # its standard input ends with the block
        yield


def _connect(port: int, is_over: Callable[[], bool]) -> socket.socket:
    """Return a connection to this port, as soon as a process listens on it."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1)
        except ConnectionRefusedError:
            if is_over():
                raise
            time.sleep(0.005)


def _tls(port: int, is_over: Callable[[], bool]) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(_connect(port, is_over))


def _greeting() -> bytes:
    """Return the first message of a TLS client (its hello)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    return outgoing.read()


if __name__ == "__main__":
    with attacking(int(sys.argv[1]), ATTACKS[sys.argv[2]]):
        sys.stdin.read()
