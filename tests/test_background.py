"""The background's loop: messages of many connections gather, and no callback or timer waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import pytest
from muster.errors import PlatformError
from muster.runtime import background


@contextlib.contextmanager
def connections(count: int) -> Iterator[tuple[selectors.BaseSelector, socket.socket]]:
    """The loop's selector with so many connections, and the other end of one of them."""
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(background._Gathering())
        for _ in range(count):
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            selector.register(ours, selectors.EVENT_READ)
        yield selector, theirs


def seconds_of(selector: selectors.BaseSelector, timeout: float | None, ready: int) -> float:
    started = time.monotonic()
    assert len(selector.select(timeout)) == ready
    return time.monotonic() - started


def test_messages_of_many_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "GATHER_SECONDS", 0.3)
    with connections(background.MANY + 1) as (selector, peer):
        peer.send(b"x")
        assert seconds_of(selector, 60, ready=1) >= 0.3
        assert seconds_of(selector, None, ready=1) >= 0.3


def test_neither_callbacks_nor_timers_nor_a_few_wait_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "GATHER_SECONDS", 30)
    with connections(background.MANY) as (selector, peer):
        peer.send(b"x")
        assert seconds_of(selector, None, ready=1) < 30
    with connections(background.MANY + 1) as (selector, _):
        assert seconds_of(selector, 0, ready=0) < 30  # callbacks are due
        assert seconds_of(selector, 0.1, ready=0) < 30  # a timer is


def test_the_loop_uses_it() -> None:
    assert isinstance(background.background_loop()._selector, background._Gathering)  # type: ignore[attr-defined]


@pytest.mark.parametrize("turns", range(8))
def test_a_cancellation_that_comes_beside_the_answer_is_not_swallowed(turns: int) -> None:
    async def cancel_beside_answer() -> None:
        calls, called = background.BlockingCalls("muster-test"), threading.Event()
        waiting = asyncio.ensure_future(calls.call(called.set, seconds=60))
        await asyncio.sleep(0)
        called.wait()
        calls.close()
        time.sleep(0.01)  # the answer waits for the loop
        for _ in range(turns):
            await asyncio.sleep(0)
        was_cancelled = waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled() == was_cancelled

    asyncio.run(cancel_beside_answer())


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(3),
        StopIteration(),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        futures.CancelledError(),
    ],
)
def test_what_no_coroutine_may_raise_comes_as_an_error(error: BaseException) -> None:
    def raising() -> None:
        raise error

    async def call() -> None:
        calls = background.BlockingCalls("test")
        try:
            with pytest.raises(RuntimeError, match=type(error).__name__):
                await asyncio.wait_for(calls.call(raising), 5)
        finally:
            calls.close()

    asyncio.run_coroutine_threadsafe(call(), background.background_loop()).result(10)


def test_a_call_that_takes_too_long_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []

    def slowly() -> None:
        time.sleep(0.2)
        done.append(1)

    async def call() -> None:
        calls = background.BlockingCalls("test")
        with pytest.raises(TimeoutError, match="no answer after"):
            await calls.call(slowly, seconds=0.01)
        await calls.call(done.append, 2)
        calls.close()

    asyncio.run_coroutine_threadsafe(call(), background.background_loop()).result(10)
    assert done == [1, 2]


def test_where_no_thread_can_be_started_that_is_said_and_the_next_call_does_not_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    worker = background.DaemonThread("test")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr(background, "_loop", None)
        for _ in range(2):
            with pytest.raises(PlatformError, match="cannot start another thread"):
                background.call_in_background(os.getpid)
            with pytest.raises(PlatformError, match="ulimit -u"):
                worker.submit(os.getpid)
    assert worker.submit(os.getpid).result(10) == os.getpid()
    worker.shutdown()


def test_calls_that_block_one_after_the_other_share_a_thread() -> None:
    async def calls() -> list[int]:
        return [await background.in_thread(threading.get_ident) for _ in range(3)]

    assert len(set(asyncio.run(calls()))) == 1


def test_calls_that_block_at_once_hold_each_other_up_no_more_than_their_threads_stay() -> None:
    together = threading.Barrier(6, timeout=20)

    async def calls() -> None:
        await asyncio.gather(*(background.in_thread(together.wait) for _ in range(6)))

    asyncio.run(calls())
    assert len(background._idle) == background.MOST_IDLE


def test_a_call_for_which_nobody_waits_any_more_holds_up_no_other() -> None:
    go_on = threading.Event()

    async def calls() -> int:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(background.in_thread(go_on.wait, 20), 0.05)
        return await background.in_thread(lambda: 7)

    try:
        assert asyncio.run(calls()) == 7
        assert not go_on.is_set()
    finally:
        go_on.set()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12, where there are threads
def test_a_forked_child_has_threads_of_its_own_for_calls_that_block() -> None:
    assert asyncio.run(background.in_thread(lambda: 7)) == 7
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            os._exit(asyncio.run(background.in_thread(lambda: 8)))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
