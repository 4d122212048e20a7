"""Leases of workers, by a clock that tests set."""

from __future__ import annotations

import pytest
from muster.pools.leases import MARGIN, LeaseHeld, Leases


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leases(clock: Clock) -> Leases:
    leases = Leases(15.0, clock)
    leases.add("worker-0")
    return leases


def test_one_that_never_came_can_be_replaced_at_once(leases: Leases) -> None:
    assert leases.renew("worker-0") == 1
    assert "taken the place" in str(leases.refusal("worker-0", 0))
    assert leases.refusal("worker-0", 1) is None


def test_one_that_is_connected_cannot_be_replaced(leases: Leases, clock: Clock) -> None:
    leases.connected("worker-0")
    clock.now += 10_000
    with pytest.raises(LeaseHeld, match="generation 0 of worker-0"):
        leases.renew("worker-0")


def test_one_that_is_away_can_come_back_within_its_lease_and_be_replaced_after_it(leases: Leases, clock: Clock) -> None:
    leases.connected("worker-0")
    leases.cut("worker-0")
    clock.now += 15
    assert leases.refusal("worker-0", 0) is None
    with pytest.raises(LeaseHeld, match="another 2.0 s"):
        leases.renew("worker-0")
    clock.now += MARGIN
    assert "lease" in str(leases.refusal("worker-0", 0))
    assert leases.renew("worker-0") == 1


def test_a_lease_begins_again_with_each_absence(leases: Leases, clock: Clock) -> None:
    for _ in range(5):
        leases.connected("worker-0")
        leases.cut("worker-0")
        clock.now += 10
        assert leases.refusal("worker-0", 0) is None


def test_one_that_is_known_to_have_ended_can_be_replaced_at_once_and_not_come_back(leases: Leases) -> None:
    leases.connected("worker-0")
    leases.ended("worker-0")
    assert "ended" in str(leases.refusal("worker-0", 0))
    assert leases.renew("worker-0") == 1
    assert leases.refusal("worker-0", 1) is None


def test_one_without_a_lease_ends_with_its_connection(clock: Clock) -> None:
    leases = Leases(0.0, clock)
    leases.add("worker-0")
    leases.connected("worker-0")
    leases.cut("worker-0")
    assert leases.seconds_left("worker-0") == 0
    assert leases.renew("worker-0") == 1


def test_a_generation_that_has_not_begun_is_nobodys(leases: Leases) -> None:
    assert "has not begun" in str(leases.refusal("worker-0", 1))
