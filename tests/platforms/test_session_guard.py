"""The guard that cleans up after a session: what it has heard when that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import muster
import pytest
from muster.agent import linux
from muster.platforms.guard_process import GuardProcess
from muster.platforms.session_guard import SessionGuard

from tests.support import eventually, guards_and_logins

CLEANS_UP = """
import pathlib
def clean_up(facts):
    pathlib.Path(facts["folder"], "cleaned").write_text(str(facts["jobs"]))
pathlib.Path(__file__).with_name("imported").touch()
"""
FAILS = """
import pathlib
def clean_up(facts):
    with pathlib.Path(facts["folder"], "tries").open("a") as file:
        file.write("failed\\n")
    raise OSError("its engine is gone")
"""
GUARD = [
    sys.executable,
    "-I",
    "-S",
    str(Path(muster.__file__).parent / "agent" / "__main__.py"),
    "session",
    "cleans_up",
]


@pytest.fixture
def facts(tmp_path: Path) -> bytes:
    """What a session tells its guard first; after its end a module is to clean up that notes when it is imported."""
    (tmp_path / "cleans_up.py").write_text(CLEANS_UP)
    known = {"session": [os.getpid(), 0], "path": [str(tmp_path), *sys.path], "jobs": [], "folder": str(tmp_path)}
    return json.dumps(known).encode() + b"\n"


def test_a_guard_cleans_up_where_the_session_is_killed_while_it_says_something(tmp_path: Path, facts: bytes) -> None:
    told = b'{"jobs": [1]}\n{"jobs": [1, 2'
    done = subprocess.run(GUARD, input=facts + told, check=False)
    assert (done.returncode, (tmp_path / "cleaned").read_text()) == (0, "[1]")


def test_a_guard_whose_engine_is_gone_tries_once_more_when_it_is_to_end(tmp_path: Path, facts: bytes) -> None:
    (tmp_path / "cleans_up.py").write_text(FAILS)
    tries = tmp_path / "tries"
    guard = subprocess.Popen(GUARD, stdin=subprocess.PIPE)
    try:
        assert guard.stdin is not None
        guard.stdin.write(facts)
        guard.stdin.close()
        eventually(tries.exists, "it has tried")
        before = tries.read_text()
        guard.terminate()
        assert guard.wait(20) == 0
    finally:
        guard.kill()
        guard.wait()
    assert len(tries.read_text()) > len(before)


def test_a_guard_imports_what_cleans_up_only_where_a_session_lasts(tmp_path: Path, facts: bytes) -> None:
    facts = facts.replace(b", 0]", b", %d]" % linux.start_of(os.getpid()))
    subprocess.run(GUARD, input=facts + b'{"done": true}\n', check=True)
    assert not (tmp_path / "imported").exists()
    soon = "from muster.agent import session_end as end; end.PREPARE_SECONDS = 0.01; end.main('cleans_up')"
    lasting = subprocess.Popen([sys.executable, "-c", soon], stdin=subprocess.PIPE)
    assert lasting.stdin is not None
    lasting.stdin.write(facts)
    lasting.stdin.flush()
    eventually((tmp_path / "imported").exists, "it is imported before it is needed")
    lasting.terminate()  # as at a logout, which the session may outlive
    lasting.communicate(b'{"done": true}\n')
    assert lasting.returncode == 0
    assert not (tmp_path / "cleaned").exists()


def test_a_file_of_the_users_stands_in_for_no_module_in_a_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a script comes first on the path of its session, which may never import that module."""
    (tmp_path / "cleans_up.py").write_text(f"import chunk\n{CLEANS_UP}")
    (tmp_path / "chunk.py").write_text(f"open({str(tmp_path / 'mine')!r}, 'w')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(linux, "start_of", lambda pid: 0)  # so that the session counts as ended
    guard = SessionGuard("cleans_up", {"jobs": [], "folder": str(tmp_path)})
    eventually((tmp_path / "cleaned").exists, "it has cleaned up")
    guard.close()
    assert not (tmp_path / "mine").exists()


def test_what_a_pth_file_has_found_is_found_in_a_guard_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``pip install -e`` of a platform's package leaves a file that imports what finds its modules."""
    site, source = tmp_path / "site-packages", tmp_path / "source"
    site.mkdir()
    source.mkdir()
    (source / "cleans_up.py").write_text(CLEANS_UP)
    (site / "editable.pth").write_text("import finds_editable\n")
    (site / "finds_editable.py").write_text(f"import sys\nsys.path.append({str(source)!r})\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(site)])
    monkeypatch.setattr(linux, "start_of", lambda pid: 0)  # so that the session counts as ended
    guard = SessionGuard("cleans_up", {"jobs": [], "folder": str(tmp_path)})
    eventually((tmp_path / "cleaned").exists, "it has cleaned up")
    guard.close()


def test_the_tests_see_a_guard_that_somebody_forgets() -> None:
    guard = GuardProcess()
    try:
        eventually(lambda: guard.pid in guards_and_logins(), "it is seen")
    finally:
        guard.close()
    assert guard.pid not in guards_and_logins()


def test_a_guard_that_has_cleaned_up_is_reaped_when_the_next_one_does(
    tmp_path: Path, facts: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    first, second = (SessionGuard("cleans_up", {"folder": str(tmp_path), "jobs": []}) for _ in range(2))
    first.clean_up()
    os.waitid(os.P_PID, first.pid, os.WEXITED | os.WNOWAIT)
    second.clean_up()
    assert not Path(f"/proc/{first.pid}").exists()
