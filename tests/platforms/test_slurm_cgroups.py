"""Ends that a real Slurm causes by control groups, which keep each step to its memory (task/cgroup)."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.job import EndCause, Resources, Status
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.queue import Queue
from muster.platforms.slurm.site import HERE

from tests.platforms import slurm_engine
from tests.platforms.slurm_engine import Engine
from tests.support import Run, eventually, shell

pytestmark = pytest.mark.slow

ENDS_SECONDS = 60
# The kernel ends the largest process of a control group, which is the script's, unless it is told to prefer another.
# The agent is that other one here; stopped, as it would tell of the memory itself.
KILL_THE_AGENT = (
    "kill -STOP $PPID; echo 1000 > /proc/$PPID/oom_score_adj; "
    f"exec {sys.executable} -I -S -c 'x = bytearray(b\".\") * (600 << 20)'"
)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A Slurm of one node, whose commands are on the search path."""
    reason = slurm_engine.why_not()
    root = None if reason else slurm_engine.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Slurm cannot be fetched here")
    if not Path("/sys/fs/cgroup/memory").is_dir():
        pytest.skip("this machine has no control groups of version 1, which is what Slurm 22.05 tells of")
    engine = Engine(root, [f"n{secrets.token_hex(3)}"], has_cgroups=True)
    monkeypatch.setenv("PATH", engine.path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    yield engine
    engine.expect_nothing_left()
    engine.remove()


@pytest.mark.parametrize("others", [[], ["worker-1"]], ids=["the job ends with it", "another goes on"])
def test_an_agent_that_the_kernel_kills_for_the_memory_of_its_step_is_out_of_memory(
    slurm: Engine, run: Run, others: list[str]
) -> None:
    commands = {"worker-0": KILL_THE_AGENT, **dict.fromkeys(others, "sleep 600")}
    platform = SlurmPlatform()
    handles = platform.submit(
        [run.spec(name, process=shell(text), resources=Resources(1, 0.1)) for name, text in commands.items()], "key"
    )
    eventually(lambda: platform.poll(handles)[0].status.is_final, "its end is known", ENDS_SECONDS)
    worker, *rest = platform.poll(handles)
    assert (worker.status, worker.cause) == (Status.FAILED, EndCause.MEMORY), worker
    assert "ended it for its memory (Slurm says OUT_OF_MEMORY" in str(worker.reason)
    assert "memory" in str(worker.advice)
    assert [other.status for other in rest] == [Status.RUNNING for _ in others]
    platform.close()
    shutil.rmtree(run.scratch)  # which an agent that is killed leaves
