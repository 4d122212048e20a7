"""Real agents whose connection to their session is cut and comes back, before and after their lease ends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent import wire
from muster.platforms.local import LocalPlatform
from muster.pools.leases import LeaseHeld
from muster.runtime.background import call_in_background

from tests.listening import Listening, eventually
from tests.support import Run, is_gone

LEASE = 2.0  # of the tests that wait for its end
LONG_LEASE = 60.0
LINES = 3000


class Proxy:
    """A link between agents and their session that can be cut: its ends learn of it at once, or never.

    Args:
        host: address of the session, or of another server.
        port: its port.
        pause: seconds that each connection waits after each piece of 16 KiB, as on a slow network.
    """

    def __init__(self, host: str, port: int, pause: float = 0.0) -> None:
        self.pause = pause
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.is_up = True
        self.carried = 0  # bytes, both ways
        self.refused = 0  # connections
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and take no others."""
        self.is_up = False
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def cut_after(self, carried: int, seconds: float) -> threading.Thread:
        """Cut the link once so many bytes have passed, for so many seconds. Returns the thread that does so."""

        def cut_and_restore() -> None:
            eventually(lambda: self.carried > carried, 40)
            self.cut()
            time.sleep(seconds)
            self.restore()

        thread = threading.Thread(target=cut_and_restore)
        thread.start()
        return thread

    def restore(self) -> None:
        self.is_up = True

    def close(self) -> None:
        self._is_closed = True
        self.cut()
        self._listener.close()
        for pair in self._pairs:
            for end in pair:
                end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while not self._is_closed:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(self._target) if self.is_up else None
                except OSError:
                    far = None
                if far is None:
                    near.close()
                    self.refused += 1
                    continue
                pair = (near, far)
                self._pairs.append(pair)
                threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError):
            while self.is_up:
                for source in select.select([near, far], [], [])[0]:
                    data = source.recv(1 << 14)
                    if not data:
                        self._end(near, far)
                        return
                    self.carried += len(data)
                    (far if source is near else near).sendall(data)
                    time.sleep(self.pause)
        self._end(near, far)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Leased:
    """A worker with a lease, whose agent dials through a proxy."""

    def __init__(self, run: Run, endpoint: Listening, platform: LocalPlatform) -> None:
        self.endpoint = endpoint
        self.platform = platform
        self.run = run
        self.proxy = Proxy(endpoint.address.host, endpoint.address.port)
        self.cuts: list[str] = []
        endpoint.session.on_cut = self.cuts.append
        self.launch()

    def launch(self, generation: int = 0) -> None:
        address = dataclasses.replace(self.endpoint.session.address_for("worker-0"), port=self.proxy.port)
        before = self.endpoint.kinds().count("hello")
        self.platform.launch([self.run.spec(session=address, generation=generation)])
        eventually(lambda: self.endpoint.kinds().count("hello") > before)

    def send(self, message: tuple[object, ...]) -> bool:
        return call_in_background(lambda: self.endpoint.session.send("worker-0", message))

    def start(self, command: str) -> int:
        before = len(self.of(wire.Started))
        self.send(wire.Start(("/bin/sh", "-c", command), {}))
        eventually(lambda: len(self.of(wire.Started)) > before)
        return int(self.of(wire.Started)[-1].pid)

    def of(self, kind: type) -> list[Any]:
        return [message for _, message in self.endpoint.messages if isinstance(message, kind)]

    def output(self) -> str:
        return "".join(message.text for message in self.of(wire.Output))


@pytest.fixture
def lease() -> float:
    return LONG_LEASE


@pytest.fixture
def worker(run: Run, tmp_path: Path, lease: float) -> Iterator[Leased]:
    endpoint = Listening(tmp_path, lease)
    platform = LocalPlatform()
    made = Leased(run, endpoint, platform)
    yield made
    call_in_background(endpoint.session.close)
    platform.close()
    made.proxy.close()


def test_processes_go_on_while_the_link_is_cut_and_nothing_is_lost_or_told_twice(worker: Leased) -> None:
    pid = worker.start("i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.02; done; exit 3")
    for _ in range(3):
        worker.proxy.cut()
        time.sleep(0.15)
        worker.proxy.restore()
        time.sleep(0.25)
    eventually(lambda: bool(worker.of(wire.Exited)), seconds=10)
    (exited,) = worker.of(wire.Exited)
    assert (exited.pid, exited.exit_code) == (pid, 3)
    assert worker.output() == "".join(f"line {number}\n" for number in range(40))
    assert len(worker.of(wire.Hello)) == len(worker.of(wire.Started)) == 1
    assert worker.cuts
    assert worker.endpoint.lost == []


