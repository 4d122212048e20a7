"""Runs in containers of an ordinary user, who may use the engine's socket and nothing else of root's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platforms.container_engine import ContainerEngine
from tests.platforms.containers_docker import Docker
from tests.platforms.ordinary import UID, home_of_user, left_of_user, run_as_user
from tests.support import eventually

GROUP = 54399
TRAINS = """
import json, os, sys, muster
from pathlib import Path

def train():
    total = None
    if "HOROVOD_RANK" in os.environ:
        import horovod.tensorflow as hvd
        import tensorflow as tf
        hvd.init()
        total = float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum))
    Path(os.environ["MUSTER_RESULTS"], os.uname().nodename).touch()
    return [os.getuid(), os.getgid(), os.uname().nodename, total]

options = dict(platform="containers", memory=2, timeout_seconds=120, image=sys.argv[2] if sys.argv[2:] else None)
run = muster.run_cluster(2, strategy=sys.argv[1], worker_script=train, **options).cluster
plan = json.loads((run.run_dir / "plan.json").read_text())
print(json.dumps([run.result.values, str(run.run_dir), plan]))
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """The user's home."""
    with home_of_user() as folder:
        yield folder


@pytest.mark.parametrize(
    ("either_engine", "strategy", "has_account"),
    [
        ("docker", "processes", True),
        ("engine", "horovod", False),
        pytest.param("engine", "horovod", True, marks=pytest.mark.elsewhere),
    ],
    indirect=["either_engine"],
)
def test_workers_have_the_rights_of_the_user(
    either_engine: ContainerEngine, strategy: str, has_account: bool, home: Path
) -> None:
    """Docker's socket belongs to a group that the user is in, and Podman's to the user."""
    is_group = isinstance(either_engine, Docker)
    groups = str(GROUP) if is_group else ""
    with either_engine.given_to(*((0, GROUP) if is_group else (UID, 0))):
        variables = {"DOCKER_HOST": either_engine.url, "MUSTER_DASHBOARD": "off"}
        done = run_as_user(home, TRAINS, strategy, groups=groups, has_account=has_account, **variables)
        assert done.returncode == 0, done.stderr
        eventually(lambda: either_engine.left_behind() == [], "nothing is left on the engine", timeout=30)
    values, run_dir, plan = json.loads(done.stdout.splitlines()[-1])
    total = 3.0 if strategy == "horovod" else None
    assert values == [[UID, UID, f"worker-{index}", total] for index in range(2)]
    results = [*Path(run_dir, "results").iterdir()]
    assert {"worker-0", "worker-1"} < {path.name for path in results}
    assert {path.stat().st_uid for path in results} == {UID}
    if strategy == "horovod":
        assert (plan["launcher"]["argv"][0] == "horovodrun") is has_account
        why = f"as horovodrun cannot: the user id {UID} has no account here, and ssh runs for nobody without one."
        assert plan["notes"] == ([] if has_account else [f"The workers' agents start the ranks, {why}"])
    eventually(lambda: left_of_user() == [], "nothing is left of the user")
