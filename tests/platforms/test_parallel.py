"""Concurrent calls to several machines, also while the interpreter exits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from muster.platforms import parallel
from muster.platforms.parallel import at_once

from tests.support import environment

AT_EXIT = """
import atexit
from muster.platforms.parallel import at_once
atexit.register(lambda: print(at_once(str.upper, ["a", "b", "c"], 2)))
"""


def test_calls_are_made_at_the_same_time_and_answered_in_order() -> None:
    both = threading.Barrier(2, timeout=10)

    def call(item: int) -> int:
        both.wait()
        return item * 2

    assert at_once(call, [1, 2, 3, 4], 2) == [2, 4, 6, 8]
    assert at_once(call, [], 2) == []


def test_all_calls_are_made_and_the_first_error_is_raised() -> None:
    made: list[int] = []

    def call(item: int) -> None:
        time.sleep(0.01 * (5 - item))
        made.append(item)
        if item in (1, 2):
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        at_once(call, [0, 1, 2, 3], 4)
    assert sorted(made) == [0, 1, 2, 3]


def test_they_are_made_while_the_interpreter_exits() -> None:
    """Which is when the workers of a script that has not waited for its run are stopped."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], env=environment(), capture_output=True, text=True)
    assert done.stdout == "['A', 'B', 'C']\n", done.stderr


def test_they_are_made_where_no_thread_can_be_started_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Python 3.12 starts none while it exits."""

    class Refused(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(parallel, "Thread", Refused)
    assert at_once(str.upper, ["a", "b", "c"], 2) == ["A", "B", "C"]


def test_after_an_interrupt_no_more_calls_are_made_and_those_under_way_have_ended() -> None:
    begun: list[int] = []
    made: list[int] = []

    def call(item: int) -> None:
        begun.append(item)
        if item == 3:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        made.append(item)

    with pytest.raises(KeyboardInterrupt):
        at_once(call, range(100), 2)
    assert len(begun) < 10
    assert sorted(made) == sorted(begun)


def test_one_that_exits_is_an_error_like_others() -> None:
    with pytest.raises(SystemExit):
        at_once(sys.exit, ["an exit", "another"], 2)


def test_they_are_never_made_where_an_interrupt_could_part_a_request_from_its_answer() -> None:
    assert at_once(lambda item: threading.get_ident(), [1], 8) != [threading.get_ident()]
