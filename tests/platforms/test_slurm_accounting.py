"""Ends and limits that a real Slurm tells of by its accounting: slurmdbd with MariaDB, sacct, QOS."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator

import pytest
from muster.job import EndCause, Resources, Status, Worker
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.queue import Queue
from muster.platforms.slurm.site import HERE
from muster.platforms.slurm.words import OVER, state_word

from tests.platforms import slurm_engine
from tests.platforms.slurm_engine import Engine
from tests.support import Run, eventually, shell

pytestmark = pytest.mark.slow

ENDS_SECONDS = 60


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """A Slurm of two nodes that keeps accounts, and forgets what has ended within seconds."""
    reason = slurm_engine.why_not()
    root = None if reason else slurm_engine.fetch()
    accounting = slurm_engine.fetch_accounting() if root else None
    if root is None or accounting is None:
        pytest.skip(reason or "Debian's packages of Slurm and MariaDB cannot be fetched here")
    engine = Engine(root, accounting=accounting)
    yield engine
    engine.remove()


@pytest.fixture
def slurm(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """The Slurm whose commands are on the search path now."""
    monkeypatch.setenv("PATH", engine.path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    yield engine
    engine.expect_nothing_left()


class Job:
    """A job with a worker that sleeps.

    Attributes:
        id: Slurm's.
    """

    def __init__(self, slurm: Engine, run: Run, name: str, qos: str | None = None) -> None:
        self.slurm = slurm
        self.platform = SlurmPlatform(qos=qos)
        (self.handle,) = self.platform.submit([run.spec(name, process=shell("sleep 600"))], "key")
        self.id = self.handle.partition(".")[0]

    def started(self) -> Job:
        """Wait until its worker runs."""
        eventually(lambda: self.worker().status is Status.RUNNING, "it runs", ENDS_SECONDS)
        return self

    def worker(self) -> Worker:
        """Look at its worker."""
        (worker,) = self.platform.poll([self.handle])
        return worker

    def end_seen_late(self) -> Worker:
        """Look only when scontrol has forgotten the job, as a session does that slept meanwhile."""

        def is_only_accounted() -> bool:
            said = self.slurm.run("sacct", "-n", "-P", "-X", "-j", self.id, "-o", "State", check=False).strip()
            shown = self.slurm.run("scontrol", "show", "job", self.id, check=False)
            return state_word(said) in OVER and "JobState" not in shown

        eventually(is_only_accounted, "only accounting knows the job", ENDS_SECONDS)
        return self.end()

    def end(self) -> Worker:
        """Wait until the worker's end is known."""
        eventually(lambda: self.worker().status.is_final, "the end is known", ENDS_SECONDS)
        worker = self.worker()
        self.platform.close()
        return worker


def test_ends_that_only_accounting_remembers(slurm: Engine, run: Run) -> None:
    cancelled, evicted = (Job(slurm, run, name) for name in ("worker-0", "worker-1"))
    for job in (cancelled, evicted):
        job.started()
    slurm.run("scancel", cancelled.id)
    slurm.submit("--nodes=2", "--exclusive", "--qos=first", command="true")  # whose QOS preempts theirs
    end = cancelled.end_seen_late()
    assert (end.status, end.cause) == (Status.FAILED, EndCause.CANCELLED)
    assert "Its job was cancelled by root (Slurm says CANCELLED)" in str(end.reason)
    end = evicted.end_seen_late()
    assert (end.status, end.cause) == (Status.FAILED, EndCause.PREEMPTED)
    assert "A job with a higher priority has taken its place (Slurm says PREEMPTED" in str(end.reason)


def test_a_limit_of_a_quality_of_service_is_told_while_a_job_waits(slurm: Engine, run: Run) -> None:
    first = Job(slurm, run, "worker-0", qos="single").started()
    second = Job(slurm, run, "worker-1", qos="single")
    said = "The job is queued: you have as much as your quality of service lets one user have"
    eventually(lambda: said in str(second.worker().reason), "the limit is told", ENDS_SECONDS)
    assert "QOSMaxJobsPerUserLimit" in str(second.worker().reason)
    first.platform.close()
    second.started().platform.close()


def test_tasks_that_slurm_ends_for_their_memory_and_for_a_node_that_is_gone(slurm: Engine, run: Run) -> None:
    """Agents are stopped first: they would tell of the memory before Slurm does."""
    platform = SlurmPlatform(nodes="2")
    eat = f"kill -STOP $PPID; exec {sys.executable} -I -S -c 'x = bytearray(600 << 20); import time; time.sleep(600)'"
    processes = {"worker-0": shell("sleep 600"), "worker-1": shell(eat)}
    specs = [run.spec(name, process=made, resources=Resources(1, 0.1)) for name, made in processes.items()]
    handles = platform.submit(specs, "memory")
    eventually(lambda: all(worker.status.is_final for worker in platform.poll(handles)), "both end", ENDS_SECONDS)
    for worker in platform.poll(handles):
        assert worker.cause is (EndCause.MEMORY if worker.name == "worker-1" else EndCause.PEER)
        assert re.fullmatch(r"Slurm ended all tasks for the memory of worker-1 on n[12]\.", str(worker.reason))
        assert "memory" in str(worker.advice)
    platform.close()
    platform = SlurmPlatform(nodes="2")
    specs = [run.spec(f"worker-{index}", process=shell("sleep 600")) for index in (2, 3)]
    handles = platform.submit(specs, "node")
    eventually(lambda: all(worker.address for worker in platform.poll(handles)), "both run", ENDS_SECONDS)
    there = [str(worker.address).endswith(".3") for worker in platform.poll(handles)]
    slurm.power_off("n2")
    slurm.run("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=power")  # Slurm finds out after half a minute
    try:
        gone = there.index(True)  # n2's address
        eventually(lambda: platform.poll(handles)[gone].status.is_final, "its end is known", ENDS_SECONDS)
        worker = platform.poll(handles)[gone]
        assert worker.cause is EndCause.LOST
        assert "NODE_FAIL" in str(worker.reason)
        assert "n2" in str(worker.reason)
    finally:
        slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")
        slurm.power_on("n2")
        platform.close()
        shutil.rmtree(run.scratch)  # what was killed with its node has left its own