def test_an_order_that_is_given_while_the_link_is_cut_is_obeyed_once(worker: Leased, tmp_path: Path) -> None:
    worker.proxy.cut()
    eventually(lambda: bool(worker.cuts))
    assert worker.send(wire.Start(("/bin/sh", "-c", f"echo x >> {tmp_path}/started"), {}))
    worker.proxy.restore()
    eventually(lambda: bool(worker.of(wire.Exited)))
    assert (tmp_path / "started").read_text() == "x\n"


def test_output_of_a_cut_link_is_held_back_and_comes_when_it_is_back(worker: Leased) -> None:
    worker.proxy.cut()
    eventually(lambda: bool(worker.cuts))
    worker.send(wire.Start(("/bin/sh", "-c", f"seq {LINES * 100}"), {}))
    worker.proxy.restore()
    eventually(lambda: bool(worker.of(wire.Exited)), seconds=10)
    eventually(lambda: worker.output() == "".join(f"{number}\n" for number in range(1, LINES * 100 + 1)))


def test_a_worker_that_is_told_to_end_while_the_link_is_cut_waits_for_nobody(worker: Leased) -> None:
    pid = worker.start("trap 'echo told; exit' TERM; while :; do sleep 0.01; done")
    worker.proxy.cut()
    eventually(lambda: worker.proxy.refused > 0)  # its agent knows
    (hello,) = worker.of(wire.Hello)
    os.kill(hello.pid, signal.SIGTERM)
    eventually(lambda: is_gone(pid) and is_gone(hello.pid))
    log = (worker.run.folder / "worker-0.log").read_text()
    assert "told" in log
    assert "about to be taken away" not in log


@pytest.mark.slow
@pytest.mark.parametrize("lease", [LEASE])
def test_after_the_lease_everything_has_ended_and_the_worker_is_lost(worker: Leased) -> None:
    pid = worker.start("sleep 60")
    lost: list[tuple[str, bool]] = []
    worker.endpoint.session.on_lost = lambda name: lost.append((name, is_gone(pid)))
    cut_at = time.monotonic()
    worker.proxy.cut()
    eventually(lambda: is_gone(pid))
    assert time.monotonic() - cut_at >= LEASE
    eventually(lambda: bool(lost))
    assert lost == [("worker-0", True)]  # who waits longer than the agent can be sure
    assert not worker.send(wire.AskStacks())


@pytest.mark.slow
@pytest.mark.parametrize("lease", [LEASE])
def test_the_next_generation_comes_after_the_lease_and_fences_the_one_before(worker: Leased) -> None:
    agent = worker.of(wire.Hello)[0].pid
    pid = worker.start("sleep 60")
    os.kill(agent, signal.SIGSTOP)  # as a machine that is suspended: it does not know how time passes
    refused: list[str] = []

    def renew_too_early(name: str) -> None:
        with pytest.raises(LeaseHeld):
            worker.endpoint.session.renew(name)
        refused.append(name)

    worker.endpoint.session.on_cut = renew_too_early
    worker.proxy.cut()
    eventually(lambda: refused == ["worker-0"])
    eventually(lambda: worker.endpoint.lost == ["worker-0"])
    assert call_in_background(lambda: worker.endpoint.session.renew("worker-0")) == 1
    worker.proxy.restore()
    second = Run(worker.run.folder, worker.run.id)
    worker.run = second
    worker.launch(generation=1)
    os.kill(agent, signal.SIGCONT)
    eventually(lambda: is_gone(pid))
    assert [hello.generation for hello in worker.of(wire.Hello)] == [0, 1]
    assert worker.endpoint.session.connected == {"worker-0"}
    second.remove()


def test_an_agent_that_is_ended_says_so_and_nobody_waits_for_its_lease(worker: Leased) -> None:
    worker.platform.stop([item.id for item in worker.platform.list()])
    eventually(lambda: worker.endpoint.lost == ["worker-0"], seconds=LONG_LEASE / 2)


@pytest.mark.slow
@pytest.mark.parametrize("lease", [LEASE])
def test_a_session_that_closes_is_not_waited_for_longer_than_the_lease(worker: Leased) -> None:
    pid = worker.start("sleep 60")
    call_in_background(worker.endpoint.session.close)
    eventually(lambda: is_gone(pid), seconds=20)
