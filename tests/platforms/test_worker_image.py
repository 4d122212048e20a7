"""The image that ``make image`` builds: workers in it train by ``horovodrun``, which logs in to them on port 2222."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import muster
import numpy as np
import pytest

from tests.platforms.container_engine import ContainerEngine
from tests.platforms.containers_docker import Docker
from tests.platforms.containers_podman import Podman, why_not
from tests.platforms.each_strategy import ADDS_UP
from tests.platforms.ordinary import UID, home_of_user, run_as_user
from tests.platforms.test_containers import run_in_container
from tests.platforms.test_containers_user import TRAINS
from tests.platforms.worker_image_docker import VERSIONS
from tests.support import eventually

IMAGE = "muster-worker"
REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = REPOSITORY / "containers" / "Dockerfile"
SCRIPTS = ("mnist_horovod.py", "mnist_data.py")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def podman_with_image() -> Iterator[Podman]:
    """A Podman that has the image; skips where that is not built."""
    if why_not():
        pytest.skip(why_not())
    podman = Podman(images=built("podman"))
    yield podman
    podman.remove()


@pytest.fixture
def podman(podman_with_image: Podman, monkeypatch: pytest.MonkeyPatch) -> Iterator[Podman]:
    """The engine that is used by default; fails the test where something is left on it."""
    monkeypatch.setenv("CONTAINER_HOST", podman_with_image.url)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    yield podman_with_image
    eventually(lambda: podman_with_image.left_behind() == [], "nothing is left on the engine", timeout=30)


@pytest.fixture(scope="module")
def image_of_docker(docker_of_tests: Docker) -> Iterator[None]:
    """The image in the tests' Docker, which has built it, too; skips where that is not built."""
    docker_of_tests.run("load", "--input", str(built("docker.tar")))
    yield
    docker_of_tests.run("rmi", IMAGE)


@pytest.fixture
def docker_with_image(image_of_docker: None, docker: Docker) -> Docker:
    """A Docker that has the image."""
    return docker


@pytest.fixture(params=["podman", pytest.param("docker_with_image", marks=pytest.mark.elsewhere)])
def engine_with_image(request: pytest.FixtureRequest) -> ContainerEngine:
    """An engine that has the image, which it has built itself: Podman, and elsewhere Docker."""
    engine: ContainerEngine = request.getfixturevalue(request.param)
    return engine


def built(name: str) -> Path:
    """Return the path of what an engine has built; skip the test where there is none."""
    where = ["bash", str(REPOSITORY / "scripts" / "worker_image.sh"), "--where"]
    path = Path(subprocess.run(where, check=True, stdout=subprocess.PIPE, text=True).stdout.strip(), name)
    if not path.exists():
        pytest.skip("no image of workers is built here: make worker-image")
    return path


def write_digits(path: Path) -> None:
    """Write images of ten kinds, each with a bright row of its own, as Keras keeps MNIST."""
    dice = np.random.default_rng(1)
    kinds = {"train": dice.integers(0, 10, 640), "test": dice.integers(0, 10, 100)}
    images = {name: dice.integers(0, 60, (len(kind), 28, 28), np.uint8) for name, kind in kinds.items()}
    for name, kind in kinds.items():
        images[name][np.arange(len(kind)), 2 * kind + 4] = 255
    arrays = {f"{axis}_{name}": of[name] for name in kinds for axis, of in (("x", images), ("y", kinds))}
    np.savez(path, **{name: array.astype(np.uint8) for name, array in arrays.items()})


