"""Logging in to workers on port 2222, and what horovodrun does there, tried with real sshd and ssh."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent.sshd import public_part, sshd_config, version_of
from muster.errors import PlatformUnsupported
from muster.platforms import machine
from muster.platforms.local import LocalPlatform

from tests.support import Run, StubSession, command_line, descendants_of, eventually, fresh_identity, is_gone, key_pair

pytestmark = pytest.mark.skipif(not shutil.which("ssh"), reason="there is no ssh client")


class Ssh:
    """Workers with an sshd, and a client that may log in to them."""

    def __init__(self, run: Run, session: StubSession, platform: LocalPlatform, count: int = 1) -> None:
        self.session = session
        self.platform = platform
        self.run = run
        self.specs = [
            run.spec(f"worker-{index}", session=session.address, ssh=fresh_identity()) for index in range(count)
        ]
        self.workers = platform.launch(self.specs)
        session.wait_for("hello", count=count)
        self.hellos = [session.wait_for("hello", spec.name) for spec in self.specs]
        self.key = run.folder / "key"
        self.key.write_text(key_pair()[0])
        self.key.chmod(0o600)
        self.known_hosts = run.folder / "known_hosts"
        self.known_hosts.write_text("".join(f"[{hello['host']}]:2222 {hello['host_key']}\n" for hello in self.hellos))

    def command(self, command: str, worker: int = 0, key: Path | None = None) -> subprocess.Popen[str]:
        options = {
            "IdentitiesOnly": "yes",
            "IdentityAgent": "none",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "BatchMode": "yes",
        }
        words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
        host = self.hellos[worker]["host"]
        return subprocess.Popen(
            ["ssh", "-F", "none", *words, "-i", str(key or self.key), "-p", "2222", host, command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def answer(self, command: str, **options: Any) -> tuple[int, str]:
        """Exit status and output of a command."""
        with self.command(command, **options) as process:
            output, _ = process.communicate(timeout=20)
            return process.returncode, output


def rank_command(rank: int, program: str, env: str = "") -> str:
    """Return the command by which horovodrun starts a rank."""
    horovod = f"HOROVOD_HOSTNAME=x HOROVOD_RANK={rank} HOROVOD_SIZE=2"
    return f"cd /some/where else > /dev/null 2>&1 ; env {horovod} {env} HOROVOD_CONTROLLER=gloo {program}"


@pytest.fixture
def ssh(run: Run, stub_session: StubSession) -> Iterator[Ssh]:
    platform = LocalPlatform()
    try:
        yield Ssh(run, stub_session, platform, count=2)
    finally:
        platform.close()


def test_commands_run_in_the_workers_environment_and_folder(ssh: Ssh) -> None:
    status, output = ssh.answer('pwd; echo "$MUSTER_WORKER $MUSTER_RUN_ID"; exit 5', worker=1)
    assert (status, output) == (5, f"{ssh.run.folder}\nworker-1 {ssh.run.id}\n")
    assert ssh.answer("true") == (0, "")


def test_the_host_key_is_the_one_that_was_given(ssh: Ssh) -> None:
    for spec, hello in zip(ssh.specs, ssh.hellos, strict=True):
        assert spec.ssh is not None
        assert hello["host_key"] == public_part(spec.ssh.host_key)
    assert ssh.hellos[0]["host_key"] != ssh.hellos[1]["host_key"]
    assert ssh.hellos[0]["ssh_port"] == 2222


def test_no_other_key_may_log_in(ssh: Ssh) -> None:
    stranger = ssh.run.folder / "stranger"
    stranger.write_text(fresh_identity().host_key)
    stranger.chmod(0o600)
    status, output = ssh.answer("true", key=stranger)
    assert status == 255
    assert "Permission denied" in output


def test_ranks_are_the_agents_and_write_to_the_workers_log(ssh: Ssh) -> None:
    ssh.session.send("worker-0", "expect", argv=[], env={"SECRET": "s3cret", "LANG": "C.UTF-8"}, cwd="/")
    program = """sh -c 'echo "$GREETING $SECRET $HOROVOD_RANK $HOROVOD_CONTROLLER"; pwd; printf "\\377"; exit 7'"""
    client = ssh.command(rank_command(1, program, "GREETING='hello  you' MUSTER_WORKER=nobody PATH=/nowhere"))
    started = ssh.session.wait_for("started", "worker-0")
    ended = ssh.session.wait_for("exited", "worker-0")
    assert client.communicate(timeout=10)[0] == ""
    assert client.returncode == 7
    assert (started["rank"], ended["rank"], ended["exit_code"]) == (1, 1, 7)
    assert ssh.specs[0].log.read_bytes() == b"hello  you s3cret 1 gloo\n/\n\xff"


def test_a_rank_that_a_signal_ended(ssh: Ssh) -> None:
    ssh.session.send("worker-0", "expect", argv=[], env={}, cwd=None)
    client = ssh.command(rank_command(0, "sh -c 'kill -KILL $$'"))
    assert ssh.session.wait_for("exited")["signal"] == 9
    client.communicate(timeout=10)
    assert client.returncode == 128 + 9


def test_a_rank_that_cannot_start(ssh: Ssh) -> None:
    ssh.session.send("worker-0", "expect", argv=[], env={}, cwd=None)
    status, output = ssh.answer(rank_command(0, "/no/such/python"))
    assert (status, "/no/such/python: not found" in output) == (127, True)
    assert "rank 0" in ssh.session.wait_for("error")["text"]


def ask_for_rank(ssh: Ssh, rank: int, program: str) -> socket.socket:
    """Ask a worker's agent for a rank, as an entry does; return once the agent has taken note of it."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(10)
    connection.connect(str(ssh.specs[0].scratch / "agent.sock"))
    for message in ({"type": "rank", "rank": rank, "argv": ["sh", "-c", program], "env": {}}, {"type": "environment"}):
        connection.sendall(json.dumps(message).encode() + b"\n")
    assert answer_to(connection)["type"] == "environment"
    return connection


