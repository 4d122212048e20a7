"""Waiting for changes: nobody misses one, and nobody looks again and again."""

from __future__ import annotations

import asyncio

import pytest
from muster.run.changes import Changes
from muster.testing.loop import START, NothingHappens, SimulatedLoop


def test_every_waiter_wakes_at_its_own_change(loop: SimulatedLoop) -> None:
    changes, done, woken = Changes(), set(), {}

    async def wait(number: int) -> None:
        assert await changes.until(lambda: number in done, START + 1000)
        woken[number] = loop.time()

    async def change(number: int) -> None:
        await asyncio.sleep(number // 10)  # several at once
        done.add(number)
        changes.set()

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(30) for task in (change, wait)))

    loop.run(main())
    assert woken == pytest.approx({number: START + number // 10 for number in range(30)})


def test_a_change_right_after_the_look_counts(loop: SimulatedLoop) -> None:
    changes, looks = Changes(), []

    def is_true() -> bool:
        looks.append(loop.time())
        if len(looks) == 1:
            loop.call_soon(changes.set)
        return len(looks) > 1

    assert loop.run(changes.until(is_true))
    assert looks == [START, START]


def test_it_waits_no_longer_than_to_the_deadline(loop: SimulatedLoop) -> None:
    looks: list[float] = []

    def never() -> bool:
        looks.append(loop.time())
        return False

    assert not loop.run(Changes().until(never, START + 7))
    assert looks == pytest.approx([START, START + 7]), "nothing was looked at while nothing happened"


def test_who_is_cancelled_waits_no_more(loop: SimulatedLoop) -> None:
    changes = Changes()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(changes.until(lambda: False), 1)
        changes.set()

    loop.run(main())
    assert not changes._waiters


def test_without_a_deadline_and_a_change_nothing_happens(loop: SimulatedLoop) -> None:
    with pytest.raises(NothingHappens):
        loop.run(Changes().until(lambda: False))
