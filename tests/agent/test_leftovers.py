"""Processes that remove what others have shared are known as such, whatever Python has started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from muster.agent.leftovers import removes_what_is_shared
from muster.agent.linux import descendants, environment_of, marked, snapshot

from tests.support import eventually

SCRIPT = """
import multiprocessing, sys
lock = multiprocessing.get_context("spawn").Lock()
print("made", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("version", ["this", "3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13"])
def test_the_process_beside_a_script_that_removes_its_semaphores_is_known(tmp_path: Path, version: str) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    if not found and version != "this":
        pytest.skip(f"there is no Python {version}")
    python = sys.executable if version == "this" else str(found[0])
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
        [python, str(tmp_path / "script.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == b"made\n"
        assert not removes_what_is_shared(script.pid)
        eventually(lambda: any(map(removes_what_is_shared, descendants(script.pid, snapshot()))), "it is known")
        script.communicate(b"")


def test_a_process_is_found_by_its_environment_also_in_the_middle_of_an_exec(tmp_path: Path) -> None:
    script = tmp_path / "again.sh"
    script.write_text("exec /bin/sh $0\n")
    with subprocess.Popen(["/bin/sh", str(script)], env={"MARK_OF_THIS_TEST": str(tmp_path)}) as process:
        eventually(lambda: marked("MARK_OF_THIS_TEST", str(tmp_path)), "it has begun")
        missed = [look for look in range(1000) if marked("MARK_OF_THIS_TEST", str(tmp_path)) != [process.pid]]
        process.kill()
    assert not missed


def test_a_process_without_an_environment_has_an_empty_one() -> None:
    with subprocess.Popen(["/bin/sleep", "60"], env={}) as process:
        assert environment_of(process.pid) == set()
        process.kill()
