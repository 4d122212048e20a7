"""The controller of a detached run, in this process and in simulated time: what it is handed, says, and ends for."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from muster.errors import JobError, PlatformError
from muster.platforms import PLATFORMS
from muster.records.runs import Run
from muster.run import controller, execution
from muster.run.check import check
from muster.run.request import RunRequest
from muster.runtime.latch import Latch
from muster.testing import ScriptedPlatform, SimulatedLoop


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunRequest:
    """A request for a run that takes ten seconds."""
    monkeypatch.setitem(PLATFORMS, "scripted", "muster.testing:ScriptedPlatform")
    (tmp_path / "train.py").write_text("print(1)\n")
    script = tmp_path / "train.py"
    return RunRequest(script, 2, strategy="processes", platform="scripted", cwd=str(tmp_path), detach=3600)


class Alone:
    """A process that is a controller's alone, as far as that can tell."""

    def __init__(self, loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = loop
        self.is_heard = True
        self.clock_set_by = 0.0
        self._patch = monkeypatch

    def set_clock(self, by: float) -> None:
        """Set the clock on the wall, by some seconds."""
        self.clock_set_by = by

    def main(self, request: bytes) -> bytes:
        """Be one, and return what it has said."""
        self._patch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(request)))
        self._patch.setattr(sys, "path", ["", *sys.path])
        read, write = os.pipe()
        with contextlib.ExitStack() as last, os.fdopen(read, "rb") as said:
            for descriptor in (0, 1, 2):
                copy = os.dup(descriptor)
                last.callback(os.close, copy)
                last.callback(os.dup2, copy, descriptor)
            os.dup2(write, 1)
            os.close(write)
            if not self.is_heard:
                said.close()
            controller.main()
            os.write(2, b"what nobody expected")
            return said.read() if self.is_heard else b""


@pytest.fixture
def alone(loop: SimulatedLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Alone]:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    monkeypatch.setattr(execution, "background_loop", lambda: loop)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: loop.create_task(work))
    monkeypatch.setattr(Latch, "wait", lambda _, seconds: loop.run(asyncio.sleep(seconds)))
    monkeypatch.setattr(os, "fork", lambda: 0)
    monkeypatch.chdir("/")
    alone = Alone(loop, monkeypatch)
    clocks = SimpleNamespace(
        time=lambda: loop.wall_time() + alone.clock_set_by,
        clock_gettime=lambda which: loop.time(),
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
    )
    monkeypatch.setattr(controller, "time", clocks)
    yield alone
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_it_says_what_it_has_begun_and_lives_until_the_run_has_ended(alone: Alone, asked: RunRequest) -> None:
    run = controller._begun(alone.main(controller._pickle(check(asked))), "")
    assert run.status == "succeeded"
    assert os.getcwd() == asked.cwd
    assert [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT)] == [signal.SIG_IGN] * 2
    assert "" not in sys.path
    assert (run.run_dir / controller.LOG).read_text() == "what nobody expected"


def test_a_clock_set_forward_ends_it_no_earlier(alone: Alone, asked: RunRequest) -> None:
    alone.loop.call_later(3, alone.set_clock, 86400)
    run = controller._begun(alone.main(controller._pickle(check(asked))), "")
    assert run.status == "succeeded"


# What ends a run that would take ten seconds, and the reason that is recorded.
ENDS: list[tuple[float, Callable[[Alone], object], str]] = [
    (5.0, lambda alone: None, "the time that it was detached for is over"),
    (5.0, lambda alone: alone.loop.call_later(3, alone.set_clock, -3600), "the time that it was detached for is over"),
    (3600.0, lambda alone: alone.loop.call_later(3, signal.raise_signal, signal.SIGTERM), "was ended by SIGTERM"),
    (3600.0, lambda alone: setattr(alone, "is_heard", False), "nobody waited for it to begin"),
]


@pytest.mark.parametrize(("detach", "happens", "reason"), ENDS)
def test_what_ends_it_before(
    alone: Alone, asked: RunRequest, muster_home: Path, detach: float, happens: Callable[[Alone], object], reason: str
) -> None:
    happens(alone)
    alone.main(controller._pickle(check(replace(asked, detach=detach))))
    (result,) = muster_home.rglob("result.json")
    recorded = json.loads(result.read_text())
    assert recorded["status"] == "stopped"
    assert reason in recorded["reason"]


def test_it_says_an_error_in_its_words(alone: Alone, asked: RunRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(platform: ScriptedPlatform) -> None:
        raise PlatformError("no room", advice="make some", details="all taken")

    request = controller._pickle(check(asked))
    monkeypatch.setattr(ScriptedPlatform, "check", refuse)
    with pytest.raises(PlatformError) as caught:
        controller._begun(alone.main(request), "")
    error = caught.value
    assert (error.message, error.advice, error.details) == ("no room", "make some", "all taken")


def test_whoever_starts_it_waits_for_one_that_is_in_the_background(
    alone: Alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr(os, "fork", lambda: 7)
    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SystemExit) as caught:
        alone.main(b"")
    assert caught.value.code == 0


class Started:
    """A controller that has said this, and has ended."""

    def __init__(self, printed: bytes) -> None:
        self._printed = printed

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def communicate(self, request: bytes, timeout: float) -> tuple[bytes, None]:
        return self._printed, None


Ran = Callable[[IO[bytes]], Started]


def says(printed: bytes, complained: bytes = b"") -> Ran:
    """A controller that says this."""

    def run(stderr: IO[bytes]) -> Started:
        stderr.write(complained)
        return Started(printed)

    return run


def fails(error: Exception) -> Ran:
    """No controller: it cannot be started."""

    def run(stderr: IO[bytes]) -> Started:
        raise error

    return run


def start(asked: RunRequest, monkeypatch: pytest.MonkeyPatch, ran: Ran) -> Run:
    """Start a run where this becomes of the controller."""

    def popen(argv: list[str], **how: Any) -> Started:
        assert how["start_new_session"]
        return ran(how["stderr"])

    monkeypatch.setattr(subprocess, "Popen", popen)
    return controller.start(check(asked))


def test_a_run_that_has_begun_is_returned(asked: RunRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert start(asked, monkeypatch, says(b'{"run_dir": "/runs/mine"}')).run_id == "mine"


@pytest.mark.parametrize(
    ("ran", "message", "details"),
    [
        (fails(OSError(12, "Cannot allocate memory")), "could not be started: .*Cannot allocate", None),
        (says(b"", b"ImportError: no \xff"), "ended before it had begun", "ImportError: no \ufffd"),
        (says(b'{"error": "PlatformError", "reason": "no", "details": "why"}'), "no", "why"),
        (says(b'{"error": null}', b"why"), "did not begin it", "why"),
    ],
)
def test_one_that_does_not_begin(
    asked: RunRequest, monkeypatch: pytest.MonkeyPatch, ran: Ran, message: str, details: str | None
) -> None:
    with pytest.raises(PlatformError, match=message) as caught:
        start(asked, monkeypatch, ran)
    assert caught.value.details == details


@pytest.mark.parametrize(
    ("what", "message"),
    [({"platform": ScriptedPlatform()}, "platform object"), ({"options": {"lock": threading.Lock()}}, "cannot pickle")],
    ids=["platform", "lock"],
)
def test_what_lives_in_this_process_alone_is_not_handed_on(
    asked: RunRequest, what: dict[str, Any], message: str
) -> None:
    checked = check(asked)
    with pytest.raises(JobError, match=message):
        controller._pickle(replace(checked, request=replace(asked, **what)))
