"""A launcher that a worker's agent runs, because the session does not reach the workers by itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster.platforms.local import LocalPlatform

from tests.agent.launched import Launched, platform
from tests.support import Run, StubSession

__all__ = ["platform"]


def test_its_program_is_found_where_the_workers_own_are(
    run: Run, stub_session: StubSession, platform: LocalPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an image's python3 may be in a folder that only the image's PATH has."""
    program = tmp_path / "bin" / "python-of-the-image"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "PATH is $PATH"\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    worker = Launched(run, stub_session, platform)
    order = {"argv": [program.name], "env": {"PATH": "/usr/bin:/bin"}, "line": [], "files": {}}
    worker.send("launch", cwd=str(tmp_path / "launcher"), **order)
    assert worker.session.wait_for("launcher_exited")["exit_code"] == 7
    assert worker.session.wait_for("launcher_output")["text"] == "PATH is /usr/bin:/bin\n"
