"""GPUs for containers, on real engines: drivers and GPUs have stand-ins, as there are none in most machines."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import muster
import pytest
from muster.agent.claims import claim
from muster.errors import LaunchRefused, ResourceError, WorkersMissing
from muster.job import Resources
from muster.platforms import machine
from muster.platforms.containers.gpus import GpuClaims

from tests.platforms.containers_docker import Docker
from tests.platforms.containers_podman import Podman
from tests.support import Run, eventually

SPECIFICATIONS = Path("/var/run/cdi")  # where engines look for devices by default
GPUS = [f"GPU-{os.getpid()}-{letter}" for letter in "ab"]  # names that no other test uses at the same time
SEEN = "import os\nprint(os.environ['GIVEN'], os.environ['CUDA_VISIBLE_DEVICES'], os.path.exists('/dev/muster-gpu'))\n"
LISTS_ONE = "#!/bin/sh\necho 'GPU 0: Some (UUID: GPU-00)'\n"


@pytest.fixture(autouse=True)
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two GPUs, and a working directory."""
    monkeypatch.setattr(machine, "gpus", lambda: GPUS)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def known_to_podman(engine: Podman, tmp_path: Path) -> Iterator[Podman]:
    """A Podman whose machine has a CDI specification of both GPUs, with a stand-in for the driver's own program."""
    programs = tmp_path / "programs"
    programs.mkdir()
    _write_program(programs / "nvidia-smi", LISTS_ONE)
    specification = SPECIFICATIONS / f"muster-tests-{os.getpid()}.json"
    SPECIFICATIONS.mkdir(exist_ok=True)
    mount = {"hostPath": str(programs), "containerPath": "/gpus", "options": ["ro", "bind"]}
    device = {"path": "/dev/muster-gpu", "hostPath": "/dev/null"}
    devices = [
        {
            "name": gpu,
            "containerEdits": {
                "env": [f"GIVEN={gpu}", "PATH=/gpus:/usr/bin:/bin"],
                "mounts": [mount],
                "deviceNodes": [device],
            },
        }
        for gpu in GPUS
    ]
    unlisted = {"name": f"{GPUS[0]}-unlisted", "containerEdits": {"env": ["PATH=/usr/bin:/bin"]}}
    text = {"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": [*devices, unlisted]}
    specification.write_text(json.dumps(text))
    yield engine
    specification.unlink()
    with contextlib.suppress(OSError):
        SPECIFICATIONS.rmdir()


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def run(n: int, script: str = SEEN, **options: Any) -> muster.Cluster:
    Path("train.py").write_text(script)
    options = {"strategy": "processes", "memory": 0.5, "nvidia_gpu": 1, "timeout_seconds": 120, **options}
    cluster: muster.Cluster = muster.run_cluster(n, worker_script="train.py", platform="containers", **options).cluster
    return cluster


def test_each_worker_on_podman_gets_a_gpu_of_its_own(known_to_podman: Podman) -> None:
    found = run(2)
    seen = [found.logs(f"worker-{index}") for index in range(2)]
    assert sorted(seen) == [f"{gpu} 0 True\n" for gpu in GPUS]


def test_a_container_with_a_gpu_is_otherwise_as_others_are(known_to_podman: Podman) -> None:
    described = []
    for gpus in (0, 1):
        running = run(1, "import time\nprint('started', flush=True)\ntime.sleep(600)\n", nvidia_gpu=gpus, wait=False)
        eventually(lambda running=running: "started" in running.logs("worker-0"), "it has started", timeout=60)  # type: ignore[misc]
        (name,) = known_to_podman.containers()
        described.append(json.loads(known_to_podman.run("inspect", name))[0])
        running.stop()
        eventually(lambda: not known_to_podman.containers(), "it is gone", timeout=30)
    without, with_gpu = described
    for field in ("Memory", "MemorySwap", "NanoCpus", "PidsLimit", "ShmSize", "Init", "SecurityOpt", "Privileged"):
        assert with_gpu["HostConfig"][field] == without["HostConfig"][field], field
    for field in ("Hostname", "User", "Entrypoint", "Cmd", "Image"):
        assert with_gpu["Config"][field] == without["Config"][field], field
    assert with_gpu["Config"]["Labels"].keys() == without["Config"]["Labels"].keys()
    mounts = [{(mount["Destination"], mount["RW"]) for mount in found["Mounts"]} for found in described]
    assert mounts[0] <= mounts[1]
    assert [len(found["NetworkSettings"]["Networks"]) for found in described] == [1, 1]


