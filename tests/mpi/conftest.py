"""Fixtures of the tests with a real MPI: its launcher, and a compiled program for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import muster
import pytest
from muster.strategies.mpi import MAY_HANG, MPI

from tests.support import eventually

FLAVOURS = {"Open MPI": "openmpi", "MPICH": "mpich"}


class Installed(NamedTuple):
    """An MPI of this machine, and a program that adds up all ranks; with an argument it then runs until it is ended."""

    flavour: str
    mpiexec: str
    program: Path

    def strategy(self, **options: object) -> MPI:
        """Return the strategy for this MPI."""
        return MPI(mpiexec=self.mpiexec, **options)  # type: ignore[arg-type]


def adds_up(running: muster.Cluster, workers: int) -> None:
    """See that each rank of the program, of which each worker has one, adds up all of them; then end the run."""
    total = sum(range(1, workers + 1))
    expected = [f"rank {rank} of {workers}: {total}" for rank in range(workers)]

    def printed() -> list[str]:
        return [(running.logs(f"worker-{rank}").splitlines() or [""])[0] for rank in range(workers)]

    try:
        eventually(lambda: printed() == expected or not running.is_running, "all ranks have printed", timeout=120)
        if MAY_HANG not in running.plan.notes:
            assert running.wait(60).exit_codes == {f"rank {rank}": 0 for rank in range(workers)}
        assert printed() == expected, running.explain()
    finally:
        running.stop()


@pytest.fixture
def mpi(installed: Installed, tmp_path: Path) -> Installed:
    """Provide each MPI that is installed, with its program in the test's folder, from where it can be sent."""
    return installed._replace(program=Path(shutil.copy(installed.program, tmp_path)))


@pytest.fixture(scope="session", params=FLAVOURS)
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Provide each MPI that is installed, with a program built by its compiler."""
    name = FLAVOURS[request.param]
    mpiexec, compiler = shutil.which(f"mpiexec.{name}"), shutil.which(f"mpicc.{name}")
    if not mpiexec or not compiler:
        pytest.skip(f"{request.param} is not installed here, or not what compiles programs for it")
    program = tmp_path_factory.mktemp(name) / "allreduce"
    subprocess.run([compiler, str(Path(__file__).with_name("allreduce.c")), "-o", str(program)], check=True)
    return Installed(request.param, mpiexec, program)
