"""Tasks that have returned and serve the others, until the agent lets them end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import pytest
from muster.runner import tasks


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
            tasks.wait_for_others()
            agent.join()


def test_a_fork_of_a_task_neither_returns_nor_serves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_SCRATCH", str(tmp_path))
    monkeypatch.setenv("MUSTER_REPORT", str(tmp_path / "report.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as reports:
        reports.bind(str(tmp_path / "report.sock"))
        reports.setblocking(False)
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            tasks.wait_for_others()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with pytest.raises(BlockingIOError):
            reports.recv(1000)
