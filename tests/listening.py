"""A listening endpoint, for tests of how it treats its clients, with real TLS and on the real background thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from muster.agent import frames, wire
from muster.job import SessionAddress
from muster.pools.endpoint import Endpoint
from muster.runtime.background import background_loop

from tests.support import TIMEOUT

EXITED = frames.encode("exited", pid=1, exit_code=0)
USAGE = frames.encode("usage", cpu=1.0, memory=5)


def kind_of(message: Any) -> str:
    return wire.KINDS.get(type(message), "clock")


class Listening:
    """A listening endpoint, the messages that it has received, and the workers that it has lost."""

    def __init__(self, folder: Path, lease_seconds: float = 0.0) -> None:
        self.messages: list[tuple[str, Any]] = []
        self.lost: list[str] = []
        self.session = Endpoint(["worker-0", "worker-1"], lease_seconds)
        self.session.on_message = lambda worker, message: self.messages.append((worker, message))
        self.session.on_lost = self.lost.append
        opened = asyncio.run_coroutine_threadsafe(self.session.open(folder, "127.0.0.1"), background_loop())
        opened.result(timeout=10)
        self.address: SessionAddress = self.session.address_for("worker-0")

    def dial(self) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.load_verify_locations(cadata=self.address.certificate)
        return context.wrap_socket(self.connect())

    def connect(self) -> socket.socket:
        """Connect without TLS."""
        return socket.create_connection((self.address.host, self.address.port), timeout=20)

    def kinds(self) -> list[str]:
        return [kind_of(message) for _, message in self.messages]

    def hello(self, **fields: Any) -> dict[str, Any]:
        who = {"worker": "worker-0", "host": "h", "pid": 1, **fields}
        name = who["worker"] if who["worker"] in ("worker-0", "worker-1") else "worker-0"
        return {"version": wire.VERSION, "token": self.session.address_for(name).token, **who}


def answer(client: ssl.SSLSocket) -> dict[str, Any]:
    """Return the next message of the session; an empty one at the end of the connection."""
    line = client.makefile("rb").readline()
    return dict(json.loads(line)) if line else {}


def eventually(condition: Callable[[], bool], seconds: float = TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@contextlib.contextmanager
def not_reading() -> Iterator[None]:
    """Block the background thread, so that sessions read all that is sent within the block in one round."""
    reading = threading.Event()
    background_loop().call_soon_threadsafe(reading.wait)
    try:
        yield
    finally:
        reading.set()
