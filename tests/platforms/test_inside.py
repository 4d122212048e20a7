"""Into workers of a run under way: commands that are run there, shells, and ports that are reached."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from click.testing import CliRunner
from muster.agent import linux, wire
from muster.commands import inside as inside_command
from muster.commands.inside import MOST_CONNECTIONS, Forwarding
from muster.commands.main import main
from muster.commands.streams import Pump
from muster.records import control, lookup
from muster.records.control import open_stream

from tests.plain import Plain
from tests.platforms.in_a_terminal import use_a_shell
from tests.platforms.isolated import isolated
from tests.support import environment, eventually, free_port, is_gone

MUSTER = [sys.executable, "-m", "muster"]
SCRIPT = """
import os, pathlib, socket, time
pathlib.Path("here.txt").write_text("written here")
echo = socket.create_server((os.environ["ADDRESS"], 0))
print("listening", echo.getsockname()[1], flush=True)
connections = []
while True:
    connection = echo.accept()[0]
    if not os.fork():
        while data := connection.recv(1 << 16):
            connection.sendall(data)
        connection.sendall(b"the end")
        os._exit(0)
    connection.close()
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[muster.Cluster]:
    """A run of one worker that shares no files with this session, whose script serves echoes."""
    project = tmp_path_factory.mktemp("project")
    (project / "serve.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUSTER_HOME", str(home))
        patch.setenv("MUSTER_DASHBOARD", "off")
        patch.delenv("HISTFILE", raising=False)
        patch.chdir(project)
        platform = isolated()
        running = muster.run_cluster(
            1, worker_script="serve.py", strategy=Plain(), platform=platform, memory=0.5, wait=False,
            env={"ADDRESS": "127.0.0.1", "SECRET": "hunter2"},
        ).cluster  # fmt: skip
        try:
            eventually(lambda: "listening" in running.logs("worker-0"), "it listens")
            yield running
        finally:
            running.stop()
            platform.close()


