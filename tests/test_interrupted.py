"""Interrupts between any two instructions of the main thread, and what works after them all the same."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.board import tensorboard
from muster.errors import PlatformError
from muster.platforms import guard_process
from muster.platforms.kept import KeptPlatform
from muster.platforms.local import LocalPlatform
from muster.platforms.pooled.platform import PooledPlatform
from muster.runtime import interrupts
from muster.runtime.background import result_of
from muster.runtime.latch import Latch

from tests.support import Run, alarms, command_line, eventually, guard_of, is_gone, shell

pytestmark = pytest.mark.timeout(60)
ANYWHERE = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def interrupted(call: Callable[[], object], times: int = 300) -> None:
    """Make a call again and again, each time until an interrupt comes at another of its instructions."""
    came = False

    def note(signum: int, frame: types.FrameType | None) -> None:
        nonlocal came
        came = True
        raise KeyboardInterrupt

    with alarms(note):
        for number in range(times):
            came = False
            # Within a destructor Python only tells of an interrupt, and goes on: so none may be waited for.
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 0.0001 + number % 50 * 0.00001)
                while not came:
                    call()


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@ANYWHERE
def test_a_latch_that_is_looked_at_can_be_set_and_waited_for() -> None:
    latch: Latch[str] = Latch()
    interrupted(lambda: latch.is_set() or latch.value or latch.wait(0.00001))
    setting = threading.Thread(target=latch.set, args=["the end"])
    setting.start()
    assert latch.wait(10)
    setting.join(10)
    assert latch.value == "the end"


@ANYWHERE
def test_the_background_thread_goes_on() -> None:
    result_of(asyncio.sleep(0))  # it is started
    interrupted(lambda: result_of(asyncio.sleep(0.00001)), times=100)
    assert result_of(asyncio.sleep(0, "an answer")) == "an answer"


def test_a_coroutine_whose_caller_is_interrupted_or_out_of_time_is_cancelled() -> None:
    ended: list[str] = []

    async def endless(name: str) -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(name)

    with pytest.raises(TimeoutError):
        result_of(endless("late"), seconds=0.05)
    threading.Timer(0.1, interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        result_of(endless("interrupted"))
    eventually(lambda: ended == ["late", "interrupted"], "both are cancelled")


def test_a_call_of_a_latch_is_made_once_before_or_after_it_is_set() -> None:
    latch: Latch[int] = Latch()
    made: list[str] = []

    def fail() -> None:
        raise ValueError("a call that fails keeps no other from being made")

    latch.when_set(lambda: made.append("before"))
    latch.when_set(fail)
    latch.when_set(lambda: made.append("second"))
    latch.set(1)
    latch.set(2)
    latch.when_set(lambda: made.append("after"))
    assert made == ["before", "second", "after"]
    assert latch.value == 1


def test_a_latch_is_waited_for_by_many_and_no_longer_than_asked() -> None:
    latch: Latch[int] = Latch()
    began = time.monotonic()
    assert not latch.wait(0.05)
    assert 0.04 < time.monotonic() - began < 5
    told: list[bool] = []
    waiting = [threading.Thread(target=lambda: told.append(latch.wait())) for _ in range(5)]
    for thread in waiting:
        thread.start()
    latch.set(1)
    for thread in waiting:
        thread.join(10)
    assert told == [True] * 5


def test_an_interrupt_that_is_deferred_comes_at_the_end_of_the_block() -> None:
    done: list[int] = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        interrupt()
        done.append(1)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_workers_whose_launch_was_interrupted_before_the_guard_answered_have_ended(
    run: Run, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    platform = LocalPlatform()
    request.addfinalizer(platform.close)  # before what is left behind is looked for
    platform.submit([run.spec("worker-9", process=shell("sleep 600"))], "before")
    ask = guard_process.GuardProcess.ask

    def ask_and_interrupt(guard: guard_process.GuardProcess, kind: str, **fields: Any) -> dict[str, Any]:
        answer = ask(guard, kind, **fields)
        if kind == "launch":
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(guard_process.GuardProcess, "ask", ask_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        platform.submit([run.spec(f"worker-{index}", process=shell("sleep 600")) for index in range(4)], "run")
    eventually(lambda: len(commands_of(run, "sleep 600")) == 1, "only the worker of before still runs")
    eventually(lambda: [*run.scratch.glob("worker-*")] == [run.scratch / "worker-9"], "so does its folder")


def commands_of(run: Run, command: str) -> list[int]:
    """Return the run's processes with this command line."""
    return [pid for pid in run.processes() if not is_gone(pid) and command_line(pid) == command]


def test_a_pool_whose_close_is_interrupted_is_closed_and_can_be_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    platform = LocalPlatform()
    pool = muster.pool(1, memory=0.3, platform=platform, dashboard=False)
    guard = guard_of(platform.list()[0].id)
    monkeypatch.setattr(PooledPlatform, "close", lambda _: signal.default_int_handler(signal.SIGINT, None))
    with pytest.raises(KeyboardInterrupt):
        pool.close()
    assert is_gone(guard)
    monkeypatch.undo()
    pool.close()
    assert "closed" in repr(pool)


def test_a_pool_may_be_closed_by_a_signal_handler_while_it_is_being_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = muster.pool(1, memory=0.3, platform=LocalPlatform(), dashboard=False)
    close = PooledPlatform.close

    def close_twice(platform: PooledPlatform) -> None:
        monkeypatch.undo()
        pool.close()
        close(platform)

    monkeypatch.setattr(PooledPlatform, "close", close_twice)
    pool.close()
    assert "closed" in repr(pool)


def test_an_error_of_a_coroutine_waits_for_no_garbage_collector() -> None:
    class Kept:
        pass

    async def fail() -> None:
        kept = Kept()
        seen.append(weakref.ref(kept))
        raise ValueError("an error")

    seen: list[weakref.ref[Kept]] = []
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            result_of(fail())
        eventually(lambda: seen[0]() is None, "what it used is freed")
    finally:
        gc.enable()


def test_a_coroutine_that_is_cancelled_from_within_is_an_error_and_no_cancellation_of_the_caller() -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError

    with pytest.raises(PlatformError, match="broken off"):
        result_of(give_up())


def test_an_interrupt_while_a_kept_platform_is_borrowed_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptPlatform(600)
    borrow = KeptPlatform.borrow

    def borrow_and_interrupt(self: KeptPlatform) -> LocalPlatform:
        try:
            return borrow(self)
        finally:
            interrupt()

    monkeypatch.setattr(KeptPlatform, "borrow", borrow_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        muster.run_cluster(1, worker_script=print, strategy="processes", dashboard=False, reuse=kept)
    assert kept._runs == 0
    kept.close()


def test_an_interrupt_while_tensorboard_is_started_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    start = tensorboard._start

    def start_and_interrupt(*args: Any) -> Any:
        process = start(*args)
        started.append(process.pid)
        interrupt()
        return process

    monkeypatch.setattr(tensorboard, "_start", start_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        muster.tensorboard(tmp_path)
    assert is_gone(started[0])
