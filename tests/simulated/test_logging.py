"""A user's own logging configuration: whatever its handlers do, the engine goes on, and is told nothing of it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import muster
import pytest
from muster.job import Worker
from muster.platforms.local import LocalPlatform
from muster.runtime.background import background_loop, call_in_background

from tests.support import environment, eventually

logger = logging.getLogger("muster")


class Users(logging.Handler):
    """A handler as users write them, which does with a record what a test has it do."""

    def __init__(self, do: Callable[[logging.LogRecord], None]) -> None:
        super().__init__()
        self._do = do

    def emit(self, record: logging.LogRecord) -> None:
        """Do it."""
        self._do(record)


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, at the level of debugging; its handlers are put back afterwards."""
    background_loop()  # asyncio logs, on this thread, that there is a new one
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    root.setLevel(logging.DEBUG)
    yield root
    root.setLevel(level)
    root.handlers = handlers


def test_a_handler_that_waits_holds_up_nothing(root: logging.Logger) -> None:
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def wait(record: logging.LogRecord) -> None:
        begun.set()
        go_on.wait(20)
        seen.append(record.getMessage())

    root.addHandler(Users(wait))
    try:
        began = time.monotonic()
        for number in range(5):
            call_in_background(partial(logger.warning, "warning %d", number))
        assert begun.wait(5)
        assert time.monotonic() - began < 5
        assert not seen
    finally:
        go_on.set()
    eventually(lambda: len(seen) == 5, "all come in the end")
    assert seen == [f"warning {number}" for number in range(5)]


def warn(times: int) -> None:
    for _ in range(times):
        logger.warning("x")


def test_a_handler_that_waits_for_good_costs_little_memory(root: logging.Logger) -> None:
    go_on = threading.Event()
    seen: list[str] = []

    def wait(record: logging.LogRecord) -> None:
        go_on.wait(20)
        seen.append(record.getMessage())

    root.addHandler(Users(wait))
    try:
        call_in_background(lambda: warn(5000))
    finally:
        go_on.set()
    eventually(lambda: any("left out" in text for text in seen), "how many are missing is said")
    assert len(seen) < 2000


@pytest.mark.parametrize("error", [RuntimeError("trouble"), SystemExit(3), KeyboardInterrupt()])
def test_a_handler_that_raises_is_no_concern_of_the_engines(root: logging.Logger, error: BaseException) -> None:
    seen: list[str] = []

    def fail(record: logging.LogRecord) -> None:
        seen.append(record.getMessage())
        raise error

    root.addHandler(Users(fail))
    call_in_background(lambda: logger.warning("first"))
    call_in_background(lambda: logger.warning("second"))
    eventually(lambda: seen == ["first", "second"], "both are told")


def test_what_fails_on_the_loop_is_logged_and_does_not_end_it(root: logging.Logger) -> None:
    seen: list[str] = []

    def fail(record: logging.LogRecord) -> None:
        seen.append(f"{record.name} {record.getMessage()}")
        raise RuntimeError("a handler's own trouble")

    def defect() -> None:
        raise KeyError("a defect")

    root.addHandler(Users(fail))
    background_loop().call_soon_threadsafe(defect)
    assert call_in_background(lambda: "alive") == "alive"
    eventually(lambda: any(text.startswith("muster ") and "defect" in text for text in seen), "it is told")


def test_a_run_ends_well_whatever_its_handlers_do(root: logging.Logger) -> None:
    class Odd(LocalPlatform):
        """One that cannot be polled, which is warned of, and that is ended late."""

        def poll(self, handles: Sequence[str]) -> list[Worker]:
            raise OSError("the engine says \x1b]0;title\x07\x1b[31mno")

    go_on = threading.Event()
    texts: list[str] = []

    def wait(record: logging.LogRecord) -> None:
        texts.append(record.getMessage())
        go_on.wait(0 if len(texts) == 1 else 20)
        raise RuntimeError("a handler's own trouble")

    root.addHandler(Users(wait))
    platform = Odd()
    try:
        began = time.monotonic()
        found = muster.run_cluster(
            1, strategy="processes", worker_script=lambda: 7, platform=platform, memory=0.5, dashboard=False
        ).cluster
        assert found.result.values == [7]
        assert time.monotonic() - began < 15
        eventually(lambda: any("did not release" in text for text in texts), "the engine has warned")
    finally:
        go_on.set()
        platform.close()


def test_what_others_have_said_steers_no_terminal(root: logging.Logger) -> None:
    seen: list[str] = []
    root.addHandler(Users(lambda record: seen.append(record.getMessage())))
    logger.warning("the platform did not answer: %s", OSError("\x1b]0;title\x07\x1b[31mno\udcff"))
    assert seen == ["the platform did not answer: no\ufffd"]


def test_what_others_have_said_steers_no_terminal_where_nobody_has_set_up_logging() -> None:
    program = (
        "import logging, muster; from muster.runtime.background import background_loop; background_loop()\n"
        "try: raise OSError('\\x1b[31mred')\n"
        "except OSError: logging.getLogger('muster').warning('%s', '\\x1b]0;title\\x07', exc_info=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=True)
    assert b"\x1b" not in done.stderr
    assert b"OSError: red" in done.stderr