def test_workers_in_it_train_over_horovodrun(
    engine_with_image: ContainerEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SCRIPTS:
        shutil.copy(REPOSITORY / "worker_scripts" / name, tmp_path)
    write_digits(tmp_path / "mnist.npz")
    cluster = muster.run_cluster(
        2,
        strategy="horovod",
        launcher="horovodrun",  # which logs in to the image's sshd
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


def test_without_an_sshd_in_it_the_agents_start_the_ranks_and_the_plan_says_why(
    podman: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    without = f"localhost/{IMAGE}-without-sshd"
    (tmp_path / "no-program").touch(mode=0o644)
    container = podman.run("create", IMAGE, "sh").strip()
    podman.run("cp", "no-program", f"{container}:/usr/sbin/sshd")
    podman.run("commit", container, without)
    podman.run("rm", container)
    (tmp_path / "train.py").write_text("import horovod.tensorflow as hvd\nhvd.init()\nprint(hvd.rank(), hvd.size())\n")
    try:
        cluster = muster.run_cluster(
            2, strategy="horovod", worker_script="train.py", memory=3, timeout_seconds=240,
            platform="containers", image=without,
        ).cluster  # fmt: skip
    finally:
        podman.run("rmi", without)
    assert [cluster.logs(f"worker-{rank}").splitlines()[-1] for rank in range(2)] == ["0 2", "1 2"]
    (note,) = json.loads((cluster.run_dir / "plan.json").read_text())["notes"]
    assert note.startswith(
        "The workers' agents start the ranks, as horovodrun cannot: nobody can log in to worker-0 (it "
    )
    assert "sshd: its image needs openssh-server" in note


@pytest.mark.elsewhere
def test_the_agents_start_the_ranks_of_a_user_who_has_no_account_in_it(docker_with_image: Docker) -> None:
    """On Docker: Podman writes one for each user into its containers."""
    with docker_with_image.given_to(UID), home_of_user() as home:
        done = run_as_user(home, TRAINS, "horovod", IMAGE, DOCKER_HOST=docker_with_image.url, MUSTER_DASHBOARD="off")
        assert done.returncode == 0, done.stderr
    values, _, plan = json.loads(done.stdout.splitlines()[-1])
    assert values == [[UID, UID, f"worker-{rank}", 3.0] for rank in range(2)]
    (note,) = plan["notes"]
    assert note.startswith(
        "The workers' agents start the ranks, as horovodrun cannot: nobody can log in to worker-0 "
        f"(the user id {UID} has no account: sshd lets nobody in)"
    )


def test_it_has_the_versions_it_was_built_with(engine_with_image: ContainerEngine) -> None:
    """Docker's was built with build arguments."""
    own = dict(re.findall(r"^ARG ([A-Z]+)=([0-9.]+)$", DOCKERFILE.read_text(), re.MULTILINE))
    wanted = {**own, **(VERSIONS if isinstance(engine_with_image, Docker) else {})}
    packages = ["tensorflow_cpu" if platform.machine() == "x86_64" else "tensorflow", "keras", "numpy", "horovod"]
    look = f"from importlib.metadata import version; print(*map(version, {packages}))"
    said = engine_with_image.run("run", "--rm", "--network=none", IMAGE, "python3", "-c", look)
    assert said.split() == [wanted[name] for name in ("TENSORFLOW", "KERAS", "NUMPY", "HOROVOD")]


def test_it_holds_no_key_and_nothing_of_muster_and_its_user_is_an_ordinary_one(
    engine_with_image: ContainerEngine,
) -> None:
    look = "id -u; find / -xdev '(' -name 'ssh_host_*' -o -name authorized_keys -o -name 'muster*' ')' 2> /dev/null"
    printed = engine_with_image.run("run", "--rm", "--network=none", IMAGE, "sh", "-c", f"{look}; true")
    assert printed.split() == ["1000"]


SESSION = f"""
import muster
options = {{"platform": "containers", "image": "{IMAGE}", "network": "training", "memory": 2, "timeout_seconds": 240}}
for script, kind in (("train.py", {{"strategy": "horovod", "launcher": "horovodrun"}}), ("task.py", {{"n_ps": 1}})):
    cluster = muster.run_cluster(2, worker_script=script, **kind, **options).cluster
    print("trained:", *(cluster.logs(f"worker-{{index}}").splitlines()[-1] for index in range(2)))
"""


@pytest.mark.elsewhere
def test_a_session_in_a_container_trains_in_others(docker_with_image: Docker, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import horovod.tensorflow as hvd\nhvd.init()\nprint(hvd.rank(), hvd.size())\n")
    (tmp_path / "task.py").write_text(ADDS_UP)
    said = run_in_container(docker_with_image, tmp_path, SESSION)
    ends = [f"all have added worker-{index} 1" for index in range(2)]
    trained = [line for line in said.splitlines() if line.startswith("trained:")]
    assert trained == ["trained: 0 2 1 2", f"trained: {ends[0]} {ends[1]}"], said
