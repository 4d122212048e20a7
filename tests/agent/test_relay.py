"""The relay of connections on a machine between the session and its workers."""

from __future__ import annotations

import os
import socket
import threading
import time

import pytest
from muster.agent.relay import ROOM, TcpRelay

from tests.support import eventually

HERE = "127.0.0.1"
MEGABYTES = os.urandom(8 << 20)


def dial(relay: TcpRelay) -> socket.socket:
    made = socket.create_connection((HERE, relay.port), timeout=20)
    made.settimeout(20)
    return made


def received(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = connection.recv(1 << 16)
        if not data:
            break
        found += data
    return bytes(found)


def test_many_connections_carry_what_is_sent_either_way_at_the_same_time() -> None:
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())

        def answer() -> None:
            for _ in range(8):
                connection, _ = session.accept()
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

        def echo(connection: socket.socket) -> None:
            with connection:
                while data := connection.recv(1 << 16):
                    connection.sendall(data)

        threading.Thread(target=answer, daemon=True).start()
        agents = [dial(relay) for _ in range(8)]
        senders = [threading.Thread(target=agent.sendall, args=(MEGABYTES,), daemon=True) for agent in agents]
        for sender in senders:
            sender.start()
        for agent in agents:
            with agent:
                assert received(agent, len(MEGABYTES)) == MEGABYTES


def test_who_does_not_read_holds_up_the_other_side_and_nobody_else() -> None:
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())
        with dial(relay) as flooding, session.accept()[0]:  # which is never read
            flooding.settimeout(1)
            sent = 0
            try:
                while sent < 64 << 20:
                    sent += flooding.send(MEGABYTES[: 1 << 16])
            except TimeoutError:
                pass
            assert ROOM < sent < 32 << 20  # what the relay keeps, and the kernel's buffers
            with dial(relay) as other, session.accept()[0] as far:
                other.sendall(b"hello")
                assert received(far, 5) == b"hello"


def test_the_last_bytes_arrive_before_the_end() -> None:
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())
        with dial(relay) as agent:
            far, _ = session.accept()
            with far:
                far.sendall(MEGABYTES[: 1 << 20])
            assert received(agent, 2 << 20) == MEGABYTES[: 1 << 20]


def test_while_the_session_cannot_be_reached_connections_end_and_later_ones_come_through() -> None:
    with socket.create_server((HERE, 0)) as session:
        address = session.getsockname()
    relay = TcpRelay(HERE, address)
    with dial(relay) as agent:
        assert received(agent, 1) == b""
    with socket.create_server(address) as session, dial(relay) as agent, session.accept()[0] as far:
        agent.sendall(b"hello")
        assert received(far, 5) == b"hello"


def test_an_end_of_either_side_is_the_others_soon() -> None:
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())
        for ends in (0, 1):
            sides = [dial(relay), session.accept()[0]]
            began = time.monotonic()
            sides[ends].close()
            with sides[1 - ends] as other:
                other.settimeout(5)
                assert other.recv(1) == b""
            assert time.monotonic() - began < 5


def test_what_the_session_sends_is_a_sign_of_its_life() -> None:
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())
        began = relay.heard_at
        with dial(relay) as agent, session.accept()[0] as far:
            agent.sendall(b"x")
            assert received(far, 1) == b"x"
            assert relay.heard_at == began
            far.sendall(b"y")
            assert received(agent, 1) == b"y"
            assert relay.heard_at > began


def test_a_relay_that_is_closed_ends_its_connections_and_takes_no_others() -> None:
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())
        with dial(relay) as agent, session.accept()[0] as far:
            relay.close()
            far.settimeout(20)
            assert received(agent, 1) == received(far, 1) == b""
        with pytest.raises(ConnectionRefusedError):
            dial(relay)


def test_no_more_connections_are_taken_than_leave_room_for_other_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.agent.relay.MOST", 2)
    with socket.create_server((HERE, 0)) as session:
        relay = TcpRelay(HERE, session.getsockname())
        with dial(relay), session.accept()[0]:
            with dial(relay), session.accept()[0], dial(relay) as third:
                assert received(third, 1) == b""
            eventually(lambda: len(relay._sides) == 2, "there is room for one again")
            with dial(relay) as fourth, session.accept()[0] as far:
                fourth.sendall(b"x")
                assert received(far, 1) == b"x"
