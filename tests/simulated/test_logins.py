"""Which workers a launcher can log in to."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from muster.agent import wire
from muster.job import SESSION, Member
from muster.run import logins
from muster.run.streams import Streams


def reachable(*members: Member, launcher_at: str = SESSION, agent: Any = None) -> dict[str, Member]:
    """Return the members as they are for a launcher, perhaps one on a worker whose agent answers by ``agent``."""

    async def look() -> dict[str, Member]:
        streams = Streams(lambda name, message: agent is not None and agent(streams, name, message))
        return await logins.with_reachable_sshd({member.name: member for member in members}, launcher_at, streams)

    return asyncio.run(look())


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


def test_one_that_never_answers_is_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "CONNECT_SECONDS", 0.02)
    with socket.socket() as full:  # its queue takes no more, as if a firewall dropped what comes
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            port = full.getsockname()[1]
            found = reachable(Member("worker-0", "worker", 0, "127.0.0.1", ssh_port=port))["worker-0"]
    assert found.no_ssh.endswith("no answer within 0.02 s")


WORKERS = [Member(f"worker-{index}", "worker", index, f"10.0.0.{index}", ssh_port=2222) for index in range(3)]


@pytest.mark.parametrize("refused", ["", "connection refused"])
def test_a_launcher_on_a_worker_has_its_agent_try(refused: str) -> None:
    asked = []

    def agent(streams: Streams, name: str, message: Any) -> bool:
        if isinstance(message, wire.Dial):
            asked.append((name, message.host, message.port))
            is_refused = refused and message.host == "10.0.0.2"
            answer = wire.Closed(message.stream, text=refused) if is_refused else wire.Opened(message.stream)
            streams.on_message(name, answer)
        return True

    found = reachable(*WORKERS, launcher_at="worker-0", agent=agent)
    assert asked == [("worker-0", f"10.0.0.{index}", 2222) for index in range(3)]
    assert list(found.values())[:2] == WORKERS[:2]
    why = "port 2222 of 10.0.0.2 cannot be reached from worker-0: connection refused"
    assert found["worker-2"].no_ssh == (why if refused else "")
    assert found["worker-2"].ssh_port == (None if refused else 2222)


def test_a_worker_that_is_gone_meanwhile_says_nothing_about_the_others() -> None:
    assert list(reachable(*WORKERS, launcher_at="worker-0").values()) == WORKERS
