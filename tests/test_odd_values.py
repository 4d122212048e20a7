"""Values that no user means are refused in words, with nothing begun; numbers of NumPy's are taken as Python's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import numpy as np
import pytest
from muster.errors import JobError
from muster.job import Job, Resources, Script
from muster.records import lookup
from muster.records.folders import muster_home
from muster.run.cluster import Cluster

from tests.plain import Plain


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A script in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import muster.training\nmuster.training.report(loss=1e305)\n")
    return "train.py"


@pytest.mark.parametrize(
    "options",
    [
        {"memory": 1e300}, {"memory": 10**400}, {"cpu": 10**400}, {"cpu": float("nan")}, {"nvidia_gpu": 10**400},
        {"timeout_seconds": "1"}, {"run_timeout": float("nan")}, {"restart_on": 5}, {"restart_on": [5]},
        {"restarts": 1, "from_scratch": "no"}, {"log_cap": "5"}, {"log_cap": -1}, {"log_cap": float("nan")},
        {"log_cap": np.float64(5)}, {"strategy": "processes", "slots": 10**30}, {"strategy": "processes", "slots": "2"},
        {"worker_script": "import os\nprint(os.getpid())\n"}, {"worker_script": 300 * "x"},
        {"worker_script": 300 * "x" + ".py"},
    ],
    ids=str,
)  # fmt: skip
def test_it_is_refused_before_anything_starts(script: str, options: dict[str, Any]) -> None:
    with pytest.raises(JobError):
        muster.run_cluster(**{"n_workers": 1, "strategy": Plain(), "worker_script": script, **options})
    assert not lookup.list_runs()


def test_numbers_of_numpy_are_numbers(script: str) -> None:
    one: Any = np.int64(1)
    half: Any = np.float32(0.5)
    none: Any = np.int8(0)
    run = muster.run_cluster(
        n_workers=one, worker_script=script, strategy="processes", cpu=one, memory=half, nvidia_gpu=none,
        timeout_seconds=30 * one, run_timeout=10**400, restarts=0 * one, slots=one,
    )  # fmt: skip
    assert run.metrics == {"loss": 1e305}
    assert muster.open_run("last").metrics == {"loss": 1e305}


@pytest.mark.parametrize(
    "job",
    [
        Job(Script("file", "nope.py"), 1),
        Job(Script("file", "train"), 1),
        Job(Script("file", None), 1),  # type: ignore[arg-type]
        Job(Script("weird", "train.py"), 1),
        Job(Script("file", "train.py"), 1, cwd="/no/such/folder"),
        Job(Script("file", "train.py"), 1, cwd=5),  # type: ignore[arg-type]
        Job(Script("file", "train.py"), 1, resources=None),  # type: ignore[arg-type]
        Job(Script("file", "train.py"), 1, resources=(1, 2, 0)),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_a_job_is_checked_as_arguments_are(script: str, job: Job) -> None:
    with pytest.raises(JobError):
        Cluster(job, strategy=Plain()).start()
    assert not lookup.list_runs()


def test_a_job_may_have_its_folder_as_a_path(script: str, tmp_path: Path) -> None:
    job = Job(Script("file", "train.py"), 1, resources=Resources(1, 1), cwd=tmp_path)  # type: ignore[arg-type]
    with Cluster(job, strategy=Plain()) as cluster:
        assert cluster.wait().status == "succeeded"


@pytest.mark.parametrize("observers", [print, [5], 5])
def test_what_cannot_be_called_does_not_observe(script: str, observers: Any) -> None:
    with pytest.raises(JobError, match="observers"):
        Cluster(Job(Script("file", script), 1), strategy=Plain(), observers=observers)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: lookup.list_runs(status=5),  # type: ignore[arg-type]
        lambda: lookup.list_runs(name=5),  # type: ignore[arg-type]
        lambda: lookup.prune("3"),  # type: ignore[arg-type]
        lambda: lookup.prune(3, older_than_days="x"),  # type: ignore[arg-type]
        lambda: muster.pool(1, idle_minutes="5"),  # type: ignore[arg-type]
        lambda: muster.pool(1, idle_minutes=1e9),
        lambda: muster.pool(1, idle_minutes=float("nan")),
    ],
)
def test_other_functions_say_what_is_wrong_too(ask: Callable[[], object]) -> None:
    with pytest.raises(JobError):
        ask()


def test_a_time_that_is_none_is_no_time_to_wait(script: str) -> None:
    run = muster.run_cluster(1, worker_script=script, strategy=Plain(), wait=False)
    for timeout in ("5", float("nan"), True):
        with pytest.raises(JobError, match="timeout"):
            run.cluster.wait(timeout)  # type: ignore[arg-type]
    recorded = muster.open_run(run.cluster.run_id)
    asks: tuple[Callable[[Any], object], ...] = (recorded.wait, recorded.stop)
    for ask in asks:
        with pytest.raises(JobError, match="timeout"):
            ask("x")
    assert run.cluster.wait(1e300).status == "succeeded"


def test_a_pool_without_room_for_workers_says_how_many_it_has(script: str) -> None:
    with muster.pool(2) as pool, pytest.raises(JobError, match="The pool has 2 workers, fewer than 1 that train and 3"):
        pool.run_cluster(n_ps=3, worker_script=script)


@pytest.mark.parametrize("cap", ["64M", "-5", "0", "nan"])
def test_a_size_of_logs_that_is_none_names_its_variable(script: str, monkeypatch: pytest.MonkeyPatch, cap: str) -> None:
    monkeypatch.setenv("MUSTER_LOG_CAP", cap)
    with pytest.raises(JobError, match=f"MUSTER_LOG_CAP is '{cap}'"):
        muster.run_cluster(1, worker_script=script, strategy=Plain())


def test_a_home_of_nobody_is_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MUSTER_HOME", "~nobody-at-all/muster")
    assert muster_home() == tmp_path / "~nobody-at-all" / "muster"
