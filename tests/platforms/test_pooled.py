"""Pools on other platforms than this machine: the workers stay, and each run has agents of its own in them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import muster
import psutil
import pytest
from muster.errors import JobError, PlatformError, RunFailed, RunStopped, WorkerOutOfMemory
from muster.events import Event, EventKind
from muster.job import Status, Worker
from muster.platforms.base import Reach
from muster.worker_pool import Pool, location

from tests.platforms.isolated import Isolated, isolated
from tests.support import IMPORT_PATH, descendants_of, environment, eventually, is_gone

pytestmark = pytest.mark.slow

LOOK = """
import json, os, subprocess, sys
folder, own = os.path.split(os.environ["MUSTER_SCRATCH"])
seen = {
    "worker": os.environ["MUSTER_WORKER"],
    "run": os.environ["MUSTER_RUN_ID"],
    "agent": os.getppid(),
    "scratch": os.environ["MUSTER_SCRATCH"],
    "beside": [name for name in os.listdir(folder) if name != own],
    "files": sorted(os.listdir(".")),
    "secret": os.environ.get("SECRET"),
}
"""
LITTER = """
for folder in (".", os.environ["TMPDIR"]):
    with open(os.path.join(folder, "left"), "w") as file:
        file.write("something")
program = "import os, time; time.sleep(600)"
seen["hidden"] = subprocess.Popen([sys.executable, "-c", program], env={}, start_new_session=True).pid
"""
TELL = """
with open(os.path.join(os.environ["MUSTER_RESULTS"], seen["worker"] + ".json"), "w") as file:
    json.dump(seen, file)
"""


def told(cluster: muster.Cluster) -> list[dict[str, Any]]:
    """Return where each rank was, and what it found there."""
    return [json.loads(path.read_text()) for path in sorted((cluster.run_dir / "results").glob("worker-*.json"))]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, which is the working directory."""
    made = tmp_path / "project"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


@pytest.fixture
def pool() -> Iterator[Pool]:
    with muster.pool(2, memory=0.5, platform=isolated(), dashboard=False) as made:
        yield made


def holders(pool: Pool) -> list[int]:
    """Process ids of the agents that hold the pool's workers."""
    cluster = pool._location._cluster  # type: ignore[attr-defined]
    return sorted(cluster._execution.orchestrator.state.agents.values())


def run(pool: Pool, script: Callable[..., Any] | str = os.getpid, **options: Any) -> muster.Cluster:
    options = {"strategy": "processes", "dashboard": False, **options}
    cluster: muster.Cluster = pool.run_cluster(worker_script=script, **options).cluster
    return cluster


def test_workers_stay_and_nothing_of_a_run_reaches_the_next(pool: Pool, folder: Path) -> None:
    before = holders(pool)
    (folder / "litter.py").write_text(LOOK + LITTER + TELL)
    (folder / "look.py").write_text(LOOK + TELL)
    first = told(run(pool, "litter.py", env={"SECRET": "1"}))
    assert all(is_gone(seen["hidden"]) for seen in first)
    second = told(run(pool, "look.py"))
    assert [seen["worker"] for seen in second] == ["worker-0", "worker-1"]
    assert {seen["agent"] for seen in first}.isdisjoint(seen["agent"] for seen in second)
    assert {seen["run"] for seen in first} != {seen["run"] for seen in second}
    assert [(seen["beside"], seen["secret"], "left" in seen["files"]) for seen in second] == [([], None, False)] * 2
    assert not any(os.path.exists(seen["scratch"]) for seen in (*first, *second))
    assert holders(pool) == before
    assert not any(map(is_gone, before))


