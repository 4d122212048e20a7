"""A pool on each platform that has workers of its own: they are launched once, and several runs train on them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import RunFailed
from muster.worker_pool import Pool

from tests.platforms.containers_podman import Podman
from tests.platforms.hosts_network import Network
from tests.platforms.slurm_engine import Engine
from tests.support import IMPORT_PATH, eventually, handles_of, needs_horovod

PLACES = [("hosts", "hosts"), ("containers", "engine"), ("containers", "docker"), ("slurm", "slurm")]
SCRIPT = """
import json
import os
import helper

seen = {
    "worker": os.environ["MUSTER_WORKER"], "node": os.uname().nodename, "helper": helper.VALUE, "agent": os.getppid(),
}
with open(os.path.join(os.environ["MUSTER_RESULTS"], seen["worker"] + ".json"), "w") as file:
    json.dump(seen, file)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of the user's, which is the working directory."""
    made = tmp_path / "project"
    made.mkdir()
    (made / "train.py").write_text(SCRIPT)
    (made / "helper.py").write_text("VALUE = 'first'\n")
    monkeypatch.chdir(made)
    return made


@contextmanager
def pool_of(n_workers: int, **options: Any) -> Iterator[Pool]:
    with muster.pool(n_workers, memory=0.5, timeout_seconds=120, dashboard=False, **options) as made:
        yield made


def told(pool: Pool, **options: Any) -> list[dict[str, Any]]:
    """Run the script on the pool, and return what each rank has seen."""
    cluster = pool.run_cluster(
        strategy="processes", worker_script="train.py", dashboard=False, timeout_seconds=120, **options
    ).cluster
    return [json.loads(path.read_text()) for path in sorted((cluster.run_dir / "results").glob("worker-*.json"))]


def trains_twice(pool: Pool) -> list[dict[str, Any]]:
    """Run the script, edit the project, and run it again: on the same workers, by other agents."""
    held = handles_of(pool._location._cluster.workers)  # type: ignore[attr-defined]
    first = told(pool)
    Path("helper.py").write_text("VALUE = 'second'\n")
    second = told(pool)
    for key in ("worker", "node"):
        assert [seen[key] for seen in first] == [seen[key] for seen in second]
    assert [seen["helper"] for seen in (*first, *second)] == ["first"] * len(first) + ["second"] * len(second)
    assert first != second
    assert handles_of(pool._location._cluster.workers) == held  # type: ignore[attr-defined]
    return first


def loses_a_worker(pool: Pool, take_away: Any) -> None:
    """Take away the place of worker-1 under a run: that fails, says so, and the next run has a new one."""
    waiting = pool.run_cluster(
        strategy="processes", worker_script=lambda: time.sleep(600), dashboard=False, wait=False, timeout_seconds=120
    ).cluster
    take_away()
    with pytest.raises(RunFailed) as raised:
        waiting.wait(90)
    assert raised.value.worker == "worker-1"
    assert [seen["worker"] for seen in told(pool)] == ["worker-0", "worker-1"]


def test_on_hosts(hosts: Network) -> None:
    with pool_of(2, platform="hosts", hosts=["h1:1", "h2:1"]) as pool:
        first = trains_twice(pool)
        assert [seen["node"] for seen in first] == ["h1", "h2"]


def test_on_hosts_that_cannot_dial_the_session(hosts: Network) -> None:
    with pool_of(2, platform="hosts", hosts=["h1:1", "h2:1"], tunnel=True) as pool:
        trains_twice(pool)


def test_in_containers_of_which_one_is_killed(engine: Podman) -> None:
    with pool_of(2, platform="containers") as pool:
        trains_twice(pool)

        def kill() -> None:
            names = engine.containers()
            engine.run("kill", next(name for name in names if name.endswith("worker-1")))

        loses_a_worker(pool, kill)
    eventually(lambda: engine.left_behind() == [], "nothing is left", timeout=30)


def test_in_one_job_of_slurms(slurm: Engine) -> None:
    with pool_of(2, platform="slurm", nodes="2") as pool:
        assert len({seen["node"] for seen in trains_twice(pool)}) == 2


@pytest.mark.slow
@pytest.mark.elsewhere
@needs_horovod
@pytest.mark.parametrize(
    ("platform", "fixture"),
    [("hosts", "hosts"), ("containers", "engine"), ("containers", "docker"), ("slurm", "slurm")],
)
def test_ranks_that_horovodrun_starts_on_a_pool_are_forks_with_their_imports(
    request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch, platform: str, fixture: str
) -> None:
    provided = request.getfixturevalue(fixture)
    monkeypatch.setenv("PYTHONPATH", IMPORT_PATH.split(os.pathsep)[0])  # without a module that is not installed
    (folder / "train.py").write_text(
        "import sys\n"
        "before = 'horovod.tensorflow' in sys.modules\n"
        "import horovod.tensorflow as hvd\n"
        "hvd.init()\n"
        "print(before, hvd.size(), flush=True)\n"
    )
    said = []
    with muster.pool(2, memory=2, timeout_seconds=240, dashboard=False, platform=platform) as pool:
        for _ in range(2):
            cluster = pool.run_cluster(
                strategy="horovod", launcher="horovodrun", worker_script="train.py", dashboard=False
            ).cluster
            said.append([cluster.logs(f"worker-{index}").splitlines()[-1] for index in range(2)])
            eventually(lambda: "importing" not in repr(pool), "the imports for the next run", timeout=120)
    assert said == [["False 2"] * 2, ["True 2"] * 2]
    if isinstance(provided, Network):
        provided.remove_what_tensorflow_leaves()
