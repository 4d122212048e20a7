"""The image of ``containers/Dockerfile``: workers in it train by ``horovodrun``, which logs in to them on port 2222."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import muster
import numpy as np
import pytest

from tests.platforms.containers_podman import Podman, why_not
from tests.support import eventually

IMAGE = "localhost/muster-worker"
REPOSITORY = Path(__file__).parents[2]
SCRIPTS = ("mnist_horovod.py", "mnist_data.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def podman_with_image() -> Iterator[Podman]:
    """A Podman that has the image; skips where that is not built."""
    where = ["bash", str(REPOSITORY / "scripts" / "worker_image.sh"), "--where"]
    built = Path(subprocess.run(where, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    reason = why_not() or ("" if built.is_dir() else "no image of workers is built here: make worker-image")
    if reason:
        pytest.skip(reason)
    podman = Podman(images=built)
    yield podman
    podman.remove()


@pytest.fixture
def podman(podman_with_image: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """The engine that is used by default; fails the test where something is left on it."""
    monkeypatch.setenv("CONTAINER_HOST", podman_with_image.url)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    yield podman_with_image
    eventually(lambda: podman_with_image.left_behind() == [], "nothing is left on the engine", timeout=30)


def write_digits(path: Path) -> None:
    """Write images of ten kinds, each with a bright row of its own, as Keras keeps MNIST."""
    dice = np.random.default_rng(1)
    kinds = {"train": dice.integers(0, 10, 640), "test": dice.integers(0, 10, 100)}
    images = {name: dice.integers(0, 60, (len(kind), 28, 28), np.uint8) for name, kind in kinds.items()}
    for name, kind in kinds.items():
        images[name][np.arange(len(kind)), 2 * kind + 4] = 255
    arrays = {f"{axis}_{name}": of[name] for name in kinds for axis, of in (("x", images), ("y", kinds))}
    np.savez(path, **{name: array.astype(np.uint8) for name, array in arrays.items()})


def test_workers_in_it_train_over_horovodrun(podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SCRIPTS:
        shutil.copy(REPOSITORY / "worker_scripts" / name, tmp_path)
    write_digits(tmp_path / "mnist.npz")
    cluster = muster.run_cluster(
        2,
        strategy="horovod",
        worker_script=SCRIPTS[0],
        args=["--data", "mnist.npz", "--epochs", 1],
        memory=3,
        timeout_seconds=240,
        platform="containers",
        image=IMAGE,
        dashboard=False,
    ).cluster
    plan = json.loads((cluster.run_dir / "plan.json").read_text())
    command = plan["launcher"]["argv"]
    assert command[0] == "horovodrun"
    assert command[command.index("-p") + 1] == "2222"
    assert cluster.result.metrics["test_accuracy"] > 0.9


def test_agents_start_the_ranks_in_it(podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its python3 is in an environment of its own, which only the image's PATH has."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import sys, horovod.tensorflow as hvd\nhvd.init()\nprint(hvd.rank(), hvd.size(), sys.prefix)\n"
    )
    cluster = muster.run_cluster(
        2, strategy="horovod", launcher="agents", worker_script="train.py", memory=3, timeout_seconds=240,
        platform="containers", image=IMAGE,
    ).cluster  # fmt: skip
    assert [cluster.logs(f"worker-{rank}").splitlines()[-1] for rank in range(2)] == [
        f"{rank} 2 /opt/worker" for rank in range(2)
    ]


def test_it_holds_no_key_and_nothing_of_muster_and_its_user_is_an_ordinary_one(podman: Podman) -> None:
    look = "id -u; find / -xdev '(' -name 'ssh_host_*' -o -name authorized_keys -o -name 'muster*' ')' 2> /dev/null"
    printed = podman.run("run", "--rm", "--network=none", IMAGE, "sh", "-c", f"{look}; true")
    assert printed.split() == ["1000"]
