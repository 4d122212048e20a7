"""Whatever fails in an agent beside its connection is no end of that; and at the end leaving comes first."""

from __future__ import annotations

import errno
import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from muster.agent import wire
from muster.agent.agent import Agent
from muster.agent.places import symbol
from muster.agent.streams import Streams
from muster.platforms.local import LocalPlatform

from tests.agent.launched import Launched, platform
from tests.support import Run, StubSession

__all__ = ["platform"]


def test_an_order_that_cannot_be_carried_out_ends_neither_agent_nor_connection(
    run: Run, stub_session: StubSession, platform: LocalPlatform, tmp_path: Path
) -> None:
    worker = Launched(run, stub_session, platform, places={"project": str(tmp_path)})
    (tmp_path / "file").touch()
    worker.send("start", argv=["/bin/true"], env={}, cwd=f"{symbol('project')}/file/folder")
    assert "could not do what the session says" in stub_session.wait_for("error")["text"]
    worker.send("ping", number=1)
    stub_session.wait_for("clock")


def test_at_the_end_of_the_lease_leaving_comes_before_writing() -> None:
    done: list[str] = []

    def write(text: str) -> None:
        done.append("written")
        raise OSError(errno.EIO, "a log that raises all the same, or never returns")

    agent: Any = SimpleNamespace(_leave_politely=lambda: done.append("left"), _log=SimpleNamespace(write=write))
    with pytest.raises(OSError, match="a log"):
        Agent._session_lost(agent, "cut")
    assert done == ["left", "written"]


def test_an_order_that_the_run_can_go_on_without_ends_no_worker() -> None:
    told: list[str] = []

    def fail(order: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    agent: Any = SimpleNamespace(
        _orders={wire.AskStacks: fail, wire.Start: fail, wire.Dial: fail},
        complain=lambda text: told.append("lost"),
        remark=lambda text: told.append("noted"),
    )
    for order in (wire.AskStacks(), wire.Dial(1, 80), wire.Start(("true",), {})):
        fields, _ = json.JSONDecoder().raw_decode(wire.encode(order).decode())
        Agent._obey(agent, fields)
    assert told == ["noted", "noted", "lost"]


def test_a_port_that_cannot_be_dialled_for_want_of_descriptors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    told: list[Any] = []
    no_loop: Any = None
    streams = Streams(no_loop, no_loop, told.append, lambda: "127.0.0.1")
    monkeypatch.setattr(socket, "socket", fail)
    streams.dial(wire.Dial(1, 80))
    streams.dial(wire.Dial(1, 80))
    assert [(type(message), "port 80: too many open files" in message.text) for message in told] == [
        (wire.Closed, True),
        (wire.Closed, True),
    ]
