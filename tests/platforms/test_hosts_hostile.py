"""Hosts whose guard, or whoever speaks in its place, answers what it should not. ``ssh`` is a program of the test's."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from muster.errors import HostUnreachable
from muster.platforms.hosts.login import Login
from muster.platforms.hosts.platform import HostsPlatform

from tests.support import Run

GUARD = {"guard": [1, 1], "folder": "/tmp/x", "python": "", "cores": 9, "memory": 1 << 40, "gpus": [], "time": 0.0}
HELLO = {**GUARD, "session": "127.0.0.1", "address": "127.0.0.1", "route": ""}
SSH = """#!{python}
import json, os, sys, threading, time
with open({calls!r}, "a") as file:
    file.write(json.dumps(sys.argv[1:]) + chr(10))
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
out = sys.stdout.buffer
for mark in (b"muster reads cpython-0", b"muster guard"):
    out.write(b"printed by a job of .profile" + bytes([10, 0]) + mark + bytes([10]))
    {flush}
for answer in {answers!r}:
    out.write(json.dumps(dict(answer, type="reply")).encode() + bytes([10]))
out.flush()
{then}
"""
SLEEP = "threading.Event().wait(30)"


class Host:
    """The outcome of every login."""

    def __init__(self, folder: Path, flush: str) -> None:
        self.flush = flush
        self._program = folder / "ssh"
        self._calls = folder / "calls"

    def answers(self, *answers: dict[str, Any], then: str = SLEEP) -> None:
        """Have it say hello and this, and then do something."""
        told = [HELLO, *answers]
        text = SSH.format(python=sys.executable, calls=str(self._calls), answers=told, then=then, flush=self.flush)
        self._program.write_text(text)
        self._program.chmod(0o755)

    @property
    def logins(self) -> list[str]:
        """The hosts that were logged in to."""
        return [json.loads(line)[-2] for line in self._calls.read_text().splitlines()]


@pytest.fixture(params=["pass", "out.flush(); time.sleep(0.1)"], ids=["in one piece", "in pieces"])
def host(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return Host(folder, request.param)


@pytest.mark.parametrize(
    "then",
    [
        "while True: out.write(b'x' * (1 << 20))",
        "while True: out.write(bytes([10]) * (1 << 20))",
        "os.close(1)\nwhile True: os.write(2, b'x' * (1 << 16))",
        "out.write(b'nonsense' + bytes([10])); out.flush(); " + SLEEP,
    ],
    ids=["an endless answer", "no answer at all", "endless complaints", "nonsense"],
)
def test_what_a_host_says_is_bounded(host: Host, tmp_path: Path, then: str) -> None:
    host.answers(then=then)
    login = Login("h1", tmp_path)
    began_at = time.monotonic()
    with pytest.raises(HostUnreachable):
        login.open(1.0, "word")
        login.ask("poll", 1.0)
    login.close()
    assert time.monotonic() - began_at < 8


def test_a_log_without_an_end_is_read_as_far_as_logs_go(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_LOG_CAP", str(1 << 20))
    line = b'{"type":"reply","payload":131072}\n'
    host.answers(then=f"while True: out.write({line!r} + b'x' * 131072)")
    platform = HostsPlatform(hosts=("h1",))
    assert 1 << 20 <= len("".join(platform.logs("one.worker-0@h1:1.1"))) <= 3 << 20
    platform.close()


@pytest.mark.parametrize("handle", ["one.worker-0@elsewhere:1.1", "one.worker-0@-oProxyCommand=x:1.1", 5])
def test_a_host_cannot_name_workers_of_others(host: Host, run: Run, handle: Any) -> None:
    host.answers({"workers": [{"id": handle, "name": "worker-0", "status": "running"}]})
    platform = HostsPlatform(hosts=("h1",))
    with pytest.raises(HostUnreachable, match="nonsense"):
        platform.submit([run.spec()], "one")
    assert host.logins == ["h1"]
    platform.close()


def test_a_hello_that_makes_no_sense_is_an_error_of_that_host(host: Host) -> None:
    host.answers()
    text = host._program.read_text().replace("'cores': 9", "'cores': 'many'")
    host._program.write_text(text)
    platform = HostsPlatform(hosts=("h1",))
    with pytest.raises(HostUnreachable, match="cores must be a whole number"):
        platform.check()
    platform.close()


def test_a_handle_names_no_options_of_ssh(host: Host) -> None:
    host.answers()
    platform = HostsPlatform(hosts=("h1",))
    (worker,) = platform.poll(["one.worker-0@-oProxyCommand=x:1.1"])
    assert worker.status.is_final
    assert not host._calls.exists()


SLOW_SSH = """#!{python}
import os, subprocess, sys, time
with subprocess.Popen(["/bin/sh", "-c", sys.argv[-1]], stdin=subprocess.PIPE, bufsize=0) as host:
    host.stdin.write(sys.stdin.buffer.raw.readline())
    data = os.read(0, 1 << 16)
    time.sleep(1)
    while data:
        host.stdin.write(data)
        data = os.read(0, 1 << 16)
    host.stdin.close()
"""


def test_the_time_that_a_package_takes_to_arrive_is_no_difference_of_clocks(host: Host, tmp_path: Path) -> None:
    host.answers()
    host._program.write_text(SLOW_SSH.format(python=sys.executable))
    took: list[float] = []

    class Timed(Login):
        def ask(self, *args: Any, **fields: Any) -> Any:
            began = time.monotonic()
            answer = super().ask(*args, **fields)
            took.append(time.monotonic() - began)
            return answer

    login = Timed("h1", tmp_path)
    login.open(1.0, "word")
    try:
        assert abs(login.clock_offset) < took[0] / 2 + 0.25
    finally:
        login.close()
