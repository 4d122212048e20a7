"""The guard that cleans up after a session: what it has heard when that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import muster
from muster.platforms.guard_process import GuardProcess
from muster.platforms.session_guard import SessionGuard

from tests.support import eventually, guards_and_logins

GUARD = """
import pathlib, sys
from muster.platforms.session_guard import serve
serve(lambda facts: pathlib.Path(facts["folder"], "cleaned").write_text(str(facts["jobs"])))
"""


def test_a_guard_cleans_up_where_the_session_is_killed_while_it_says_something(tmp_path: Path) -> None:
    facts = b'{"session": [%d, 0], "jobs": [], "folder": "%s"}\n' % (os.getpid(), bytes(tmp_path))
    told = b'{"jobs": [1]}\n{"jobs": [1, 2'
    environ = {**os.environ, "PYTHONPATH": str(Path(muster.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", GUARD], input=facts + told, env=environ, check=False)
    assert (done.returncode, (tmp_path / "cleaned").read_text()) == (0, "[1]")


def test_the_tests_see_a_guard_that_somebody_forgets() -> None:
    guard = GuardProcess()
    try:
        eventually(lambda: guard.pid in guards_and_logins(), "it is seen")
    finally:
        guard.close()
    assert guard.pid not in guards_and_logins()


def test_a_guard_that_has_cleaned_up_is_reaped_when_the_next_one_does() -> None:
    first, second = SessionGuard("this", {}), SessionGuard("this", {})  # a module that ends at once
    first.clean_up()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    second.clean_up()
    assert not Path(f"/proc/{first.pid}").exists()
