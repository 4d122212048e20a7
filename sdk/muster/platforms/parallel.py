"""Concurrent calls to several machines."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TypeVar

from muster.errors import MusterError
from muster.runtime.latch import Latch

Item = TypeVar("Item")
T = TypeVar("T")
AT_ONCE = 32  # machines that are asked at the same time


def at_once(call: Callable[[Item], T], items: Sequence[Item], most: int) -> list[T]:
    """Call a function for each item, for up to ``most`` at the same time, and return what it returned, in their order.

    Not by a pool, which refuses work while the interpreter exits: then workers have to be stopped. And not on this
    thread, where an interrupt would part a request from its answer, unless no thread can be started any more.

    Raises:
        BaseException: the error of the first item whose call raised one, once all calls have been made.
    """
    waiting = deque(enumerate(items))
    returned: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while waiting:
            try:
                index, item = waiting.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                returned[index] = call(item)
            except BaseException as error:  # raised below, on the thread that waits
                errors[index] = error

    def work_and_tell(ended: Latch[bool]) -> None:
        try:
            work()
        finally:
            ended.set(True)

    at_work: list[Latch[bool]] = []
    try:
        for _ in range(min(most, len(items))):
            ended: Latch[bool] = Latch()
            try:
                Thread(target=work_and_tell, args=[ended], name="muster-parallel", daemon=True).start()
            except RuntimeError:
                break
            at_work.append(ended)
        if not at_work:
            work()
        _wait_for_all(at_work)
    except BaseException:  # an interrupt of this thread: no more calls are made
        waiting.clear()
        _wait_for_all(at_work)
        raise
    if errors:
        raise errors[min(errors)]
    return [returned[index] for index in range(len(items))]


def _wait_for_all(latches: Sequence[Latch[bool]]) -> None:
    for latch in latches:
        latch.wait()


def for_all(call: Callable[[str], T], names: Sequence[str]) -> tuple[dict[str, T], dict[str, MusterError]]:
    """Call a function for each of these hosts, or workers of a pool, at the same time.

    Returns:
        What it returned, and for the others the MusterError that it raised, each by name.
    """
    done: dict[str, T] = {}
    failed: dict[str, MusterError] = {}

    def attempt(name: str) -> None:
        try:
            done[name] = call(name)
        except MusterError as error:
            failed[name] = error

    at_once(attempt, names, AT_ONCE)
    in_order = [name for name in names if name in done]
    return {name: done[name] for name in in_order}, {name: failed[name] for name in names if name in failed}
