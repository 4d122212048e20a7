"""Runs that are tried again: after which failures, how often, and from where their ranks go on."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from muster.agent.ports import random_loopback_address
from muster.commands.main import main
from muster.dashboard.replay import replay
from muster.errors import JobError, LaunchRefused, RunStopped, RunTimeout, ScriptFailed, WorkerKilled
from muster.events import Note, RunAttempt, RunPhase, WorkerReady
from muster.failure.failures import Failure, FailureKind
from muster.job import WorkerSpec
from muster.platforms import PLATFORMS
from muster.platforms.base import Reach
from muster.platforms.local import LocalPlatform
from muster.records import folders, lookup
from muster.records.runs import Run
from muster.run.attempts import Attempts, RestartPolicy
from muster.run.check import check
from muster.run.request import RunRequest

from tests.platforms.isolated import Isolated
from tests.support import IMPORT_PATH, eventually, needs_horovod

STEPS = 12
# Counts steps into a checkpoint of its own, and breaks as `faults` has it: after so many steps of an attempt.
TRAINS = f"""
import json, os, pathlib, time
from muster.training.progress import report
rank, attempt = os.environ["RANK"], os.environ["MUSTER_ATTEMPT"]
checkpoint = pathlib.Path(f"checkpoint-{{rank}}.json")
total = json.loads(checkpoint.read_text()) if checkpoint.exists() else []
print(f"attempt {{attempt}} goes on after {{len(total)}} steps", flush=True)
faults = json.loads(os.environ.get("FAULTS", "{{}}"))
for step in range(len(total), {STEPS}):
    if faults.get(f"{{rank}} {{attempt}}") == step:
        exec(os.environ["FAULT"])
    report(step=step + 1, steps={STEPS})
    total.append(step * 0.1)
    checkpoint.with_suffix(".new").write_text(json.dumps(total))
    checkpoint.with_suffix(".new").replace(checkpoint)
    time.sleep(0.02)
