"""Streams of an agent without a session."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
from muster.agent import streams, wire
from muster.agent.loop import Loop


def test_a_port_that_nothing_listens_on_where_the_kernel_has_no_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnlyIPv4(socket.socket):
        def __init__(self, family: int = -1, *args: Any, **kwargs: Any) -> None:
            if family == socket.AF_INET6:
                raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
            super().__init__(family, *args, **kwargs)

    loop, sent = Loop(), []

    def send(message: Any) -> None:
        sent.append(message)
        loop.stop()

    processes: Any = None
    loop.call_later(10, loop.stop)
    with socket.socket() as deaf:  # it is bound, but does not listen
        deaf.bind(("127.0.0.1", 0))
        monkeypatch.setattr(socket, "socket", OnlyIPv4)
        streams.Streams(loop, processes, send, lambda: "127.0.0.1").dial(wire.Dial(1, deaf.getsockname()[1]))
        if not sent:
            loop.run()
    loop.close()
    assert isinstance(sent[0], wire.Closed)
    assert "nothing on this worker takes connections" in sent[0].text


def test_a_connection_that_is_ended_as_data_comes_is_read_no_more() -> None:
    loop = Loop()
    sent: list[Any] = []
    processes: Any = None
    ours = streams.Streams(loop, processes, sent.append, lambda: "127.0.0.1")
    asks, asked = socket.socketpair()

    def end() -> None:
        ours.end(wire.Close(1))
        loop.call_later(0, loop.stop)

    def send_both() -> None:  # so that one round of the loop has both
        asks.sendall(b"x")
        program.sendall(b"x")

    with asks, asked, socket.create_server(("127.0.0.1", 0)) as listener:
        loop.on_readable(asked, end)
        loop.call_later(10, loop.stop)
        ours.dial(wire.Dial(1, listener.getsockname()[1]))
        program, _ = listener.accept()
        with program:
            loop.call_later(0.1, send_both)
            loop.run()
    loop.close()
    assert [type(message) for message in sent] == [wire.Opened]
