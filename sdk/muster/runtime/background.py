"""The background: one thread with an event loop per process, and threads for blocking calls.

With it the public interface can be synchronous, and does not depend on a notebook's own event loop.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import queue
import resource
import selectors
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from muster.errors import PlatformError
from muster.runtime.forks import in_forked_children
from muster.runtime.interrupts import deferred
from muster.runtime.latch import Latch
from muster.runtime.log import log_without_waiting, logger

Result = TypeVar("Result")

MANY = 64  # watched connections and files, from which number on messages may gather
GATHER_SECONDS = 0.05  # how long they may gather

MOST_IDLE = 2  # threads that wait for another call

_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()
_idle: list[DaemonThread] = []  # reused, as a run makes a dozen blocking calls, most of them one after the other


def background_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process's background thread, which is started when it is first needed."""
    global _loop
    with _loop_lock:
        if _loop is None:
            log_without_waiting()
            loop = asyncio.SelectorEventLoop(_Gathering())
            loop.set_exception_handler(_tell)  # asyncio's default logs to handlers of the user
            try:
                with deferred():  # else an interrupt would lose a thread that has started
                    start_thread(loop.run_forever, "muster")
                    _loop = loop
            except BaseException:
                if _loop is None:  # there is no thread
                    loop.close()
                raise
        return _loop