print(sum(total))
"""
KILLED = "os.kill(os.getpid(), 9)"
LOST = "os.kill(int(open('/proc/self/stat').read().rpartition(')')[2].split()[1]), 9)"  # its parent is the agent
# With the guard, whose child the agent is.
ALL_LOST = "os.kill(int(open(f'/proc/{os.getppid()}/stat').read().rpartition(')')[2].split()[1]), 9)"
RAISED = "raise ValueError('bad data')"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the script."""
    (tmp_path / "train.py").write_text(TRAINS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(fault: str, faults: dict[str, int], **options: Any) -> muster.Cluster:
    """Run two ranks, of which those of ``faults`` ("rank attempt") break before a step."""
    env = {"FAULT": fault, "FAULTS": json.dumps(faults)}
    cluster: muster.Cluster = muster.run_cluster(
        2, strategy="processes", worker_script="train.py", env=env, memory=0.5, dashboard=False, **options
    ).cluster
    return cluster


def attempts_of(run: Run) -> list[str]:
    """Why each attempt after the first was begun."""
    return [event.data.reason for event in run.events() if isinstance(event.data, RunAttempt)]


@pytest.mark.parametrize(("fault", "told"), [(KILLED, "was ended by signal 9 (SIGKILL)"), (LOST, "was lost")])
def test_all_go_on_from_their_checkpoint_when_one_is_killed(here: Path, fault: str, told: str) -> None:
    cluster = run(fault, {"1 1": 7}, restarts=2)
    assert dict(cluster.result.exit_codes) == {"rank 0": 0, "rank 1": 0}
    recorded = lookup.open_run()
    (reason,) = attempts_of(recorded)
    assert "worker-1" in reason
    assert told in reason
    assert reason.endswith("Attempt 2 of at most 3 begins.")
    assert re.search(r"attempt 2 goes on after ([7-9]|1\d) steps", cluster.logs("worker-1"))
    uninterrupted = str(sum(step * 0.1 for step in range(STEPS)))
    assert cluster.logs("worker-1").split()[-1] == cluster.logs("worker-0").split()[-1] == uninterrupted
    assert reason in recorded.explain()
    view = replay(recorded)
    assert reason in view.notes
    assert {worker.status for worker in view.workers.values()} == {"succeeded"}


def test_only_the_worker_that_is_lost_is_replaced(here: Path) -> None:
    env = {"FAULT": LOST, "FAULTS": json.dumps({"1 1": 7})}
    result = muster.run_cluster(
        3, strategy="processes", worker_script="train.py", env=env, memory=0.5, dashboard=False, restarts=1
    ).cluster.result
    recorded = lookup.open_run()
    agents = agents_of(recorded)
    assert [len(set(agents[name])) for name in ("worker-0", "worker-1", "worker-2")] == [1, 2, 1]
    uninterrupted = str(sum(step * 0.1 for step in range(STEPS)))
    assert {recorded.logs(name).split()[-1] for name in agents} == {uninterrupted}
    (reason,) = attempts_of(recorded)
    assert "worker-1" in reason
    notes = [event.data.text for event in recorded.events() if isinstance(event.data, Note)]
    told = [text for text in notes if text.startswith("Attempt")]
    assert re.fullmatch(
        r"Attempt 2 runs, \d+\.\d s after the failure\. worker-1 was replaced; 2 workers have stayed\.", told[0]
    )
    again = r"Attempt 2 is at step \d+, as far as the training was: (\d+\.\d) s were lost\."
    (lost,) = [float(match[1]) for match in map(re.compile(again).fullmatch, told[1:]) if match]
    assert result.timings["lost"] == pytest.approx(lost, abs=0.06)
    assert 0 < lost < result.seconds
    assert set(told) <= set(replay(recorded).notes)
    assert all(note in recorded.explain() for note in told)


@needs_horovod
@pytest.mark.horovod
def test_horovod_that_has_lost_a_worker_takes_no_other_along(here: Path) -> None:
    (here / "train.py").write_text(TRAINS.replace('"RANK"', '"HOROVOD_RANK"'))
    env = {"FAULT": LOST, "FAULTS": json.dumps({"1 1": 7})}
    result = muster.run_cluster(
        3, strategy="horovod", worker_script="train.py", env=env, memory=0.5, dashboard=False, restarts=1
    ).cluster.result
    assert result.status == "succeeded"
    agents = agents_of(lookup.open_run())
    assert [len(set(agents[name])) for name in ("worker-0", "worker-1", "worker-2")] == [1, 2, 1]


def test_all_workers_stay_where_only_a_rank_was_killed() -> None:
    assert run(KILLED, {"1 1": 7}, restarts=1).result.status == "succeeded"
    assert [len(set(pids)) for pids in agents_of(lookup.open_run()).values()] == [1, 1]


@dataclass(eq=False, repr=False)
class Full(LocalPlatform):
    """Has no place for a lost worker of this index a second time."""

    index: int = 1

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        if not run_key.endswith(".1") and self.index in [spec.index for spec in specs]:
            raise LaunchRefused("there is no other machine.")
        return super().submit(specs, run_key)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "options", "lost", "rank", "size"),
    [
        ("processes", {}, 1, "RANK", "WORLD_SIZE"),
        pytest.param("horovod", {"launcher": "agents"}, 0, "HOROVOD_RANK", "HOROVOD_SIZE", marks=needs_horovod),
        ("mpi", {}, 1, "MUSTER_RANK", "MUSTER_WORLD_SIZE"),
    ],
)
def test_a_run_goes_on_with_fewer_workers_where_the_lost_cannot_be_replaced(
    here: Path, strategy: str, options: dict[str, Any], lost: int, rank: str, size: str
) -> None:
    if strategy == "mpi" and shutil.which("mpiexec") is None:
        pytest.skip("there is no mpiexec")
    script = TRAINS.replace('os.environ["RANK"]', f'os.environ["{rank}"]')
    (here / "train.py").write_text(script + f"print('ranks:', os.environ['{size}'])\n")
    env = {"FAULT": LOST, "FAULTS": json.dumps({f"{lost} 1": 7})}
    platform = Full(index=lost)
    try:
        result = muster.run_cluster(
            3, strategy=strategy, worker_script="train.py", env=env, memory=0.5, dashboard=False, restarts=1,
            min_workers=2, platform=platform, **options,
        ).cluster.result  # fmt: skip
    finally:
        platform.close()
    assert dict(result.exit_codes) == {"rank 0": 0, "rank 1": 0}
    recorded = lookup.open_run()
    without = f"The run goes on without worker-{lost}, with 2 of 3 workers"
    assert without in recorded.explain()
    left = [f"worker-{index}" for index in range(3) if index != lost]
    assert [recorded.logs(name).split()[-1] for name in left] == ["2", "2"]
    view = replay(recorded)
    assert view.workers[f"worker-{lost}"].status == "stopped"


