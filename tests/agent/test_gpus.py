"""The use of GPUs, as an agent reports it. A stand-in for nvidia-smi speaks for two devices that are not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.job import Resources
from muster.platforms.local import LocalPlatform

from tests.support import Run, StubSession, eventually, shell

FIRST, SECOND = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
STAND_IN = f"""#!/bin/sh
if [ "$1" = -L ]; then
  echo "GPU 0: Tesla T4 (UUID: {FIRST})"
  echo "GPU 1: Tesla T4 (UUID: {SECOND})"
  exit
fi
echo "$@" > "$(dirname "$0")/asked"
echo "{FIRST}, 80, 1000"
echo "{SECOND}, [N/A], [N/A]"
echo "{SECOND}, 50, 24"
exec sleep 1000
"""


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.fixture
def platform(nvidia_smi: Path, run: Run) -> Iterator[LocalPlatform]:
    platform = LocalPlatform()
    yield platform
    platform.close()


def test_it_says_how_busy_the_gpus_of_its_worker_are(
    nvidia_smi: Path, run: Run, stub_session: StubSession, platform: LocalPlatform
) -> None:
    resources = Resources(cpu=1, memory=0.5, gpu=2)
    spec = run.spec(session=stub_session.address, resources=resources, process=shell("sleep 600"))
    platform.launch([spec])

    def measured() -> bool:
        stub_session.listen(0.1)
        return any("gpu" in usage and usage["gpu"] for usage in stub_session.received("usage"))

    eventually(measured, "a measurement of the GPUs")
    assert sorted((nvidia_smi.parent / "asked").read_text().split(" -i ")[1].strip().split(",")) == [FIRST, SECOND]
    usage = stub_session.received("usage")[-1]
    assert usage["gpu"] == pytest.approx(1.3)
    assert usage["gpu_memory"] == 1024 << 20


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["[N/A], [N/A]", "[GPU is lost], [GPU is lost]", "[Unknown Error], 24"])
def test_a_gpu_that_is_no_longer_measured_counts_no_longer(
    nvidia_smi: Path, run: Run, stub_session: StubSession, platform: LocalPlatform, broken: str
) -> None:
    goes_on = nvidia_smi.parent / "goes on"
    later = [f"{SECOND}, {broken}", f"{FIRST}, 70, 1000"]
    wait = f'while [ ! -e "{goes_on}" ]; do sleep 0.05; done'
    nvidia_smi.write_text(STAND_IN.replace("exec", "\n".join([wait, *(f'echo "{line}"' for line in later), "exec"])))
    resources = Resources(cpu=1, memory=0.5, gpu=2)
    platform.launch([run.spec(session=stub_session.address, resources=resources, process=shell("sleep 600"))])

    def measured(gpu: float, memory: int) -> bool:
        stub_session.listen(0.1)
        told = [(usage.get("gpu"), usage.get("gpu_memory")) for usage in stub_session.received("usage")]
        return (pytest.approx(gpu), memory << 20) in told

    eventually(lambda: measured(1.3, 1024), "a measurement of both")
    goes_on.touch()
    eventually(lambda: measured(0.7, 1000), "a measurement of one")


def test_a_worker_without_gpus_asks_nobody(
    nvidia_smi: Path, run: Run, stub_session: StubSession, platform: LocalPlatform
) -> None:
    platform.launch([run.spec(session=stub_session.address, process=shell("sleep 600"))])
    usage = stub_session.wait_for("usage")
    assert usage.get("gpu") is None
    assert not (nvidia_smi.parent / "asked").exists()
