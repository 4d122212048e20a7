"""Shared memory and semaphores of the user's processes: what removes them after a kill is given time to do so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.scene import Scene
from tests.support import eventually

SHARED = """
import multiprocessing, time
from multiprocessing import resource_tracker, shared_memory

memory = shared_memory.SharedMemory(create=True, size=1000)
lock = multiprocessing.get_context("spawn").Lock()
print("made", memory.name.lstrip("/"), "sem." + lock._semlock.name.lstrip("/"), flush=True)
print("ready", flush=True)
time.sleep(600)
"""
LINGERS = SHARED.replace('print("ready"', 'import os, sys\nif not os.fork():\n    time.sleep(600)\nprint("ready"')


def shared_by(scene: Scene) -> list[Path]:
    """The files of all shared memory that the scripts have said they have made."""
    logs = [(scene.recorded.run_dir / "logs" / f"{worker}.log").read_text() for worker in scene.recorded.worker_names]
    names = [name for log in logs for made in re.findall(r"^made (.*)", log, re.MULTILINE) for name in made.split()]
    return [Path("/dev/shm", name) for name in names]


@pytest.mark.parametrize("script", [SHARED, LINGERS], ids=["alone", "with a child"])
@pytest.mark.parametrize("end", ["stop", "process worker-0", "agent worker-0", "guard"])
def test_what_removes_shared_memory_does_so_however_its_process_ends(scene: Scene, script: str, end: str) -> None:
    cluster = scene.start(script)
    scene.wait_for_phase("training")
    shared = shared_by(scene)
    assert len(shared) == 4
    assert all(path.exists() for path in shared)
    if end == "stop":
        cluster.stop()
    else:
        scene.kill(end)
        eventually(lambda: scene.events("run_ended"), "the run has ended")
    eventually(lambda: not any(path.exists() for path in shared), f"all is removed: {shared}", 5)
    scene.assert_nothing_left()


def test_a_process_that_is_only_called_like_that_does_not_stay(scene: Scene) -> None:
    pretends = """
        import subprocess, sys, time
        code = "import time; time.sleep(600)  # from multiprocessing.resource_tracker import main;main(3)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        print("ready", flush=True)
    """
    scene.run(pretends)
    scene.assert_nothing_left()