def agents_of(run: Run) -> dict[str, list[int]]:
    """The process ids of each worker's agents, in each attempt."""
    found: dict[str, list[int]] = {}
    for event in run.events():
        if isinstance(event.data, WorkerReady):
            found.setdefault(event.worker or "", []).append(event.data.pid or 0)
    return found


def test_workers_of_a_platform_of_the_users_are_launched_again() -> None:
    platform = LocalPlatform()
    try:
        assert run(KILLED, {"1 1": 7}, restarts=1, platform=platform).result.status == "succeeded"
    finally:
        platform.close()


def test_no_more_attempts_than_were_asked_for() -> None:
    with pytest.raises(WorkerKilled):
        run(KILLED, {"1 1": 2, "1 2": 4, "1 3": 6, "1 4": 8}, restarts=2)
    assert len(attempts_of(lookup.open_run())) == 2


def test_what_the_script_did_is_met_again_and_not_tried_again() -> None:
    with pytest.raises(ScriptFailed, match="bad data"):
        run(RAISED, {"0 1": 3}, restarts=2)
    assert attempts_of(lookup.open_run()) == []


def test_the_user_says_after_what() -> None:
    assert run(RAISED, {"0 1": 3}, restarts=2, restart_on="failed").result.status == "succeeded"


def test_the_same_at_the_same_step_ends_it_early() -> None:
    with pytest.raises(ScriptFailed, match="at step 3 as well: no further attempt"):
        run(RAISED, {"0 1": 3, "0 2": 3, "0 3": 9}, restarts=5, restart_on=["failed"])
    assert len(attempts_of(lookup.open_run())) == 1


def test_a_stop_ends_a_later_attempt_and_begins_no_other(here: Path) -> None:
    (here / "train.py").write_text(TRAINS.replace("time.sleep(0.02)", "time.sleep(0.02 if attempt == '1' else 600)"))

    def stop() -> None:
        eventually(lambda: "attempt 2 goes on" in lookup.open_run().logs("worker-0"), "the second attempt runs")
        lookup.open_run().stop()

    stopping = threading.Thread(target=stop_when_there, args=(stop,))
    stopping.start()
    with pytest.raises(RunStopped):
        run(KILLED, {"1 1": 5}, restarts=2).wait()
    stopping.join()
    assert len(attempts_of(lookup.open_run())) == 1
    run_id = f"MUSTER_RUN_ID={lookup.open_run().run_id}".encode()
    environments = Path("/proc").glob("[0-9]*/environ")
    assert not [path for path in environments if run_id in read_or_nothing(path)]


def stop_when_there(stop: Any) -> None:
    """Call ``stop`` once a run has logs."""
    eventually(lambda: any(folders.muster_home().glob("runs/*/logs/worker-0.log")), "a worker prints")
    stop()