@pytest.fixture(autouse=True)
def same_home(cluster: muster.Cluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_HOME", str(home))


def inside(*words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [*MUSTER, "exec", "last", *words]
    return subprocess.run(command, input=given, capture_output=True, env=environment(), timeout=60, check=False)


def marked() -> list[int]:
    """Processes that streams have started."""
    return [pid for pid in linux.marked("MUSTER_RUN_ID", muster.open_run("last").run_id) if "stream-" in mark_of(pid)]


def mark_of(pid: int) -> str:
    found = [entry for entry in linux.environment_of(pid) if entry.startswith(b"MUSTER_PROCESS=")]
    return found[0].decode() if found else ""


@pytest.mark.slow
def test_a_command_runs_as_the_script_does_and_its_status_is_passed_on() -> None:
    found = inside("worker-0", "--", "sh", "-c", 'cat here.txt; echo " $SECRET" >&2; exit 7')
    assert (found.returncode, found.stdout, found.stderr) == (7, b"written here", b" hunter2\n")
    assert inside("worker-0", "sh", "-c", "kill -9 $$").returncode == 137
    missing = inside("worker-0", "no-such-program")
    assert missing.returncode == 127
    assert missing.stderr.startswith(b"Error: cannot start no-such-program")
    nobody = inside("worker-7", "true")
    assert nobody.returncode == 2
    assert b"no worker 'worker-7'.\nTry: its workers: worker-0" in nobody.stderr
    assert inside("worker-0", given=b"cat here.txt; exit 3").stdout == b"written here", "a shell that reads its input"


def test_bytes_come_through_as_they_are_in_both_directions_at_once() -> None:
    data = os.urandom(5_000_000) + b"\x04\x03\xff\n"
    found = inside("worker-0", "--", "sh", "-c", "tee /dev/stderr", given=data)
    assert found.returncode == 0
    assert found.stdout == data
    assert found.stderr == data


def test_whoever_does_not_read_holds_up_nobody_and_memory_is_bounded(cluster: muster.Cluster) -> None:
    connection, answer = open_stream(cluster.run_dir, "exec", worker="worker-0", argv=["cat", "/dev/zero"])
    with connection:
        assert answer == {"opened": True}
        time.sleep(0.5)
        received = 0
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            while part := connection.recv(1 << 16):
                received += len(part)
        assert received < 2 * wire.WINDOW, "no more than there was credit for"
        assert inside("worker-0", "--", "echo", "others", "go", "on").stdout == b"others go on\n"
        assert control.ask(cluster.run_dir, "state")["is_up"]
        (pid,) = marked()
    eventually(lambda: is_gone(pid), "the client has gone, and so has the command")


def test_a_client_that_breaks_the_rules_is_cut_off(cluster: muster.Cluster) -> None:
    flood = b"".join(wire.encode(wire.Data(1, 0, bytes(1 << 15))) for _ in range(100))
    for nonsense in (b"nonsense\n", wire.encode(wire.End()), wire.encode(wire.Dial(1, 80)), flood):
        connection, _ = open_stream(cluster.run_dir, "exec", worker="worker-0", argv=["sleep", "60"])
        with connection, contextlib.suppress(OSError):
            connection.sendall(nonsense)
            while connection.recv(1 << 16):
                pass
    eventually(lambda: not marked(), "nothing is left")
    assert cluster.is_running


def test_what_a_command_leaves_behind_ends_with_it() -> None:
    script = "setsid sleep 61 & nohup sleep 62 & sleep 0.3; pgrep -c -f 'sleep 6[12]'"
    assert inside("worker-0", "sh", "-c", script).stdout.strip() >= b"2"
    eventually(lambda: not marked(), "nothing is left")


def test_an_interrupt_ends_the_command() -> None:
    command = [*MUSTER, "exec", "last", "worker-0", "--", "sh", "-c", "trap '' TERM HUP; echo up; sleep 63"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert marked()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
    eventually(lambda: not marked(), "nothing is left")


def test_a_shell_in_a_terminal() -> None:
    assert use_a_shell("last", "worker-0") == 5
    eventually(lambda: not marked(), "nothing is left")


def test_a_shell_leaves_no_history_in_the_users_home() -> None:
    assert inside("worker-0", given=b'echo "(${HISTFILE-as it will})"').stdout == b"()\n"
    command = 'echo "(${HISTFILE-as it will})"'
    assert inside("worker-0", "sh", "-c", command).stdout == b"(as it will)\n", "what a command is given is its own"


def test_a_port_of_a_worker(cluster: muster.Cluster) -> None:
    port = int(cluster.logs("worker-0").split()[1])
    command = [*MUSTER, "forward", "last", "worker-0", f"{port}:0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stderr is not None
        local = int(re.findall(rb"127\.0\.0\.1:(\d+) is port", process.stderr.readline())[0])
        data = os.urandom(1_000_000)
        connections = [socket.create_connection(("127.0.0.1", local), 10) for _ in range(3)]
        for connection in connections:
            connection.sendall(data[:1000])
            assert connection.recv(1000, socket.MSG_WAITALL) == data[:1000]
        first = connections[0]
        sender = os.fork()
        if not sender:
            first.sendall(data)
            first.shutdown(socket.SHUT_WR)
            os._exit(0)
        back = b""
        while part := first.recv(1 << 16):
            back += part
        assert back == data + b"the end", "also what came once one direction had ended"
        os.waitpid(sender, 0)
        for connection in connections:
            connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130


def test_a_worker_that_is_not_there_is_said_once(cluster: muster.Cluster) -> None:
    said = inside("worker-9", "true").stderr.decode()
    assert said == f"Error: Run {cluster.run_id} has no worker 'worker-9'.\nTry: its workers: worker-0\n"


def test_a_port_that_nobody_listens_on(cluster: muster.Cluster) -> None:
    connection, answer = open_stream(cluster.run_dir, "forward", worker="worker-0", port=1)
    connection.close()
    assert "nothing on this worker takes connections on port 1: connection refused" in answer["closed"]["text"]
    for port in ("x", "0", "70000", "1:2:3"):
        assert CliRunner().invoke(main, ["forward", "last", "worker-0", port]).exit_code == 2


def test_a_forwarded_port_that_reaches_itself_is_refused_rather_than_silent(cluster: muster.Cluster) -> None:
    port = free_port()
    with subprocess.Popen(
        [*MUSTER, "forward", "last", "0", str(port)], stderr=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"127.0.0.1:{port} is port {port} of worker-0; Ctrl-C ends that.\n".encode()
        with socket.create_connection(("127.0.0.1", port), 10) as connection, contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
        said = process.stderr.read().decode()
        assert process.wait(10) == 2
    assert f"Only this command listens on port {port} of worker-0" in said
    assert f"muster forward last worker-0 {port}:0" in said


def test_it_ends_with_the_run_though_every_connection_hangs(
    cluster: muster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the worker's end is gone, and the local program does not read what had come before."""
    connections: list[threading.Thread] = []
    has_ended = threading.Event()
    copy = Pump.run

    def hang(pump: Pump) -> wire.Closed:
        connections.append(threading.current_thread())
        has_ended.wait()
        return copy(pump)

    monkeypatch.setattr(Pump, "run", hang)
    run = lookup.open_run(cluster.run_id)
    forwarding = Forwarding(run, "worker-0", int(cluster.logs("worker-0").split()[1]))
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as clients:
        serving = threading.Thread(target=forwarding.serve, args=(listener,), daemon=True)
        serving.start()
        for _ in range(MOST_CONNECTIONS + 1):
            clients.enter_context(socket.create_connection(listener.getsockname(), 10))
        eventually(lambda: len(connections) == MOST_CONNECTIONS, "as many as there may be hang")
        time.sleep(0.5)
        assert serving.is_alive()
        monkeypatch.setattr(type(run), "status", "succeeded")
        serving.join(20)
        assert not serving.is_alive()
        has_ended.set()
    eventually(lambda: not any(map(threading.Thread.is_alive, connections)), "no connection is left")


def test_a_client_finds_room_where_others_have_gone_and_the_program_on_the_worker_does_not_care(
    cluster: muster.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inside_command, "LEFT_SECONDS", 0.2)
    run = lookup.open_run(cluster.run_id)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as deaf,
        socket.create_server(("127.0.0.1", 0), backlog=64) as listener,
        contextlib.ExitStack() as accepted,
    ):
        forwarding = Forwarding(run, "worker-0", deaf.getsockname()[1])
        serving = threading.Thread(target=forwarding.serve, args=(listener,), daemon=True)
        serving.start()
        deaf.settimeout(20)
        for _ in range(MOST_CONNECTIONS):
            socket.create_connection(listener.getsockname(), 10).close()
            accepted.enter_context(deaf.accept()[0])
        with socket.create_connection(listener.getsockname(), 10) as client:
            client.sendall(b"here")
            connection = accepted.enter_context(deaf.accept()[0])
            assert connection.recv(4, socket.MSG_WAITALL) == b"here"
        monkeypatch.setattr(type(run), "status", "succeeded")
        serving.join(5)
        assert not serving.is_alive()


@pytest.mark.slow
def test_others_may_come_while_it_is_found_whether_connections_go_round(cluster: muster.Cluster) -> None:
    forwarding = Forwarding(lookup.open_run(cluster.run_id), "worker-0", 1)  # where nothing listens
    forwarding._came.update(range(20000))

    def come() -> None:
        for source in range(20000, 20040):
            forwarding._pass_on(socket.socket(), source)

    coming = threading.Thread(target=come)
    coming.start()
    while coming.is_alive():
        assert not forwarding._goes_round(1)


def test_it_ends_with_the_run(cluster: muster.Cluster) -> None:
    command = [*MUSTER, "exec", "last", "worker-0", "--", "sh", "-c", "echo up; sleep 65"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        cluster.stop()
        assert process.wait(10) == 1
        assert process.stderr is not None
        assert f"It was ended with its run: {cluster.run_id} has ended: stopped." in process.stderr.read().decode()
    late = inside("worker-0", "true")
    assert late.returncode == 2
    assert b"has ended: stopped" in late.stderr