def answer_to(connection: socket.socket) -> dict[str, Any]:
    with connection.makefile("rb", buffering=0) as answers:
        return dict(json.loads(answers.readline()))


def test_a_rank_that_is_asked_for_before_it_is_announced_waits_for_that(ssh: Ssh) -> None:
    with ask_for_rank(ssh, 0, "exit 3"), ask_for_rank(ssh, 1, "exit $STATUS") as asked:
        with ask_for_rank(ssh, 2, "exit 5"):
            pass  # its launcher has given it up
        ssh.session.send("worker-0", "expect", argv=[], env={"STATUS": "4"}, cwd=None)
        assert answer_to(asked) == {"type": "exited", "code": 4}
        ends = ssh.session.wait_for("exited", count=2)
        assert {(end["rank"], end["exit_code"]) for end in ends} == {(0, 3), (1, 4)}
    assert ssh.answer(rank_command(2, "sh -c 'exit 5'"))[0] == 5  # it does not run already


def test_what_was_announced_for_one_attempt_is_not_used_for_the_next(ssh: Ssh) -> None:
    ssh.session.send("worker-0", "expect", argv=[], env={"ATTEMPT": "1"}, cwd=None)
    ssh.session.send("worker-0", "stop", grace=1.0)
    ssh.session.send("worker-0", "ping", number=1)
    ssh.session.wait_for("clock")
    with ask_for_rank(ssh, 0, "exit $ATTEMPT") as asked:
        ssh.session.send("worker-0", "expect", argv=[], env={"ATTEMPT": "2"}, cwd=None)
        assert answer_to(asked)["code"] == 2


@pytest.mark.parametrize("stubborn", [False, True])
def test_ranks_end_with_the_client_that_asked_for_them(ssh: Ssh, stubborn: bool) -> None:
    ssh.session.send("worker-0", "expect", argv=[], env={}, cwd=None)
    trap = "trap : TERM;" if stubborn else ""
    client = ssh.command(rank_command(0, f"sh -c '{trap} echo up; while :; do sleep 0.1; done'"))
    pid = ssh.session.wait_for("started")["pid"]
    ssh.session.wait_for("output")
    since = time.monotonic()
    client.kill()
    end = ssh.session.wait_for("exited")
    client.communicate()
    print(f"the rank was gone {time.monotonic() - since:.3f} s after its client")
    assert is_gone(pid)
    assert end["reason"] == "stopped"
    assert end["signal"] == (signal.SIGKILL if stubborn else signal.SIGTERM)


def test_other_commands_end_with_their_client_as_well(ssh: Ssh) -> None:
    client = ssh.command("exec sleep 600")

    def sleeper() -> int | None:
        pids = descendants_of(ssh.hellos[0]["pid"])
        return next((pid for pid in pids if command_line(pid) == "sleep 600"), None)

    pid = eventually(sleeper, "the command runs")
    client.kill()
    client.communicate()
    eventually(lambda: is_gone(pid), "the command is gone")


