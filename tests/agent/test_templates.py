"""The guard's template, where it does not become what it is to be."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from muster.agent import templates
from muster.agent.loop import Loop
from muster.agent.templates import Templates


def test_imports_that_do_not_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "IMPORT_SECONDS", 0.05)
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o700)
    loop = Loop()
    made = Templates(loop)
    made.note({"python": str(python), "env": {}, "imports": ["heavy"]})
    made.prepare()
    pid = made.pid
    assert made.state == "importing"
    loop.call_later(0.1, loop.stop)
    loop.run()
    loop.close()
    assert (made.state, made.pid) == ("unsafe", 0)
    assert "its imports take longer than" in made.why
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    made.prepare()
    assert made.pid == 0  # not again, until a run needs something else
