"""The session's end of a pool's guard, and questions to runs: what a hostile other side says, and how long it takes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from muster.agent import frames, wire
from muster.errors import PlatformError, RunUnreachable
from muster.job import Status, Worker
from muster.platforms.pooled.guard_stream import GuardLost, GuardStream
from muster.records import control

OPENED = b'{"type":"opened","stream":1}\n'
Behaviour = Callable[[socket.socket], None]
Served = Callable[[Behaviour], Path]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Have what is given answer at the control socket of a run, whose folder is returned; one connection."""
    path = tmp_path / "socket"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen()
    server.settimeout(20)
    threads = []

    def serve(behaviour: Behaviour) -> Path:
        def answer() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.settimeout(20)
                behaviour(connection)

        threads.append(threading.Thread(target=answer))
        threads[0].start()
        control.control_file(tmp_path).write_text(json.dumps({"socket": str(path), "token": "secret"}))
        return tmp_path

    yield serve
    server.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def opened(run_dir: Path) -> GuardStream:
    return GuardStream(run_dir, Worker("handle", "worker-0", Status.RUNNING, address="127.0.0.1"))


def guard(say: Behaviour) -> Behaviour:
    """Return how a run behaves whose worker has a guard that does this once the session has asked it something."""

    def behave(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(OPENED)
        connection.recv(1 << 16)
        say(connection)
        while connection.recv(1 << 16):
            pass

    return behave


def said(payload: bytes, channel: int = 1) -> bytes:
    return wire.encode(wire.Data(1, channel, payload))


def without_end(piece: bytes, seconds: float = 120.0) -> Behaviour:
    def flood(connection: socket.socket) -> None:
        connection.setblocking(False)  # for good: what follows ends at once
        end = time.monotonic() + seconds
        rest = b""
        while time.monotonic() < end:
            with contextlib.suppress(BlockingIOError):
                connection.recv(1 << 16)  # what it is granted
            try:
                rest = rest or piece
                rest = rest[connection.send(rest) :]
            except BlockingIOError:
                time.sleep(0.001)

    return flood


@pytest.mark.parametrize("piece", [said(b"x" * 1000, 2), said(b"x"), b'{"type":"credit","stream":1,"size":1}\n'])
def test_a_guard_that_talks_without_end_takes_no_longer_than_one_that_is_silent(served: Served, piece: bytes) -> None:
    stream = opened(served(guard(without_end(piece))))
    began = time.monotonic()
    with pytest.raises(PlatformError, match="worker-0"):
        stream.ask("poll", 0.5)
    assert time.monotonic() - began < 20
    stream.give_up()
    stream.close()


def test_a_pool_is_closed_though_its_guard_talks_without_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.platforms.pooled.guard_stream.CLOSE_SECONDS", 0.5)

    def answers_first(connection: socket.socket) -> None:
        connection.sendall(said(frames.encode("reply")))
        without_end(said(b"x", 2))(connection)

    stream = opened(served(guard(answers_first)))
    began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 20


def test_answers_to_what_was_not_asked_are_no_answers_to_what_comes_next(served: Served) -> None:
    stream = opened(served(guard(lambda connection: connection.sendall(said(frames.encode("reply") * 3)))))
    with pytest.raises(GuardLost, match="not asked"):
        stream.ask("poll")


@pytest.mark.parametrize("answer", [b"nonsense\n", b"[" * 100_000 + b"\n", b"[]\n", b"{}\n", b"\xff\n"])
def test_nonsense_ends_the_guard_and_nothing_else(served: Served, answer: bytes) -> None:
    stream = opened(served(guard(lambda connection: connection.sendall(said(answer)))))
    with pytest.raises(GuardLost, match="worker-0"):
        stream.ask("poll")


def test_an_answer_has_the_length_of_a_message_at_most(served: Served) -> None:
    def endless(connection: socket.socket) -> None:
        for _ in range(40):
            connection.sendall(said(b"x" * (1 << 15)))

    stream = opened(served(guard(endless)))
    with pytest.raises(GuardLost, match="longer than"):
        stream.ask("poll")


def test_what_a_guard_says_of_an_error_is_cut(served: Served) -> None:
    text = said(frames.encode("reply", error="\x1b[2J" + "x" * 100_000))
    stream = opened(served(guard(lambda connection: connection.sendall(text))))
    with pytest.raises(PlatformError) as error:
        stream.ask("poll")
    stream.give_up()
    stream.close()
    assert "\x1b" not in str(error.value)
    assert len(str(error.value)) < 5000


def test_a_guard_that_was_silent_for_long_is_heard_again(served: Served) -> None:
    """A halted worker takes no more requests at some point: what was never sent is not waited for."""
    goes_on = threading.Event()

    def halted(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(OPENED)
        requests, decoder = frames.Decoder(), frames.Decoder()
        waiting: list[bytes] = []
        connection.settimeout(0.02)
        while not goes_on.is_set() or waiting:
            with contextlib.suppress(TimeoutError):
                waiting += [message["payload"] for message in decoder.feed(connection.recv(1 << 16))]
            while goes_on.is_set() and waiting:
                payload = waiting.pop(0)
                connection.sendall(wire.encode(wire.Credit(1, wire.cost(payload))))
                for _ in requests.feed(payload):
                    connection.sendall(said(frames.encode("reply")))
        connection.settimeout(20)
        while data := connection.recv(1 << 16):
            for message in decoder.feed(data):
                if message["type"] == "data":
                    for _ in requests.feed(message["payload"]):
                        connection.sendall(said(frames.encode("reply")))

    stream = opened(served(halted))
    for _ in range(8):  # more than it has given credit for
        with pytest.raises(PlatformError, match="does not answer"):
            stream.ask("poll", 0.05, ids=["x" * 20_000])
    goes_on.set()
    assert stream.ask("poll", 5) == {}
    stream.give_up()
    stream.close()


def dribbles(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    for _ in range(60_000):
        connection.sendall(b" ")
        time.sleep(0.002)


def test_who_answers_at_a_control_socket_a_byte_at_a_time_is_not_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SECONDS_TO_ANSWER", 0.4)
    run_dir = served(dribbles)
    began = time.monotonic()
    with pytest.raises(RunUnreachable, match="does not answer"):
        control.ask(run_dir, "time")
    assert time.monotonic() - began < 20


def test_a_stream_that_opens_a_byte_at_a_time_is_not_waited_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SECONDS_TO_OPEN", 0.4)
    run_dir = served(dribbles)
    began = time.monotonic()
    with pytest.raises(RunUnreachable):
        control.open_stream(run_dir, "exec")
    assert time.monotonic() - began < 20


@pytest.mark.parametrize("answer", [b"3\n", b"null\n", b'"error"\n', b"[]\n"])
def test_how_a_stream_begins_is_checked(served: Served, answer: bytes) -> None:
    def other(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    run_dir = served(other)
    with pytest.raises(RunUnreachable, match="answer"):
        control.open_stream(run_dir, "exec")


def test_how_a_stream_begins_has_a_longest_length(served: Served) -> None:
    def other(connection: socket.socket) -> None:
        connection.recv(1 << 16)
        for _ in range(64):
            connection.sendall(b" " * (1 << 16))

    run_dir = served(other)
    with pytest.raises(RunUnreachable, match="too long"):
        control.open_stream(run_dir, "exec")
