"""Ranks that the agents start by themselves: their place, their values, their failures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import RunFailed, RunNotFound, ScriptFailed, WorkerKilled

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_anywhere")]

SHARES_FILES = ("shared files", "slurm")
PLACE = ("MUSTER_RANK", "MUSTER_LOCAL_RANK", "MUSTER_WORLD_SIZE", "RANK", "LOCAL_RANK", "WORLD_SIZE")


def run(worker_script: Any, n_workers: int = 1, **options: Any) -> muster.Cluster:
    cluster: muster.Cluster = muster.run_cluster(
        n_workers, worker_script=worker_script, strategy="processes", memory=0.5, run_timeout=30, **options
    ).cluster
    return cluster


def test_workers_see_the_runs_folder_only_where_files_are_shared(workers_anywhere: str) -> None:
    def look() -> bool:
        import os
        from pathlib import Path

        return any(Path(os.environ["HOMES"]).glob("runs/*/*"))

    assert run(look, env={"HOMES": os.environ["MUSTER_HOME"]}).result.value is (workers_anywhere in SHARES_FILES)


def test_each_rank_knows_its_place_and_its_value_comes_back() -> None:
    def place() -> list[str]:
        import os

        return [os.environ[name] for name in PLACE]

    result = run(place, 2, slots=2).result
    assert result.values == [[str(n), str(n % 2), "4"] * 2 for n in range(4)]
    assert result.exit_codes == {f"rank {rank}": 0 for rank in range(4)}


def test_ranks_can_meet_where_they_are_told_to() -> None:
    def meet() -> int:
        import os
        import socket
        import time

        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if rank == 0:
            with socket.create_server(address) as server:
                total = 0
                for _ in range(size - 1):
                    peer, _ = server.accept()
                    with peer:
                        total += peer.recv(1)[0]
                return total
        while True:
            try:
                with socket.create_connection(address) as peer:
                    return peer.send(bytes([rank]))
            except ConnectionRefusedError:  # rank 0 does not listen yet
                time.sleep(0.01)

    assert run(meet, 2, slots=2).result.value == 1 + 2 + 3


@pytest.mark.parametrize(
    ("last_words", "error", "words"),
    [
        ("raise ValueError('a bad batch')", ScriptFailed, "rank 2 (worker-0) failed first: ValueError: a bad batch"),
        ("sys.exit(3)", ScriptFailed, "rank 2 (worker-0) ended with exit status 3"),
        ("os.kill(os.getpid(), 9)", WorkerKilled, "rank 2 (worker-0) was ended by signal 9 (SIGKILL)"),
    ],
)
def test_the_rank_that_failed_is_named_and_the_others_are_ended(
    tmp_path: Path, last_words: str, error: type[RunFailed], words: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os, sys, time\nif os.environ['RANK'] == '2':\n    {last_words}\ntime.sleep(600)\n")
    with pytest.raises(RunFailed) as raised:
        run(script, slots=3)
    assert type(raised.value) is error
    assert words in raised.value.message
    assert raised.value.rank == 2
    codes = (muster.open_run("last").result or {})["exit_codes"]
    assert codes["rank 0"] == codes["rank 1"] == -15


def test_a_program_that_is_no_python_runs_as_it_is(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\necho "$MUSTER_RANK of $MUSTER_WORLD_SIZE: $*"\n')
    program.chmod(0o755)
    cluster = run(program, slots=2, args=["a b", "c"])
    assert sorted(cluster.logs("worker-0").splitlines()) == ["0 of 2: a b c", "1 of 2: a b c"]


def test_each_rank_has_a_log_of_its_own_and_whole_lines_in_its_workers() -> None:
    def talk() -> None:
        import os
        import sys
        import time

        me = os.environ["RANK"].encode()
        for number in range(50):
            sys.stdout.buffer.write(me * 100)
            sys.stdout.flush()
            time.sleep(0.005)
            sys.stdout.buffer.write(b" line %d\n" % number)
        sys.stdout.buffer.write(b"\xff" + me)  # neither UTF-8 nor a whole line

    cluster = run(talk, slots=3)
    lines = cluster.logs("worker-0").splitlines()
    for rank in "012":
        own = (cluster.run_dir / "logs" / "ranks" / f"rank-{rank}.log").read_bytes()
        assert own == b"".join(rank.encode() * 100 + b" line %d\n" % n for n in range(50)) + b"\xff" + rank.encode()
        assert [line for line in lines if line.startswith(rank * 100)] == cluster.logs(f"rank-{rank}").splitlines()[:50]


def test_the_log_of_a_workers_only_rank_is_its_workers() -> None:
    cluster = run(lambda: print("hello"), 2)
    assert cluster.logs("rank-1") == cluster.logs("worker-1") == "hello\n"
    with pytest.raises(RunNotFound):
        cluster.logs("rank-2")


@pytest.mark.usefixtures("only_here")
def test_each_rank_sees_one_gpu_of_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def visible() -> str:
        import os

        return os.environ["CUDA_VISIBLE_DEVICES"]

    stand_in = tmp_path / "bin" / "nvidia-smi"
    stand_in.parent.mkdir()
    first, second = f"GPU-{os.getpid()}-0", f"GPU-{os.getpid()}-1"  # which no other test claims at the same time
    stand_in.write_text(
        f'#!/bin/sh\n[ "$1" = -L ] && for n in {first} {second}; do echo "GPU 0: Tesla T4 (UUID: $n)"; done\n'
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}")
    assert run(visible, slots=3, nvidia_gpu=2).result.values == [first, second, first]


def test_one_that_is_over_does_not_end_the_others() -> None:
    def wait() -> None:
        import os
        import time

        time.sleep(int(os.environ["RANK"]) / 2)

    assert run(wait, slots=3).result.exit_codes == {f"rank {rank}": 0 for rank in range(3)}
