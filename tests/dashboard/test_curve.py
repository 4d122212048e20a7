"""The bounded history of a metric."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from muster.dashboard.curve import Curve, Point


def filled(count: int, limit: int = 600) -> Curve:
    curve = Curve(limit)
    for number in range(count):
        curve.add((0,), Point(float(number), number, float(number)))
    return curve


def test_short_histories_are_kept_whole() -> None:
    assert [point.value for point in filled(5).points] == [0, 1, 2, 3, 4]


@given(st.integers(1, 5000), st.integers(2, 100))
def test_long_ones_are_thinned_out_evenly(count: int, limit: int) -> None:
    values = [point.value for point in filled(count, limit).points]

    assert len(values) <= limit
    assert values[0] == 0
    assert values[-1] == count - 1
    gaps = {after - before for before, after in zip(values[:-1], values[1:-1], strict=False)}
    assert len(gaps) <= 1


def test_a_lower_source_takes_over_and_a_higher_one_is_ignored() -> None:
    curve = Curve()
    curve.add((2,), Point(0, 0, 20.0))
    curve.add((1,), Point(0, 0, 10.0))
    curve.add((2,), Point(1, 1, 21.0))
    curve.add((1,), Point(1, 1, 11.0))

    assert [point.value for point in curve.points] == [10, 11]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(2, 20), st.integers(1, 9))
def test_a_curve_never_goes_back_and_who_is_told_of_its_changes_has_all_of_it(
    steps: list[int], limit: int, every: int
) -> None:
    curve, seen = Curve(limit), (0, 0)
    told: list[Point] = []
    for number, step in enumerate(steps):
        curve.add((0,), Point(number, step, float(step)))
        if number % every == 0 or number == len(steps) - 1:
            if curve.mark[0] != seen[0]:
                told, seen = [], (curve.mark[0], 0)
            told += curve.since(seen)
            seen = curve.mark

    kept = [point.step or 0 for point in curve.points]
    assert kept == sorted(kept)
    assert kept[-1] == steps[-1]
    assert len(kept) <= limit + 1
    assert set(curve.points) <= set(told)
