"""The agent's link by itself: it waits for nobody for ever, and its one thread never waits for a name."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import link, wire
from muster.agent.loop import Loop
from muster.pools.listener import server_context
from muster.runtime.background import call_in_background

from tests.listening import Listening

HELLO = wire.Hello(wire.VERSION, "token", "worker-0", 5, "10.0.0.1")


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def run_for(loop: Loop, seconds: float) -> None:
    loop.call_later(seconds, loop.stop)
    loop.run()


def test_a_session_that_never_answers_the_first_hello_is_given_up(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "DIAL_TIMEOUT", 0.5)
    context, certificate = server_context(tmp_path, "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        held: list[ssl.SSLSocket] = []
        thread = threading.Thread(target=lambda: held.append(context.wrap_socket(listener.accept()[0], True)))
        thread.start()
        lost: list[str] = []
        agent = link.Link(loop, lambda fields: None, lost.append)
        agent.dial({"host": "127.0.0.1", "port": listener.getsockname()[1], "certificate": certificate})
        thread.join(5)
        began = time.monotonic()
        agent.introduce(HELLO)
        run_for(loop, 1.5)
        for connection in held:
            connection.close()
    assert time.monotonic() - began < 5
    assert lost == ["the session did not answer in time"]


def test_dialling_again_looks_up_no_name(loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = Listening(tmp_path, lease_seconds=2.0)
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

    loop.call_later(0.3, cut)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", blocked)
        run_for(loop, 1.3)
    assert came_back == ["worker-0"]
    agent.close()
    call_in_background(endpoint.session.close)
    assert lost == []