def test_an_sshd_that_is_killed_is_reported_and_ranks_live_on(ssh: Ssh) -> None:
    ssh.session.send("worker-0", "expect", argv=[], env={}, cwd=None)
    client = ssh.command(rank_command(0, "sleep 600"))
    rank = ssh.session.wait_for("started")["pid"]
    (server,) = [pid for pid in descendants_of(ssh.hellos[0]["pid"]) if "[listener]" in command_line(pid)]
    os.kill(server, signal.SIGKILL)
    assert "sshd was ended by SIGKILL" in ssh.session.wait_for("error")["text"]
    assert not is_gone(rank)
    ssh.platform.close()
    client.communicate(timeout=10)
    assert ssh.run.left_behind() == []


def test_an_address_that_is_taken_is_not_used(
    run: Run, stub_session: StubSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    with socket.create_server(("127.77.77.77", 2222)):
        monkeypatch.setattr("muster.platforms.local.random_loopback_address", lambda: "127.77.77.77")
        platform = LocalPlatform()
        ssh = Ssh(run, stub_session, platform)
        try:
            assert ssh.hellos[0]["host"] != "127.77.77.77"
            assert ssh.answer("echo $CDSW_IP_ADDRESS") == (0, ssh.hellos[0]["host"] + "\n")
            address = eventually(lambda: platform.list()[0].address, "the worker runs")
            assert address == ssh.hellos[0]["host"]
        finally:
            platform.close()


def test_an_sshd_that_takes_its_time(run: Run, stub_session: StubSession, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = run.folder / "sshd"
    slow.write_text(f'#!/bin/sh\n[ "$1" = -V ] || sleep 1.2\nexec {machine.ssh_server().path} "$@"\n')
    slow.chmod(0o755)
    monkeypatch.setattr(machine, "SSHD_PATHS", (str(slow),))
    with contextlib.closing(LocalPlatform()) as platform:
        assert Ssh(run, stub_session, platform).answer("echo hello") == (0, "hello\n")
        assert (
            stub_session.messages[0][1]["type"] == "hello"
        )  # and no report of what it uses, which is sent each second


def test_a_machine_without_sshd(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SSHD_PATHS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    with (
        contextlib.closing(LocalPlatform()) as platform,
        pytest.raises(PlatformUnsupported, match="install openssh-server"),
    ):
        platform.launch([run.spec(ssh=fresh_identity())])


def test_an_account_that_sshd_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_is_locked", lambda name: True)
    with pytest.raises(PlatformUnsupported, match="usermod"):
        machine.ssh_server()


def test_the_configuration() -> None:
    config: dict[str, Any] = {"scratch": "/s c", "run_id": "r", "name": "worker-0", "environ": {}}
    config["sshd"] = {"version": "OpenSSH_9.8p1, OpenSSL"}
    lines = sshd_config(config, "127.1.2.3", 2222, "/s c/ssh").splitlines()
    assert "ListenAddress 127.1.2.3" in lines
    assert "PerSourcePenalties no" in lines
    assert "KexAlgorithms -sntrup761*" in lines
    assert len([line for line in lines if line.startswith("SetEnv")]) == 1
    assert lines[-1].startswith("ForceCommand exec ")
    assert lines[-1].endswith("'/s c/agent.sock'")
    config["sshd"] = {"version": "unknown option -- V\nOpenSSH_8.4p1 Debian-5"}
    config["environ"] = {"LD_LIBRARY_PATH": "/li b"}
    text = sshd_config(config, "127.1.2.3", 2222, "/s")
    assert "PerSourcePenalties no" not in text
    assert "KexAlgorithms" not in text
    assert "ForceCommand exec env 'LD_LIBRARY_PATH=/li b' " in text


@pytest.mark.parametrize(
    ("text", "version"), [("OpenSSH_9.2p1 Debian", (9, 2)), ("OpenSSH_10.0", (10, 0)), ("", (0, 0))]
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    assert version_of(text) == version


@pytest.mark.alone
def test_eight_workers_are_ready_soon(run: Run, stub_session: StubSession, capsys: pytest.CaptureFixture[str]) -> None:
    platform = LocalPlatform()
    try:
        since = time.monotonic()
        Ssh(run, stub_session, platform, count=8)
        seconds = time.monotonic() - since
    finally:
        platform.close()
    with capsys.disabled():
        print(f"\n8 workers with TLS and sshd were ready after {seconds:.3f} s")
    assert seconds < 3