def read_or_nothing(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_script_without_a_checkpoint_is_refused_unless_it_may_begin_again(here: Path) -> None:
    (here / "plain.py").write_text("print('from nothing')")
    with pytest.raises(JobError, match="keep no checkpoint.*\n.*from_scratch=True"):
        muster.run_cluster(1, strategy="processes", worker_script="plain.py", restarts=1, dashboard=False)
    muster.run_cluster(
        1, strategy="processes", worker_script="plain.py", restarts=1, from_scratch=True, dashboard=False
    )
    refused = CliRunner().invoke(main, ["run", "-s", "processes", "--restarts", "1", "plain.py"])
    assert refused.exit_code == 2
    assert "--from-scratch" in refused.output


@pytest.mark.parametrize("wanted", [{"restarts": -1}, {"restarts": 1.5}, {"restarts": 1, "restart_on": "bad luck"}])
def test_what_is_no_policy_is_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(JobError, match="restart"):
        run(KILLED, {}, **wanted)
    assert not lookup.list_runs()


def test_an_error_shows_what_its_own_attempt_has_printed() -> None:
    fault = "raise ValueError('bad data') if attempt == '1' else os.kill(os.getpid(), 9)"
    with pytest.raises(WorkerKilled) as raised:
        run(fault, {"0 1": 2, "0 2": 4}, restarts=1, restart_on=["failed"])
    assert "attempt 2 goes on" in (raised.value.details or "")
    assert "bad data" not in (raised.value.details or "")


def test_what_an_earlier_attempt_returned_is_no_result(here: Path) -> None:
    def train() -> Any:
        from pathlib import PurePosixPath

        if os.environ["MUSTER_ATTEMPT"] == "2":
            return PurePosixPath("second")  # which is pickled, and so is in a file of another name
        if os.environ["RANK"] == "1":
            while not Path(os.environ["MUSTER_RESULTS"], "rank-0.json").exists():
                time.sleep(0.05)
            os.kill(os.getpid(), 9)
        return "first"

    cluster = muster.run_cluster(
        2, strategy="processes", worker_script=train, memory=0.5, dashboard=False, restarts=1, from_scratch=True
    ).cluster
    assert list(map(str, cluster.result.values)) == ["second", "second"]


@pytest.mark.slow
def test_the_time_of_a_run_is_that_of_its_training_in_all_attempts(here: Path) -> None:
    (here / "train.py").write_text(
        "import os, time\nfrom muster.training import report\n"
        "report(step=int(os.environ['MUSTER_ATTEMPT']))\ntime.sleep(1)\nos.kill(os.getpid(), 9)\n"
    )
    with pytest.raises(RunTimeout, match=r"longer than its 3 s"):
        run(KILLED, {}, restarts=9, run_timeout=3)
    phases = [event for event in lookup.open_run().events() if isinstance(event.data, RunPhase)]
    pairs = itertools.pairwise(phases)
    assert sum(then.time - phase.time for phase, then in pairs if phase.data["phase"] == "training") >= 2.9


@dataclass(eq=False, repr=False)
class Moving(LocalPlatform):
    """Workers that reach the session at another address with each platform object, as those of a new network do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.address = random_loopback_address()

    def reach(self) -> Reach:
        return Reach(self.address, self.address)

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        for spec in specs:
            assert spec.session is not None
            assert spec.session.host == self.address
        return super().submit(specs, run_key)


def test_a_platform_that_is_made_anew_says_anew_where_the_session_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLATFORMS, "moving", f"{__name__}:Moving")
    assert run(ALL_LOST, {"1 1": 2}, restarts=1, platform="moving").result.status == "succeeded"
    assert "All workers were launched anew" in lookup.open_run().explain()


def test_a_platform_that_cannot_be_made_again_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LocalPlatform] = []

    class Once(LocalPlatform):
        def __post_init__(self) -> None:
            super().__post_init__()
            made.append(self)
            if len(made) > 1:
                raise LaunchRefused("the engine is gone")

    monkeypatch.setattr("muster.platforms.local.LocalPlatform", Once)
    with pytest.raises(LaunchRefused, match="the engine is gone"):
        run(ALL_LOST, {"1 1": 2}, restarts=3)
    assert len(attempts_of(lookup.open_run())) == 1


def test_a_worker_that_did_not_come_up_is_not_tried_again() -> None:
    attempts = Attempts(RestartPolicy(3))
    refused = LaunchRefused("worker-0 did not come up: there is no such image", worker="worker-0")
    assert attempts.another(refused, Failure(FailureKind.LOST, 0.0, "worker-0")) is None


def test_where_workers_take_their_files_along_a_run_says_so() -> None:
    request = RunRequest("train.py", strategy="processes", platform=Isolated(), restarts=1)
    assert any("outlives the workers" in remark for remark in check(request).remarks())


def test_nothing_is_left_of_any_attempt_when_the_session_is_killed(here: Path) -> None:
    (here / "train.py").write_text(TRAINS.replace("time.sleep(0.02)", "time.sleep(0.02 if attempt == '1' else 600)"))
    program = """
import muster
muster.run_cluster(2, strategy="processes", worker_script="train.py", memory=0.5, dashboard=False, restarts=1)
"""
    faults = {"FAULT": KILLED, "FAULTS": json.dumps({"1 1": 2})}
    session = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": IMPORT_PATH, **faults})
    with session:
        try:
            stop_when_there(
                lambda: eventually(lambda: "attempt 2 goes on" in lookup.open_run().logs("worker-0"), "attempt 2")
            )
            assert lookup.open_run().stacks()  # its control socket is where the run says
            assert len(scratch_of(session.pid)) == 1
        finally:
            session.kill()
    eventually(lambda: not scratch_of(session.pid), "its folders are removed")


def scratch_of(pid: int) -> list[Path]:
    """The scratch folders of a session."""
    found = Path(tempfile.gettempdir()).glob("muster-*/owner.json")
    return [owner.parent for owner in found if f'"pid": {pid},'.encode() in read_or_nothing(owner)]