def test_a_gpu_that_the_worker_does_not_see_is_named(known_to_podman: Podman, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "gpus", lambda: [f"{GPUS[0]}-unlisted"])
    with pytest.raises((LaunchRefused, WorkersMissing), match="It was to have 1 GPU and sees 0"):
        run(1)


def test_a_gpu_that_podman_does_not_know(engine: Podman) -> None:
    with pytest.raises(LaunchRefused, match="nvidia.com/gpu"):
        run(1)
    free = claim(GPUS, 2)
    assert free is not None, "nothing is claimed any more"
    free.close()


def test_docker_is_asked_for_gpus_as_its_driver_takes_them(
    docker: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docker has a driver for GPUs where it finds NVIDIA's hook, which reads ids from a container's variables."""
    given = tmp_path / "given"
    hook = f"""#!/bin/sh
    bundle=$(sed 's/.*"bundle":"\\([^"]*\\)".*/\\1/')
    grep -o 'NVIDIA_VISIBLE_DEVICES=[^"]*' "$bundle/config.json" >> {given}
    """
    _write_program(tmp_path / "nvidia-container-runtime-hook", hook)
    docker.stop()
    monkeypatch.setitem(docker.environment, "PATH", f"{tmp_path}:{docker.environment['PATH']}")
    docker.start()
    try:
        with pytest.raises((LaunchRefused, WorkersMissing), match="It was to have 1 GPU and sees 0"):
            run(2)
        assert sorted(given.read_text().splitlines()) == [f"NVIDIA_VISIBLE_DEVICES={gpu}" for gpu in GPUS]
    finally:
        monkeypatch.undo()
        docker.stop()
        docker.start()


def test_a_worker_that_has_ended_leaves_its_gpu_to_the_one_in_its_place(known_to_podman: Podman) -> None:
    with muster.pool(2, platform="containers", nvidia_gpu=1, memory=0.5) as pool:
        Path("train.py").write_text(SEEN)
        pool.run_cluster(strategy="processes", worker_script="train.py")
        known_to_podman.run("kill", *known_to_podman.containers()[:1])
        eventually(lambda: len(known_to_podman.containers()) == 1, "one is gone", timeout=30)
        found = pool.run_cluster(strategy="processes", worker_script="train.py").cluster
        assert sorted(found.logs(f"worker-{index}") for index in range(2)) == [f"{gpu} 0 True\n" for gpu in GPUS]


def test_more_gpus_than_there_are(engine: Podman) -> None:
    with pytest.raises(ResourceError, match="ask for 3 GPUs; this machine has 2"):
        run(3)


def test_gpus_that_others_have_are_not_given(run: Run) -> None:
    claims, others = GpuClaims(), claim(GPUS, 1)
    assert others is not None
    spec = run.spec("worker-0", resources=Resources(cpu=1, memory=0.5, gpu=1))
    assert claims.claim("first", spec, is_here=True) == GPUS[1:]
    with pytest.raises(LaunchRefused, match="worker-0 could not be given 1 GPU: too few are free"):
        claims.claim("second", spec, is_here=True)
    claims.release(["first", "second"])
    assert claims.claim("second", spec, is_here=True) == GPUS[1:]
    claims.release_all()
    others.close()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, where there are threads
def test_a_forked_child_of_the_session_holds_no_gpus(run: Run) -> None:
    """As a notebook's own processes are, which may live for longer than a cluster."""
    claims = GpuClaims()
    claims.claim("first", run.spec("worker-0", resources=Resources(cpu=1, memory=0.5, gpu=2)), is_here=True)
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        there.sendall(b"it runs")
        there.recv(1)  # until the test closes its end
        os._exit(0)
    try:
        here.recv(len(b"it runs"))
        assert claim(GPUS, 1) is None, "the session still holds them"
        claims.release(["first"])
        free = claim(GPUS, 2)
        assert free is not None, "the child holds them"
        free.close()
    finally:
        here.close()
        there.close()
        os.waitpid(pid, 0)


def test_gpus_of_an_engine_elsewhere_go_by_their_numbers(run: Run) -> None:
    claims = GpuClaims()
    one, two = (run.spec("worker-0", resources=Resources(cpu=1, memory=0.5, gpu=gpus)) for gpus in (1, 2))
    assert claims.claim("first", two, is_here=False) == ["0", "1"]
    assert claims.claim("second", one, is_here=False) == ["2"]
    claims.release(["first"])
    assert claims.claim("third", one, is_here=False) == ["0"]
    assert claims.claim("none", SimpleNamespace(resources=Resources(1, 1)), is_here=False) == []  # type: ignore[arg-type]
