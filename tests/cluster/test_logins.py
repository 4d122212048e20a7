"""Workers whose sshd is not reached from the session."""

from __future__ import annotations

import asyncio
import socket

import pytest
from muster.job import Member
from muster.run import logins
from muster.run.logins import with_reachable_sshd


def members(*ports: int | None) -> dict[str, Member]:
    made = [Member(f"worker-{index}", "worker", index, "127.0.0.1", ssh_port=port) for index, port in enumerate(ports)]
    return {member.name: member for member in made}


def test_one_that_listens_stays_and_one_that_refuses_loses_its_port_with_the_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # nobody listens, and nobody else takes it
        there = members(listening.getsockname()[1], bound.getsockname()[1], None)
        found = asyncio.run(with_reachable_sshd(there))
        assert found["worker-0"] == there["worker-0"]
        assert found["worker-1"].ssh_port is None
        refused = f"port {bound.getsockname()[1]} of 127.0.0.1 cannot be reached from the session"
        assert found["worker-1"].no_ssh.startswith(refused)
        assert found["worker-2"] == there["worker-2"]


def test_one_that_never_answers_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "CONNECT_SECONDS", 0.1)
    with socket.socket() as full:  # its queue takes no more, as if a firewall dropped what comes
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            found = asyncio.run(with_reachable_sshd(members(full.getsockname()[1])))
    assert found["worker-0"].no_ssh.endswith("no answer within 0.1 s")