def start_thread(work: Callable[[], object], name: str) -> None:
    """Do some work on a daemon thread. Raises PlatformError where the system cannot start one."""
    try:
        threading.Thread(target=work, name=name, daemon=True).start()
    except RuntimeError as error:
        most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        limit = "" if most == resource.RLIM_INFINITY else f", whose user may have {most} of them, and processes"
        raise PlatformError(
            f"This session cannot start another thread{limit}: {error}.",
            advice="end other programs of this user, or a higher limit before this process starts: ulimit -u, pids.max",
        ) from error


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception of a task or callback for which nobody waits."""
    error = context.get("exception")
    logger.error("in the background: %s (%r)", context.get("message"), error, exc_info=error)


class _Gathering(selectors.DefaultSelector):
    """A selector that, if there are many connections, lets messages gather for a moment and handles them together.

    Waking up for a message costs more than handling it, since the CPU's caches have lost the loop by then: a thousand
    workers that report once a second would keep it awake.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Select as the base class does, but later by up to GATHER_SECONDS, unless callbacks or timers are due.

        Calls from other threads arrive like messages, and so are delayed, too.
        """
        if len(self.get_map()) > MANY and (timeout is None or timeout > 0):
            pause = GATHER_SECONDS if timeout is None else min(timeout, GATHER_SECONDS)
            time.sleep(pause)
            timeout = None if timeout is None else timeout - pause
        return super().select(timeout)


def _forget_loop() -> None:
    """Forget the background thread, which a forked child does not have, so that the child can start its own."""
    global _loop, _loop_lock
    _idle.clear()
    _loop = None
    _loop_lock = threading.Lock()


def on_background_thread() -> bool:
    """Return whether the caller runs on the background thread, as observers do, and so must not wait for it."""
    try:
        return asyncio.get_running_loop() is _loop
    except RuntimeError:
        return False


in_forked_children(_forget_loop)


def call_in_background(function: Callable[[], Result]) -> Result:
    """Call ``function`` on the background thread, and return its result.

    Processes that die with their parent (``PR_SET_PDEATHSIG``) die with the thread that started them: the background
    thread lives as long as the session, but the caller's thread may not.
    """
    if on_background_thread():
        return function()

    async def call() -> Result:
        return function()

    return result_of(call())


def result_of(coroutine: Coroutine[Any, Any, Result], seconds: float | None = None) -> Result:
    """Run a coroutine on the background thread, wait for it on this one, and return its result or raise its error.

    An interrupt of this thread cancels it.

    Raises:
        TimeoutError: it has not ended after ``seconds``, and is cancelled.
        PlatformError: there is no background thread, and the system cannot start another one.
    """
    try:
        loop = background_loop()
    except PlatformError:
        coroutine.close()
        raise
    ended: Latch[bool] = Latch()
    tasks: list[asyncio.Task[Result]] = []

    def begin() -> None:
        task = loop.create_task(coroutine)
        tasks.append(task)
        task.add_done_callback(_retrieve_error)
        task.add_done_callback(lambda _: ended.set(True))

    def cancel() -> None:
        for task in tasks:
            task.cancel()

    in_time = False
    try:
        loop.call_soon_threadsafe(begin)
        in_time = ended.wait(seconds)
    finally:
        if not in_time:
            loop.call_soon_threadsafe(cancel)
    if not in_time:
        raise TimeoutError(f"no answer after {seconds:g} s")
    try:
        return tasks[0].result()
    except asyncio.CancelledError:  # by something within it
        raise PlatformError("What was asked of the background thread was broken off.", advice="try it again") from None
    finally:
        tasks.clear()  # an error keeps this frame, which must not keep the task that keeps the error


async def in_thread(function: Callable[..., Result], *args: Any) -> Result:
    """Call ``function(*args)`` on a separate thread while the event loop goes on, and return its result."""
    try:
        thread = _idle.pop()
    except IndexError:
        thread = DaemonThread("muster-work")
    try:
        found = await asyncio.get_running_loop().run_in_executor(thread, functools.partial(function, *args))
    except BaseException:  # raised by the call, or this was cancelled, and the thread may be busy for long
        thread.shutdown()
        raise
    if len(_idle) < MOST_IDLE:
        _idle.append(thread)
    else:
        thread.shutdown()
    return found


class DaemonThread(concurrent.futures.Executor):
    """Makes calls one after the other on a daemon thread of its own, which starts with the first.

    Not a pool: pools refuse work while the interpreter exits, which is when workers have to be stopped.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._has_started = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
        """Have ``fn`` called once all calls before it have been made."""
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()

        def work() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                outcome = fn(*args, **kwargs)
            except BaseException as error:  # any error must reach the caller that waits
                done.set_exception(_to_be_awaited(error))
            else:
                done.set_result(outcome)

        if not self._has_started:
            start_thread(self._work, self._name)
            self._has_started = True
        self._calls.put(work)
        return done

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Let the thread end once the calls so far have been made, without waiting for that."""
        self._calls.put(None)

    def _work(self) -> None:
        while (work := self._calls.get()) is not None:
            work()
            del work  # so that its arguments are not kept alive


async def answer_of(future: asyncio.Future[Result], seconds: float | None) -> Result:
    """Return a future's result, or raise its error, within ``seconds``. The future is not cancelled.

    This replaces ``asyncio.wait_for``, which before Python 3.12 loses a cancellation if the result comes at the same
    moment.

    Raises:
        TimeoutError: there is no answer yet.
    """
    await asyncio.wait([future], timeout=seconds)
    if not future.done():
        raise TimeoutError(f"no answer after {seconds:g} s")
    return future.result()


class BlockingCalls:
    """Awaitable calls of blocking functions, made one after the other on a separate thread."""

    def __init__(self, name: str) -> None:
        self._thread = DaemonThread(name)

    async def call(self, function: Callable[..., Result], *args: Any, seconds: float | None = None) -> Result:
        """Call ``function(*args)`` on the thread, and return its result or raise its error.

        Raises:
            TimeoutError: it has not returned after ``seconds``. It goes on, and holds up the calls after it.
        """
        returned = asyncio.get_running_loop().run_in_executor(self._thread, functools.partial(function, *args))
        returned.add_done_callback(_retrieve_error)
        return await answer_of(returned, seconds)

    def close(self) -> None:
        """Let the thread end once the calls so far have been made."""
        self._thread.shutdown()


def _to_be_awaited(error: BaseException) -> Exception:
    """Return the error, or a RuntimeError in place of one that asyncio would take for a cancellation or an exit."""
    if isinstance(error, Exception) and not isinstance(error, (StopIteration, concurrent.futures.CancelledError)):
        return error
    return RuntimeError(f"it raised {error!r}")


def _retrieve_error(returned: asyncio.Future[Any]) -> None:
    """Retrieve an error for which nobody may wait any more, so that asyncio does not log it."""
    if not returned.cancelled():
        returned.exception()
