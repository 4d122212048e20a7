"""The two ends of a tunnel on this machine, with a pipe in place of a cluster: what breaks, waits, and is bounded."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import pod_tunnel
from muster.agent.pod_tunnel import BEAT, END, HERE, Frames, frame
from muster.platforms.agent_package import packed_agent, with_unpacking
from muster.platforms.kubernetes import tunnels
from muster.platforms.kubernetes.client import ApiRefused
from muster.platforms.kubernetes.exec_stream import OUTPUT
from muster.platforms.kubernetes.pods import pod_name
from muster.platforms.kubernetes.tunnels import Tunnels, command_of
from muster.pools.listener import server_context

from tests.support import Run, environment, eventually

RUNS: dict[str, Any] = {
    "metadata": {},
    "status": {"containerStatuses": [{"name": "worker", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}]},
}
RELAY = (
    "import sys; from muster.agent.pod_tunnel import TunnelEnd\n"
    "print(TunnelEnd(sys.argv[1]).port, flush=True); sys.stdin.read()\n"
)


class Pipe:
    """A stream to the program that is at the other end of a tunnel, run by this process."""

    def __init__(self, path: Path) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", pod_tunnel.__file__, str(path)]
        end = theirs.fileno()
        self.program = subprocess.Popen(command, stdin=end, stdout=end, stderr=subprocess.DEVNULL)
        theirs.close()
        ours.setblocking(False)
        self.unsent, self.is_open, self._socket = bytearray(), True, ours

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes) -> None:
        self.unsent += data

    def transmit(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.unsent:
                del self.unsent[: self._socket.send(self.unsent[: 1 << 14])]

    def receive(self) -> Iterator[tuple[int, bytes]]:
        with contextlib.suppress(BlockingIOError):
            data = self._socket.recv(1 << 16)
            self.is_open = bool(data)
            yield OUTPUT, data

    def close(self) -> None:
        self.is_open = False
        self._socket.close()
        self.program.wait(30)


class Rig:
    """A session that echoes, a pod's relay, and the tunnels between them."""

    def __init__(self, run: Run, folder: Path, *, always: bool = True) -> None:
        self.path = folder / "tunnel"
        self.pipes: list[Pipe] = []
        self.answers: list[Exception] = []  # what opening streams fails with first
        self.session = socket.create_server(("127.0.0.1", 0))
        self.come: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        self.tunnels = Tunnels(self._open, self.session.getsockname()[:2], always=always)
        spec = run.spec()
        (self.address,) = self.tunnels.addresses_for([spec])
        self.worker, self.pod = spec.name, pod_name(spec)
        command = [sys.executable, "-c", RELAY, str(self.path)]
        self.relay = subprocess.Popen(
            command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.relay.stdout is not None
        self.port = int(self.relay.stdout.readline())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self.come.append(self.session.accept()[0])

    def _open(self, pod: str) -> Any:
        if self.answers:
            raise self.answers.pop(0)
        self.pipes.append(Pipe(self.path))
        return self.pipes[-1]

    def dial(self) -> tuple[socket.socket, socket.socket]:
        """Dial as the agent does; return its end and the session's."""
        before = len(self.come)
        agent = socket.create_connection(("127.0.0.1", self.port), 30)
        agent.sendall(b"hello")
        eventually(lambda: len(self.come) > before, "the session is reached", 30)
        session = self.come[-1]
        session.settimeout(30)
        assert session.recv(5) == b"hello"
        return agent, session

    def close(self) -> None:
        self.tunnels.close()
        self.session.shutdown(socket.SHUT_RDWR)  # closing alone leaves the thread that accepts waiting for ever
        self.session.close()
        self.relay.communicate()
        for connection in self.come:
            connection.close()
        for pipe in self.pipes:
            pipe.close()


@pytest.fixture
def rig(run: Run, tmp_path: Path) -> Iterator[Rig]:
    made = Rig(run, tmp_path)
    yield made
    made.close()


def test_frames_come_whole_however_they_are_cut() -> None:
    whole = frame(b"abc") + BEAT + frame(b"d" * 1000) + END + b"what comes after the end is nothing"
    for size in (1, 2, 3, 7, len(whole)):
        frames, found = Frames(), b""
        for start in range(0, len(whole), size):
            found += frames.feed(whole[start : start + size])
        assert (found, frames.has_ended) == (b"abc" + b"d" * 1000, True)


def test_bytes_go_both_ways_and_either_end_is_told(rig: Rig) -> None:
    rig.tunnels.update({rig.pod: RUNS})
    agent, session = rig.dial()
    sent = os.urandom(1 << 20)
    sender = threading.Thread(target=session.sendall, args=(sent,))
    sender.start()
    assert read(agent, len(sent)) == sent
    sender.join()
    session.close()
    assert agent.recv(1) == b""
    agent.close()
    agent, session = rig.dial()  # by a stream of its own
    agent.close()
    assert session.recv(1) == b""


def test_a_side_that_takes_nothing_holds_the_other_up_and_memory_is_bounded(rig: Rig) -> None:
    rig.tunnels.update({rig.pod: RUNS})
    agent, session = rig.dial()
    session.settimeout(1)
    sent = 0
    with pytest.raises(TimeoutError):
        while sent < 64 << 20:
            sent += session.send(b"x" * (1 << 16))
    assert len(read(agent, sent)) == sent
    agent.close()


def test_a_program_that_is_killed_is_replaced(rig: Rig) -> None:
    rig.tunnels.update({rig.pod: RUNS})
    agent, session = rig.dial()
    rig.pipes[-1].program.kill()
    assert agent.recv(1) == b""
    assert session.recv(1) == b""
    agent.close()
    rig.dial()[0].close()


def test_a_stream_without_a_word_is_torn_on_both_sides(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.tunnels.update({rig.pod: RUNS})
    agent, session = rig.dial()
    monkeypatch.setattr(tunnels, "SILENCE", 0.3)  # the program at the other end beats each 2 s: too seldom for this
    monkeypatch.setattr(tunnels, "BEAT_SECONDS", 0.1)
    assert session.recv(1) == b""
    agent.close()


def test_a_cluster_that_is_busy_is_asked_again_and_one_that_refuses_is_not(rig: Rig) -> None:
    rig.answers += [ApiRefused("exec", 500, {"message": "busy"}), OSError("torn")]
    rig.tunnels.update({rig.pod: RUNS})
    agent, _ = rig.dial()
    rig.answers += [ApiRefused("exec", 403, {"message": "no"})] * 50
    agent.close()  # and a stream for the next is opened at once
    eventually(lambda: rig.tunnels.refusal(rig.pod) is not None, "it is told", 30)
    assert len(rig.answers) == 49


def test_agents_that_dial_the_session_need_no_stream(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tunnels, "DIALS_SECONDS", 0.2)
    rig = Rig(run, tmp_path, always=False)
    try:
        assert rig.address == rig.session.getsockname()[:2]
        rig.tunnels.connected(rig.worker)
        rig.tunnels.update({rig.pod: RUNS})
        time.sleep(1)
        assert rig.pipes == []
    finally:
        rig.close()


def test_a_refusal_counts_only_once_an_agent_that_may_dial_has_had_its_time(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tunnels, "DIALS_SECONDS", 0.0)
    rig = Rig(run, tmp_path, always=False)
    try:
        rig.answers += [ApiRefused("exec", 403, {"message": "no"})]
        rig.tunnels.update({rig.pod: RUNS})
        eventually(lambda: not rig.answers, "it was refused", 30)
        assert rig.tunnels.refusal(rig.pod) is None
        monkeypatch.setattr(tunnels, "PATIENCE", 0.0)
        eventually(lambda: rig.tunnels.refusal(rig.pod) is not None, "its time is over", 30)
        monkeypatch.setattr(tunnels, "PATIENCE", 60.0)
        assert rig.tunnels.refusal(rig.pod) is None
        rig.tunnels.update({})
        assert rig.tunnels.refusal(rig.pod) is not None, "its pod has waited for long enough"
        rig.tunnels.connected(rig.worker)
        assert rig.tunnels.refusal(rig.pod) is None
    finally:
        rig.close()


def test_a_stream_that_is_opened_while_all_is_closed_is_closed_as_well(run: Run, tmp_path: Path) -> None:
    rig = Rig(run, tmp_path)
    goes_on, opens = threading.Event(), threading.Event()

    def open_late(pod: str) -> Any:
        opens.set()
        assert goes_on.wait(30)
        return rig._open(pod)

    late = Tunnels(open_late, rig.session.getsockname()[:2], always=True)
    late.addresses_for([run.spec()])
    late.update({rig.pod: RUNS})
    assert opens.wait(30)
    late.close()
    goes_on.set()
    eventually(lambda: rig.pipes and not rig.pipes[0].is_open, "it is closed", 30)
    rig.pipes.clear()
    rig.close()


def first_process(home: Path, host: str, port: int, certificate: str) -> subprocess.Popen[str]:
    """Start the part of a pod's first process that finds the way to a session; it prints what the agent is to dial."""
    (home / "package").write_bytes(packed_agent())
    session = {"host": host, "port": port, "certificate": certificate}
    call = (
        f"make_importable(open({str(home / 'package')!r}, 'rb').read(), {str(home)!r})\n"
        f"print(json.dumps(_way({session!r}, {str(home / 'tunnel')!r})))\n"
    )
    command = [sys.executable, "-I", "-S", "-c", with_unpacking("pod.py", call)]
    return subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_pod_whose_network_is_late_dials_the_session_again(tmp_path: Path) -> None:
    context, certificate = server_context(tmp_path, "127.0.0.1")
    with socket.socket() as listener:
        listener.bind(("127.0.0.2", 0))
        with first_process(tmp_path, "127.0.0.2", listener.getsockname()[1], certificate) as first:
            try:
                time.sleep(2)  # so that it has dialled once, and was refused
                listener.listen()
                listener.settimeout(30)
                with context.wrap_socket(listener.accept()[0], server_side=True):
                    assert first.communicate(timeout=30)[0] == "{}\n"
            finally:
                first.kill()


def test_a_pod_that_waits_for_a_tunnel_has_the_program_that_the_cluster_is_to_run(tmp_path: Path) -> None:
    with first_process(tmp_path, HERE, 1, "") as first:
        try:
            eventually((tmp_path / "tunnel").exists, "the pod waits for a tunnel", 30)
            with subprocess.Popen(command_of(sys.executable, str(tmp_path)), stdin=subprocess.PIPE) as other:
                assert set(json.loads(first.communicate(timeout=30)[0])) == {"host", "port"}
                assert other.wait(30) == 0  # the first process has ended, and the connection to it
        finally:
            first.kill()


def read(connection: socket.socket, count: int) -> bytes:
    """Read so many bytes."""
    connection.settimeout(30)
    found = bytearray()
    while len(found) < count:
        data = connection.recv(1 << 16)
        assert data, f"ended after {len(found)} of {count} bytes"
        found += data
    return bytes(found)
