"""The program that mpiexec starts in a rank's place, between a launcher's environment and an agent's socket."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import muster
import pytest

MPI_RANK = Path(muster.__file__).parent / "agent" / "mpi_rank.py"


def start(scratch: Path, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-I", "-S", str(MPI_RANK), "program", "argument"]
    env = {"MUSTER_SCRATCH": str(scratch), **variables}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"])
def test_every_launchers_rank_is_understood_and_told_to_the_program(tmp_path: Path, variable: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "agent.sock"))
        listener.listen()
        listener.settimeout(10)
        process = start(tmp_path, **{variable: "3"})
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as asked:
            request = json.loads(asked.readline())
            connection.sendall(b'{"type": "exited", "code": 5}\n')
    _, errors = process.communicate(timeout=10)
    assert errors == ""
    assert process.returncode == 5
    assert (request["rank"], request["argv"]) == (3, ["program", "argument"])
    assert request["env"]["MUSTER_RANK"] == request["env"][variable] == "3"


def test_a_process_without_a_rank_says_so(tmp_path: Path) -> None:
    process = start(tmp_path)
    _, said = process.communicate(timeout=10)
    assert process.returncode == 127
    assert said.startswith("muster: what started this process gave it no rank: none of OMPI_COMM_WORLD_RANK, ")
