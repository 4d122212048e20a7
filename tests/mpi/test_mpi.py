"""Programs under a real mpiexec, over ssh to workers with addresses of their own."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import muster
import psutil
import pytest
from muster.agent import linux
from muster.errors import LauncherFailed, RunFailed, ScriptFailed, WorkerKilled
from muster.strategies.mpi import MAY_HANG

from tests.mpi.conftest import Installed
from tests.support import command_line, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_anywhere")]

SCRIPTS = Path(__file__).parents[2] / "worker_scripts"


def test_a_compiled_program_adds_up_over_all_ranks(mpi: Installed) -> None:
    options: dict[str, Any] = {"worker_script": mpi.program, "strategy": mpi.strategy(slots=2), "wait": False}
    cluster = muster.run_cluster(2, run_timeout=60, **options).cluster

    def printed() -> list[list[str]]:
        return [sorted(cluster.logs(worker).splitlines()) for worker in ("worker-0", "worker-1")]

    expected = [["rank 0 of 4: 10", "rank 1 of 4: 10"], ["rank 2 of 4: 10", "rank 3 of 4: 10"]]
    try:
        eventually(lambda: printed() == expected, "all ranks have printed")
        if MAY_HANG not in cluster.plan.notes:
            assert cluster.wait().exit_codes == {f"rank {rank}": 0 for rank in range(4)}
    finally:
        cluster.stop()
    first = [cluster.logs(f"rank-{rank}").splitlines()[0] for rank in range(4)]  # ranks that hang complain at the end
    assert first == [f"rank {rank} of 4: 10" for rank in range(4)]


@pytest.mark.parametrize(
    ("told", "error", "words"),
    [
        ("abort", ScriptFailed, {"Open MPI": "ended with exit status 3", "MPICH": "ended all: Abort(3)"}),
        ("exit", ScriptFailed, "ended with exit status 4"),
        ("crash", WorkerKilled, "was ended by signal 11 (SIGSEGV)"),
    ],
)
def test_the_rank_that_ends_all_others_is_named(
    mpi: Installed, told: str, error: type[RunFailed], words: str | dict[str, str]
) -> None:
    expected = words if isinstance(words, str) else words[mpi.flavour]
    with pytest.raises(error, match=re.escape(f"rank 1 (worker-1) {expected}")):
        muster.run_cluster(2, worker_script=mpi.program, strategy=mpi.strategy(), args=[told], run_timeout=60)


def test_values_of_a_function_come_back_by_rank_and_its_environment_is_the_workers(mpi: Installed) -> None:
    def place() -> tuple[str, ...]:
        import os

        return tuple(os.environ[name] for name in ("MUSTER_WORKER", "MUSTER_RANK", "MUSTER_WORLD_SIZE", "SECRET"))

    cluster = muster.run_cluster(
        2, worker_script=place, strategy=mpi.strategy(slots=2), env={"SECRET": "hunter2"}
    ).cluster
    assert cluster.result.values == [(f"worker-{rank // 2}", str(rank), "4", "hunter2") for rank in range(4)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks cannot have a core each here")
def test_ranks_are_bound_to_cores_of_their_own(mpi: Installed) -> None:
    def cores() -> set[int]:
        import os

        return os.sched_getaffinity(0)

    options: dict[str, Any] = {"cpu": 2, "worker_script": cores}
    bound = muster.run_cluster(1, strategy=mpi.strategy(slots=2, binding="core"), **options).cluster.result.values
    free = muster.run_cluster(1, strategy=mpi.strategy(slots=2), **options).cluster.result.values
    assert [len(cores) for cores in bound] == [1, 1]
    assert bound[0] != bound[1]
    assert all(len(cores) >= 2 for cores in free)


def test_no_command_line_has_a_secret_while_it_runs(mpi: Installed) -> None:
    cluster = muster.run_cluster(
        2, worker_script=mpi.program, strategy=mpi.strategy(), args=["on"], env={"SECRET": "hunter2"}, wait=False
    ).cluster
    try:
        commands = [command_line(pid) for pid in linux.all_pids()]
    finally:
        cluster.stop()
    assert sum(cluster.run_dir.name in command or mpi.mpiexec in command for command in commands) >= 1
    assert not [command for command in commands if "hunter2" in command]


@pytest.mark.usefixtures("only_here")
def test_ranks_listen_where_docs_security_says(mpi: Installed) -> None:
    cluster = muster.run_cluster(2, worker_script=mpi.program, strategy=mpi.strategy(), args=["on"], wait=False).cluster
    try:
        names = ("worker-0", "worker-1")
        eventually(lambda: all("ready" in cluster.logs(name) for name in names), "all ranks have met")
        marked = linux.marked("MUSTER_RUN_ID", cluster.run_id)
        ranks = [pid for pid in marked if command_line(pid).startswith(str(mpi.program))]
        assert len(ranks) == 2
        eventually(lambda: all(listeners(pid) for pid in ranks), "they listen")
        everywhere = [address for pid in ranks for address in listeners(pid) if not address.startswith("127.")]
    finally:
        cluster.stop()
    assert bool(everywhere) is (mpi.flavour == "Open MPI")


def listeners(pid: int) -> list[str]:
    """The addresses that a process listens on."""
    sockets = psutil.Process(pid).net_connections("tcp")
    return [str(found.laddr[0]) for found in sockets if found.status == psutil.CONN_LISTEN]


def test_an_exception_on_one_rank_has_its_traceback(mpi: Installed) -> None:
    def train() -> None:
        import os
        import time

        if os.environ["MUSTER_WORKER"] == "worker-1":
            raise ValueError("a bad batch")
        time.sleep(60)

    with pytest.raises(ScriptFailed, match="rank 1 .* ValueError: a bad batch") as raised:
        muster.run_cluster(2, worker_script=train, strategy=mpi.strategy())
    assert 'raise ValueError("a bad batch")' in str(raised.value.details)


def test_stacks_show_where_every_rank_stands(mpi: Installed) -> None:
    def wait_for_ever() -> None:
        import time

        print("ready", flush=True)
        time.sleep(600)

    cluster = muster.run_cluster(1, worker_script=wait_for_ever, strategy=mpi.strategy(slots=2), wait=False).cluster
    try:
        eventually(lambda: cluster.logs("worker-0").count("ready") == 2, "both ranks run")
        stacks = cluster.stacks()
    finally:
        cluster.stop()
    assert sorted(stacks) == ["rank 0 (worker-0)", "rank 1 (worker-0)"]
    assert all("wait_for_ever" in stack for stack in stacks.values())


def test_users_arguments_reach_mpiexec(mpi: Installed) -> None:
    word, answer = ("--display-map", "JOB MAP") if mpi.flavour == "Open MPI" else ("-verbose", "host: ")
    cluster = muster.run_cluster(1, worker_script=mpi.program, strategy=mpi.strategy(mpi_args=(word,))).cluster
    assert answer in cluster.logs("launcher")


@pytest.mark.usefixtures("only_here")
def test_a_worker_without_that_mpi_is_named_at_once(mpi: Installed, tmp_path: Path) -> None:
    elsewhere = tmp_path / "mpiexec"  # MPICH's looks beside itself for what it starts on workers
    shutil.copy(mpi.mpiexec, elsewhere)
    arguments = ("--prefix", str(tmp_path)) if mpi.flavour == "Open MPI" else ()
    with pytest.raises(LauncherFailed, match="starts on worker-0 cannot be run there") as raised:
        muster.run_cluster(1, worker_script=mpi.program, strategy="mpi", mpiexec=str(elsewhere), mpi_args=arguments)
    assert "the same MPI" in str(raised.value.advice)


@pytest.mark.usefixtures("only_here")
def test_an_mpi_script_runs_in_another_interpreter(mpi: Installed, other_python: str) -> None:
    cluster = muster.run_cluster(
        2, worker_script=SCRIPTS / "mpi_allreduce.py", strategy=mpi.strategy(), python=other_python
    ).cluster
    version = re.findall(r"on Python (\S+)", cluster.logs("worker-0"))[0]
    assert version != ".".join(map(str, sys.version_info[:3]))
    assert cluster.result.metrics["total"] == 3.0


@pytest.mark.skipif(not shutil.which("mpiexec"), reason="no MPI is installed here")
def test_it_is_known_by_its_name_too() -> None:
    def nothing() -> None:
        return None

    assert muster.run_cluster(1, worker_script=nothing, strategy="mpi").cluster.result.exit_codes == {"rank 0": 0}
