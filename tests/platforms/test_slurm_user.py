"""Runs on a real Slurm of a user who has no rights but those of an account."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.platforms import slurm_engine
from tests.platforms.slurm_engine import USER, Engine
from tests.support import eventually

pytestmark = pytest.mark.slow

TRAINS = """
import os, muster
from pathlib import Path
Path("train.py").write_text('''
import os
from pathlib import Path
print(os.uname().nodename, os.getuid(), os.getgid())
Path(os.environ["MUSTER_RESULTS"], os.environ["RANK"]).touch()
''')
run = muster.run_cluster(
    2, strategy="processes", worker_script="train.py", platform="slurm", nodes=2, memory=0.5, dashboard=False
).cluster
print(*(run.logs(f"worker-{index}").strip() for index in range(2)), *sorted(os.listdir(run.run_dir / "results")))
"""
IS_KILLED = """
import os, muster, signal, time
from pathlib import Path
Path("train.py").write_text("import time\\nprint('started', flush=True)\\ntime.sleep(600)\\n")
run = muster.run_cluster(
    2, strategy="processes", worker_script="train.py", platform="slurm", memory=0.5, dashboard=False, wait=False
).cluster
while not all("started" in run.logs(f"worker-{index}") for index in range(2)):
    time.sleep(0.1)
print("started", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Engine]:
    """A Slurm of two nodes that has an ordinary user."""
    reason = slurm_engine.why_not()
    root = None if reason else slurm_engine.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Slurm cannot be fetched here")
    engine = Engine(root, has_user=True)
    yield engine
    engine.remove()


def left_of_the_user(slurm: Engine) -> list[object]:
    """Return the user's jobs and processes, and files that submissions have left."""
    submissions = slurm.folder / "home" / ".muster" / "slurm"
    processes = [process for process in psutil.process_iter(["uids"]) if process.info["uids"].real == USER]
    return [*slurm.jobs(), *processes, *submissions.iterdir(), *Path("/tmp").glob(f"muster-*-{USER}-*")]


def test_workers_have_the_rights_of_the_user(slurm: Engine) -> None:
    done = slurm.as_user(TRAINS)
    assert done.stdout == f"n1 {USER} {USER} n2 {USER} {USER} 0 1\n", done.stderr
    eventually(lambda: left_of_the_user(slurm) == [], "nothing is left")


def test_nothing_is_left_when_the_session_is_killed(slurm: Engine) -> None:
    done = slurm.as_user(IS_KILLED)
    assert done.stdout == "started\n", done.stderr
    eventually(lambda: left_of_the_user(slurm) == [], "nothing is left", 60)
