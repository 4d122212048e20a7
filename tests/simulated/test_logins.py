"""Which workers the session can log in to."""

from __future__ import annotations

import asyncio
import socket

from muster.job import Member
from muster.run import logins


def reachable(*members: Member) -> dict[str, Member]:
    return asyncio.run(logins.with_reachable_sshd({member.name: member for member in members}))


def test_workers_that_can_be_reached_stay_as_they_are() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        members = [
            Member("worker-0", "worker", 0, "127.0.0.1", ssh_port=port),
            Member("worker-1", "worker", 1, "127.0.0.1"),  # it runs no sshd
        ]
        assert list(reachable(*members).values()) == members


def test_one_that_refuses_has_no_sshd_for_the_session_and_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    found = reachable(Member("worker-0", "worker", 0, "127.0.0.1", ssh_port=port))["worker-0"]
    assert found.ssh_port is None
    assert (found.no_ssh or "").startswith(f"port {port} of 127.0.0.1 cannot be reached from the session: ")
