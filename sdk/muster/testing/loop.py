"""An event loop in which time, threads, network and processes are simulated.

Code that runs on it takes no simulated time, and is deterministic. Simulated time passes only while all tasks are
waiting, and then without any real waiting. Functions for a thread run on the loop. Connections and servers are objects
in memory (:mod:`muster.testing.network`), and so are the processes (:mod:`muster.testing.programs`).
"""

from __future__ import annotations

import asyncio
import functools
import math
import selectors
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from muster.testing.network import MemoryListener, MemoryServer, Protocol, connect
from muster.testing.programs import MemoryProcess, Program

Result = TypeVar("Result")

START = 1000.0  # first value of the simulated monotonic clock
EPOCH = 1_700_000_000.0  # seconds since 1970 at that moment, by the simulated wall clock


class NothingHappens(Exception):
    """All tasks are waiting for something that will never happen."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose time, threads, network and processes are simulated.

    Attributes:
        programs: function that returns the program for a command line when a process is to be started. It raises
            OSError if there is none; by default it always does.
        is_in_thread: whether the code that runs now would, with a real loop, run on another thread.
        make_listener: factory of the listeners of endpoints.
    """

    make_listener = MemoryListener

    def __init__(self) -> None:
        self._now = START
        self.programs: Callable[[tuple[str, ...]], Program] = _no_program
        self._servers: dict[tuple[str, int], MemoryServer] = {}
        # Calls for the simulated thread of each executor; the first is the one that it is making now.
        self._threads: dict[object, deque[tuple[asyncio.Future[Any], Callable[[], Any]]]] = {}
        self._slept = 0.0
        self.is_in_thread = False
        super().__init__(_Selector(self))

    # -- time ---------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Return the seconds on the simulated monotonic clock."""
        return self._now

    def wall_time(self) -> float:
        """Return the seconds since 1970 on the simulated wall clock."""
        return EPOCH + self._now - START

    def pass_time(self, seconds: float) -> None:
        """Move the clocks forward, without running calls that become due."""
        self._now = math.nextafter(self._now + seconds, math.inf)  # rounded up, so that awaited timers are due

    def sleep(self, seconds: float) -> None:
        """Replace ``time.sleep`` on a simulated thread: the result of the current call comes ``seconds`` later."""
        self._slept += seconds

    def run(self, main: Coroutine[Any, Any, Result], limit: float | None = None) -> Result:
        """Run ``main`` to its end, and return its result.

        Raises:
            NothingHappens: it would wait for ever.
            TimeoutError: it has not ended within ``limit`` simulated seconds.
        """
        try:
            return self.run_until_complete(asyncio.wait_for(main, limit))
        except asyncio.TimeoutError:  # before Python 3.11 not the built-in one
            raise TimeoutError(f"not ended after {limit:g} simulated seconds") from None

    def close(self) -> None:
        """Cancel whatever still runs, and close."""
        if not self.is_closed():
            tasks = asyncio.all_tasks(self)
            for task in tasks:
                task.cancel()
            if tasks:
                self.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        super().close()

    # -- threads ------------------------------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Result], *args: Any
    ) -> asyncio.Future[Result]:
        """Call ``func`` on the loop, once all earlier calls of the same executor are done."""
        done: asyncio.Future[Result] = self.create_future()
        waiting = self._threads.setdefault(executor, deque())
        waiting.append((done, functools.partial(func, *args)))
        if len(waiting) == 1:
            self.call_soon(self._work, executor)
        return done

    def _work(self, executor: object) -> None:
        """Make the next call on the simulated thread of an executor."""
        done, call = self._threads[executor][0]
        self._slept, self.is_in_thread = 0.0, True
        try:
            outcome, error = call(), None
        except BaseException as raised:
            outcome, error = None, raised
        finally:
            self.is_in_thread = False
        if self._slept == 0:
            self._called(executor, outcome, error)
        elif self._slept < float("inf"):
            self.call_later(self._slept, self._called, executor, outcome, error)

    def _called(self, executor: object, outcome: Any, error: BaseException | None) -> None:
        """Set the result of a call, and make the next one."""
        waiting = self._threads[executor]
        done, _ = waiting.popleft()
        if waiting:
            self.call_soon(self._work, executor)
        else:
            del self._threads[executor]
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(outcome)

    # -- network ------------------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Protocol], host: str, port: int = 0, **_: Any
    ) -> MemoryServer:
        """Listen in memory, without TLS: the data does not leave the process."""
        if (host, port) in self._servers and self._servers[host, port].is_serving():
            raise OSError(98, "Address already in use")
        number = port or max([49151, *(taken for _, taken in self._servers)]) + 1
        server = self._servers[host, number] = MemoryServer(self, protocol_factory, (host, number))
        return server

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, Protocol]:
        """Connect to a server in memory."""
        server = self._servers.get((host, port))
        if server is None or not server.is_serving():
            raise ConnectionRefusedError(111, "Connection refused")
        protocol = protocol_factory()
        return connect(self, protocol, server.make_protocol()), protocol

    # -- processes ----------------------------------------------------------------------------------------------------

    async def subprocess_exec(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.SubprocessProtocol], *args: str, **_: Any
    ) -> tuple[asyncio.SubprocessTransport, asyncio.SubprocessProtocol]:
        """Start the program for this command line."""
        protocol = protocol_factory()
        return MemoryProcess(self, protocol, self.programs(args)), protocol


class _Selector(selectors.DefaultSelector):
    """A selector that lets simulated time pass instead of waiting."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the sockets that are ready; if none is, let the time pass for which the loop would wait."""
        ready = super().select(0)
        if not ready and timeout is None:
            waiting = ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(self._loop)))
            raise NothingHappens(f"every task waits, and for something that nobody will ever do: {waiting}")
        if not ready and timeout:
            self._loop.pass_time(timeout)
        return ready


def _no_program(argv: tuple[str, ...]) -> Program:
    raise FileNotFoundError(2, "No such file or directory", argv[0])
