"""Whatever fails in an agent beside its connection is no end of that; and at the end leaving comes first."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from muster.agent.agent import Agent
from muster.agent.places import symbol
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