def test_what_is_edited_between_two_runs_is_seen_and_the_imports_are_made_beforehand(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", IMPORT_PATH.split(os.pathsep)[0])  # without a module that is not installed
    with muster.pool(2, memory=0.5, platform=isolated(), dashboard=False) as pool:
        sees_edits(pool, folder)


def sees_edits(pool: Pool, folder: Path) -> None:
    script = folder / "train.py"
    (folder / "helper.py").write_text("VALUE = 'old'\n")
    script.write_text("import numpy\nimport helper\nprint('old', helper.VALUE)\n")
    assert "old old" in str(run(pool, "train.py").logs("worker-1"))
    eventually(lambda: "warm" in repr(pool), "the pool is warm", timeout=60)
    assert pool.memory > 1e6
    script.write_text("import numpy\nimport helper\nprint('new', helper.VALUE)\n")
    (folder / "helper.py").write_text("VALUE = 'new'\n")
    second = run(pool, "train.py")
    assert "new new" in str(second.logs("worker-1"))
    assert "cold" not in str(second.logs("worker-0"))
    cold = run(pool, "train.py", env={"OMP_WAIT_POLICY": "passive"})
    assert "cold: OMP_WAIT_POLICY changed in its environment" in str(cold.logs("worker-0"))


def test_roles_take_workers_of_the_pool_by_turns(pool: Pool) -> None:
    def role() -> str:
        return os.environ["MUSTER_ROLE"]

    assert run(pool, role, n_workers=1).result.values == ["worker"]
    address = pool.run_cluster(1, 1, dashboard=False)
    assert set(address.cluster.cluster_spec) == {"ps", "worker"}
    with pytest.raises(JobError, match=r"The workers of the pool are taken by run"):
        run(pool)
    address.stop()
    assert len(run(pool).result.values) == 2


def test_a_run_that_fails_leaves_the_pool_as_it_was(pool: Pool) -> None:
    def fail() -> None:
        if os.environ["MUSTER_WORKER"] == "worker-1":
            raise ValueError("on purpose")
        time.sleep(600)

    with pytest.raises(RunFailed, match=r"worker-1.*on purpose") as raised:
        run(pool, fail)
    assert raised.value.worker == "worker-1"
    assert len(run(pool).result.values) == 2


def test_a_lost_worker_of_the_pool_fails_its_run_and_is_replaced_for_the_next(pool: Pool) -> None:
    before = holders(pool)

    def wait() -> None:
        time.sleep(600)

    waiting = run(pool, wait, wait=False)
    os.kill(before[1], signal.SIGKILL)
    with pytest.raises(RunFailed) as raised:
        waiting.wait(60)
    assert raised.value.worker == "worker-1"
    assert len(run(pool, timeout_seconds=90).result.values) == 2
    after = holders(pool)
    assert before[0] in after
    assert before[1] not in after


def test_a_run_that_may_goes_on_where_a_worker_of_the_pool_is_replaced(pool: Pool) -> None:
    lost = holders(pool)[1]

    def train(lost: int) -> str:
        attempt = os.environ["MUSTER_ATTEMPT"]
        if attempt == "1":
            time.sleep(0.5)
            if os.environ["MUSTER_WORKER"] == "worker-1":
                os.kill(lost, signal.SIGKILL)
            time.sleep(600)
        return attempt

    done = run(pool, train, kwargs={"lost": lost}, restarts=1, from_scratch=True, timeout_seconds=90)
    assert done.result.values == ["2", "2"]


class FailsAsAWhole(Isolated):
    """A platform like Slurm, which ends all workers once it has noticed that the machine of one has failed."""

    machines_fail_alone = False


def test_where_one_machine_takes_all_others_with_it_no_worker_of_the_pool_stays() -> None:
    isolated()  # skips where there can be none
    with muster.pool(2, memory=0.5, platform=FailsAsAWhole(), dashboard=False) as pool:
        before = holders(pool)

        def train(lost: int) -> str:
            if os.environ["MUSTER_ATTEMPT"] == "1":
                time.sleep(0.5)
                if os.environ["MUSTER_WORKER"] == "worker-1":
                    os.kill(lost, signal.SIGKILL)
                time.sleep(600)
            return os.environ["MUSTER_ATTEMPT"]

        done = run(pool, train, kwargs={"lost": before[1]}, restarts=1, from_scratch=True, timeout_seconds=90)
        assert done.result.values == ["2", "2"]
        assert done._execution is not None
        assert done._execution.orchestrator is not None
        assert not done._execution.orchestrator.platform.machines_fail_alone, "the run itself keeps none, either"
        assert set(before).isdisjoint(holders(pool))


def test_a_run_that_takes_too_much_memory_costs_the_pool_nothing(pool: Pool) -> None:
    before = holders(pool)

    def take() -> None:
        if os.environ["MUSTER_WORKER"] == "worker-1":
            taken = [b"x" * 1_000_000 for _ in range(900)]
            time.sleep(600)
            del taken
        time.sleep(600)

    with pytest.raises(WorkerOutOfMemory) as raised:
        run(pool, take)
    assert raised.value.worker == "worker-1"
    assert len(run(pool).result.values) == 2
    assert holders(pool) == before


def test_a_pool_of_more_workers_than_a_control_socket_answers_at_once() -> None:
    with muster.pool(20, memory=0.2, cpu=0.1, platform=isolated(), dashboard=False, timeout_seconds=120) as pool:
        assert len(run(pool, timeout_seconds=120).result.values) == 20


def test_runs_beside_one_another_keep_the_pool_from_being_given_back() -> None:
    def short() -> None:
        time.sleep(0.1)

    def longer() -> str:
        time.sleep(6)
        return "done"

    values: list[Any] = []
    with muster.pool(2, memory=0.5, platform=isolated(), dashboard=False, idle_minutes=0.03) as pool:
        beside = threading.Thread(
            target=lambda: values.append(run(pool, longer, n_workers=1, timeout_seconds=60).result.values)
        )
        beside.start()
        eventually(lambda: "running" in repr(pool), "the first runs")
        run(pool, short, n_workers=1, timeout_seconds=60)
        beside.join()
        assert values == [["done"]]
        eventually(lambda: "closed, as it was not used" in repr(pool), "it is closed after the last", timeout=30)


def test_a_pool_whose_last_run_failed_gives_its_workers_back_too() -> None:
    def fail() -> None:
        raise ValueError("on purpose")

    pool = muster.pool(1, memory=0.5, platform=isolated(), dashboard=False, idle_minutes=0.03)
    with pytest.raises(RunFailed, match="on purpose"):
        run(pool, fail)
    eventually(lambda: "closed, as it was not used" in repr(pool), "it is closed", timeout=30)
    pool.close()


def test_a_pool_whose_run_is_interrupted_before_it_begins_gives_its_workers_back_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(self: object, n_workers: int) -> None:
        raise KeyboardInterrupt

    pool = muster.pool(1, memory=0.5, platform=isolated(), dashboard=False, idle_minutes=0.03)
    with monkeypatch.context() as patch:  # as Ctrl-C does while the pool waits for a worker that is replaced
        patch.setattr("muster.worker_pool.location.PoolElsewhere._await_workers", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(pool)
    eventually(lambda: "closed, as it was not used" in repr(pool), "it is closed", timeout=30)
    pool.close()


def test_a_pool_that_is_closed_by_another_thread_stops_its_run() -> None:
    told: list[BaseException] = []
    made = muster.pool(1, memory=0.5, platform=isolated(), dashboard=False)

    def wait() -> None:
        time.sleep(600)

    def train() -> None:
        try:
            run(made, wait)
        except RunStopped as error:
            told.append(error)

    beside = threading.Thread(target=train)
    beside.start()
    eventually(lambda: "running" in repr(made), "it runs")
    made.close()
    beside.join()
    assert [type(error) for error in told] == [RunStopped]


def test_a_forked_child_leaves_the_pool_to_its_parent(pool: Pool) -> None:
    run(pool)
    child = os.fork()
    if child == 0:
        try:
            shown = repr(pool)
            try:
                run(pool)
            except JobError as error:
                shown += str(error)
            told = shown.count("as it belongs to the process that this one was forked from")
        finally:
            os._exit(0 if told == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(run(pool).result.values) == 2


def test_what_fails_once_the_workers_are_there_leaves_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("muster.worker_pool.location.PooledPlatform", refuse)
    with pytest.raises(KeyboardInterrupt):
        muster.pool(1, memory=0.5, platform=isolated(), dashboard=False)
    (held,) = muster.list_runs()
    assert held.status == "stopped"


def test_a_guard_that_was_told_something_by_somebody_else_is_replaced(pool: Pool) -> None:
    def meddle() -> None:
        import pathlib

        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if b"pool" in path.read_bytes().split(b"\0") and os.getpgid(int(path.parent.name)):
                    for number in path.parent.joinpath("fd").iterdir():
                        if os.readlink(number).startswith("pipe:") and int(number.name) > 2:
                            with open(number, "wb", buffering=0) as file:
                                file.write(b'{"type":"reply"}\n')
            except OSError:
                continue

    with contextlib.suppress(RunFailed):
        run(pool, meddle, n_workers=1)
    assert len(run(pool).result.values) == 2


def test_a_pool_that_is_closed_has_left_nothing(tmp_path: Path) -> None:
    pool = muster.pool(2, memory=0.5, platform=isolated(), dashboard=False)
    run(pool)
    family = [psutil.Process(pid) for holder in holders(pool) for pid in (holder, *descendants_of(holder))]
    assert len(family) >= 6  # each has an agent, what it waits with, and a guard
    pool.close()
    assert not any(process.is_running() for process in family)
    with pytest.raises(JobError, match="This pool is closed"):
        run(pool)
    assert "closed" in repr(pool)


def test_a_pool_that_nobody_uses_gives_its_workers_back() -> None:
    pool = muster.pool(1, memory=0.5, platform=isolated(), dashboard=False, idle_minutes=0.05)
    (holder,) = holders(pool)
    assert len(run(pool).result.values) == 1
    eventually(lambda: "closed, as it was not used for 0.05 minutes" in repr(pool), "it is closed", timeout=30)
    eventually(lambda: is_gone(holder), "its workers are gone")
    with pytest.raises(JobError, match=r"This pool is closed, as it was not used for 0.05 minutes\."):
        run(pool)


def test_a_pool_that_was_stopped_from_elsewhere_says_so(pool: Pool) -> None:
    held = pool._location._cluster.run_id  # type: ignore[attr-defined]
    muster.open_run(held).stop()
    with pytest.raises(
        JobError,
        match=rf"This pool is closed, as its workers have ended: muster.open_run\('{held}'\).explain\(\) says why",
    ):
        run(pool)


def test_nothing_is_left_of_a_pool_whose_session_is_killed(tmp_path: Path) -> None:
    program = """
        import muster, os, time
        from tests.platforms.isolated import isolated
        pool = muster.pool(2, memory=0.5, platform=isolated(), dashboard=False)
        run = pool.run_cluster(strategy="processes", worker_script=lambda: time.sleep(600), dashboard=False, wait=False)
        print("up", flush=True)
        time.sleep(600)
    """
    session = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, env=environment(TMPDIR="/tmp"),
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert session.stdout is not None
    with session.stdout:
        assert session.stdout.readline() == b"up\n"
        family = descendants_of(session.pid)
        session.kill()
        session.wait()
    eventually(lambda: all(map(is_gone, family)), "everything is gone", timeout=40)


def test_where_only_the_first_agents_reach_the_session_there_is_no_pool() -> None:
    class Relayed(Isolated):
        def reach(self) -> Reach:
            return Reach("127.0.0.1", "127.0.0.1", relayed=True)

    with pytest.raises(PlatformError, match="there are no pools of such workers"):
        muster.pool(1, platform=Relayed(), dashboard=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ps_memory": 1}, "have memory already"),
        ({"platform": "local"}, "have platform already"),
        ({"detach": "8h"}, "cannot be detached"),
        ({"n_workers": 3}, "has 2 workers, fewer than 3"),
    ],
)
def test_what_a_pool_was_given_its_runs_are_not(pool: Pool, options: dict[str, Any], message: str) -> None:
    with pytest.raises(JobError, match=message):
        run(pool, **options)


def test_files_that_a_worker_has_from_the_run_before_are_not_sent_again(pool: Pool, folder: Path) -> None:
    (folder / "data.bin").write_bytes(os.urandom(2_000_000))
    (folder / "train.py").write_text("import os\nprint(os.path.getsize('data.bin'))\n")
    sent: list[dict[str, int]] = []

    def observe(event: Event) -> None:
        if event.kind == EventKind.TRANSFER:
            sent[-1][str(event.worker)] = event.data["total"]

    for _ in range(2):
        sent.append({})
        assert "2000000" in str(run(pool, "train.py", observers=[observe]).logs("worker-1"))
    assert min(sent[0].values()) > 2_000_000
    assert sent[1] == {"worker-0": 0, "worker-1": 0}


RUNS, FAILED = Worker("a", "worker-0", Status.RUNNING), Worker("b", "worker-1", Status.FAILED)


@pytest.mark.parametrize(
    ("workers", "words"),
    [
        ([RUNS, FAILED], "worker-1 of the pool is lost, and has not been replaced within 0 s."),
        ([replace(RUNS, status=Status.STARTING), FAILED], "worker-0 and worker-1 of the pool are lost, and have not"),
        ([], "All workers of the pool are lost, and have not"),
    ],
)
def test_a_run_is_refused_where_too_few_workers_come_back(
    monkeypatch: pytest.MonkeyPatch, workers: list[Worker], words: str
) -> None:
    monkeypatch.setattr(location, "BACK_SECONDS", 0.0)
    pool: Any = SimpleNamespace(why_closed=None, _workers=lambda: workers)
    with pytest.raises(PlatformError) as raised:
        location.PoolElsewhere._await_workers(pool, 2)
    assert words in raised.value.message
    assert raised.value.worker == (FAILED.name if RUNS in workers else None)


def test_a_run_does_without_lost_workers_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(location, "BACK_SECONDS", 0.0)
    pool: Any = SimpleNamespace(why_closed=None, _workers=lambda: [RUNS, FAILED])
    location.PoolElsewhere._await_workers(pool, 1)
