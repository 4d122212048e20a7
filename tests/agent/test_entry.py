"""Telling a rank that horovodrun wants started from any other command."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.agent import linux
from muster.agent.entry import _run, parse_rank
from muster.agent.ranks import launcher_variables

from tests.support import TIMEOUT, eventually


def horovod_command(env: dict[str, str], argv: list[str], rank: int = 3) -> str:
    """Return the command that Horovod itself makes of an environment and a program."""
    gloo_run = pytest.importorskip("horovod.runner.gloo_run")
    hosts = pytest.importorskip("horovod.runner.common.util.hosts")
    slot = hosts.SlotInfo(
        hostname="127.1.2.3", rank=rank, local_rank=0, cross_rank=1, size=4, local_size=2, cross_size=2
    )
    run_command = gloo_run.get_run_command(argv, "127.0.0.1", {"lo"}, 4567)
    return f"cd /a b/c > /dev/null 2>&1 ; {gloo_run._slot_info_to_command_fn(run_command, env)(slot)}"


@pytest.mark.slow
def test_reads_what_horovod_writes() -> None:
    env = {"PATH": "/a b:/c", "QUOTED": 'it\'s "so" $HOME `x`\nnext; line', "EMPTY": "", "OLDPWD": "/not/exported"}
    argv = ["/py thon", "-u", "train.py", "--name=a b", "A=1", "it's", ""]
    rank = parse_rank(horovod_command(env, argv))
    assert rank is not None
    assert rank["rank"] == 3
    assert rank["argv"] == argv
    assert {name: rank["env"].get(name) for name in ("PATH", "QUOTED", "EMPTY")} == {
        name: env[name] for name in ("PATH", "QUOTED", "EMPTY")
    }
    assert "OLDPWD" not in rank["env"]
    assert rank["env"]["HOROVOD_SIZE"] == rank["env"]["MUSTER_WORLD_SIZE"] == "4"
    assert rank["env"]["MUSTER_RANK"] == "3"
    assert rank["env"]["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4567"


@pytest.mark.parametrize(
    "command",
    [
        "",
        "true",
        "env A=1 true",
        "cd / > /dev/null 2>&1 ; python -m horovod.runner.task_fn x",
        "cd / > /dev/null 2>&1 ; env A=1 python train.py",
        "cd / > /dev/null 2>&1 ; env HOROVOD_RANK=one python train.py",
        "cd / > /dev/null 2>&1 ; env HOROVOD_RANK=1",
        "cd / > /dev/null 2>&1 ; env HOROVOD_RANK=1 'unfinished",
    ],
)
def test_other_commands_are_no_ranks(command: str) -> None:
    assert parse_rank(command) is None


def test_the_launchers_own_variables_count_and_the_rest_fills_gaps() -> None:
    given = {"HOROVOD_RANK": "1", "PATH": "/launcher", "NEW": "x", "NCCL_SOCKET_IFNAME": "lo"}
    known = {"PATH": "/worker", "HOROVOD_RANK": "7"}
    assert launcher_variables(given, known) == {"HOROVOD_RANK": "1", "NEW": "x", "NCCL_SOCKET_IFNAME": "lo"}


def test_a_command_that_is_stopped_by_a_debugger_has_not_ended(tmp_path: Path) -> None:
    traced = "import ctypes, os; ctypes.CDLL(None).ptrace(0, 0, 0, 0); os.kill(os.getpid(), 5)"
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(1)
        os._exit(_run(f"exec {shlex.quote(sys.executable)} -c {shlex.quote(traced)}", {}, str(tmp_path)))
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGALRM


class Login:
    """An entry with a command that waits, its sshd, which does nothing but wait for it, and its agent's socket."""

    def __init__(self, folder: Path) -> None:
        starts = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]])"
        serves = "import sys; from muster.agent.entry import main; main(sys.argv[1])"
        env = {**os.environ, "SSH_ORIGINAL_COMMAND": "echo $$; exec sleep 60"}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as agent:
            agent.bind(str(folder / "agent.sock"))
            agent.listen()
            agent.settimeout(TIMEOUT)
            argv = [sys.executable, "-c", starts, serves, str(folder / "agent.sock")]
            self.sshd = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE)
            self.connection, _ = agent.accept()
        self.connection.settimeout(TIMEOUT)
        self.messages = self.connection.makefile("rb")
        assert json.loads(self.messages.readline())["type"] == "environment"
        self.connection.sendall(json.dumps({"env": dict(os.environ), "cwd": str(folder)}).encode() + b"\n")
        self.entry = linux.peer_of(self.connection)[0]
        assert self.sshd.stdout is not None
        self.output = self.sshd.stdout
        self.command = int(self.output.readline())


@pytest.fixture
def login(tmp_path: Path) -> Iterator[Login]:
    login = Login(tmp_path)
    with login.sshd, login.connection, login.messages:
        yield login
        login.sshd.kill()


def test_a_command_that_was_killed_is_told_of_though_sshd_has_ended_since(login: Login) -> None:
    os.kill(login.entry, signal.SIGSTOP)
    os.kill(login.command, signal.SIGKILL)
    eventually(lambda: "State:\tZ" in Path(f"/proc/{login.command}/status").read_text(), "the command has ended")
    login.sshd.kill()
    login.sshd.wait()
    os.kill(login.entry, signal.SIGCONT)
    assert [json.loads(message) for message in login.messages] == [{"type": "broken", "code": 128 + signal.SIGKILL}]


@pytest.mark.parametrize("ended", ["sshd", "entry"])
def test_a_command_ends_with_its_login(login: Login, ended: str) -> None:
    os.kill(login.sshd.pid if ended == "sshd" else login.entry, signal.SIGTERM)
    assert not login.messages.read()
    assert not login.output.read()  # nothing holds its other end any more, not the command either
