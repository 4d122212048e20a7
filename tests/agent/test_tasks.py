"""Tasks that have returned and serve the others, until the agent lets them end."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from muster.agent import runner


def test_a_task_waits_as_well_where_one_of_an_attempt_before_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_SCRATCH", str(tmp_path))
    monkeypatch.setenv("MUSTER_REPORT", str(tmp_path / "report.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(str(tmp_path / "report.sock"))

        def release() -> None:
            assert b"returned" in reports.recv(1000)
            reports.sendto(b".", str(tmp_path / "done.sock"))

        for _ in range(2):
            agent = threading.Thread(target=release, daemon=True)
            agent.start()
            runner._wait_for_other_tasks()
            agent.join()
