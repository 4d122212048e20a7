"""The pace at which a worker reports what it says again and again. No clocks are waited for."""

from __future__ import annotations

from typing import Any

import pytest
from muster.agent import kinds, pace, wire
from muster.agent.pace import Pace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(pace, "time", made)
    return made


def progress(step: int, epoch: int = 0, rank: int = 0, **metrics: float) -> wire.Progress:
    return wire.Progress(rank, step=step, epoch=epoch, metrics=metrics)


def test_a_worker_of_few_passes_all_progress_on(clock: Clock) -> None:
    sent: list[Any] = []
    told = Pace(sent.append)
    for step in range(3):
        told.progress(progress(step))
    assert [report.step for report in sent] == [0, 1, 2]


def test_one_of_many_tells_the_newest_of_each_rank_when_it_is_time(clock: Clock) -> None:
    sent: list[Any] = []
    told = Pace(sent.append)
    told.interval = 10.0
    for step in range(3):
        told.progress(progress(step, loss=step, accuracy=0.5) if step < 2 else progress(step, loss=2))
        told.progress(progress(step, rank=1))
        clock.now += 1
        told.tick()
    assert [(report.rank, report.step) for report in sent] == [(0, 0), (1, 0)]
    clock.now += 7
    told.tick()
    assert [(report.rank, report.step) for report in sent[2:]] == [(0, 2), (1, 2)]
    assert sent[2].metrics == {"loss": 2.0, "accuracy": 0.5}
    told.tick()
    assert len(sent) == 4


def test_the_last_word_on_an_epoch_is_told_and_so_is_what_is_held_before_an_end(clock: Clock) -> None:
    sent: list[Any] = []
    told = Pace(sent.append)
    told.interval = 10.0
    for epoch, step in ((1, 1), (1, 2), (2, 3)):
        told.progress(progress(step, epoch))
    assert [report.step for report in sent] == [1, 2]
    told.flush()
    told.flush()
    assert [report.step for report in sent] == [1, 2, 3]


def test_use_of_resources_is_told_only_where_it_is_another(clock: Clock) -> None:
    sent: list[Any] = []
    told = Pace(sent.append)
    for cpu, memory in ((0.5, 5 << 20), (0.5001, (5 << 20) + 1), (0.7, 5 << 20), (0.7, 9 << 20)):
        told.usage(wire.Usage(cpu, memory))
        clock.now += 1
    assert [(usage.cpu, usage.memory >> 20) for usage in sent] == [(0.5, 5), (0.7, 5), (0.7, 9)]
    told.interval = 10.0
    for second in range(20):
        told.usage(wire.Usage(float(second), 5 << 20))
        clock.now += 1
    assert len(sent) - 3 == 2


def test_a_process_that_runs_wild_is_told_of_at_a_pace_and_its_last_word_is_kept(clock: Clock) -> None:
    sent: list[Any] = []
    told = Pace(sent.append)
    for step in range(10 * pace.MOST_PER_SECOND):
        told.progress(progress(step, epoch=step, rank=step % 2, loss=step))
    assert len(sent) == pace.MOST_PER_SECOND
    clock.now += 1
    told.tick()
    assert [(report.step, report.metrics) for report in sent[-2:]] == [
        (step, {"loss": step}) for step in (10 * pace.MOST_PER_SECOND - 2, 10 * pace.MOST_PER_SECOND - 1)
    ]
    for rank in range(10 * pace.MOST_HELD):
        told.progress(progress(0, rank=rank))
    told.flush()
    assert len(sent) <= 2 + 2 * pace.MOST_PER_SECOND + pace.MOST_HELD


@pytest.mark.parametrize("reports", [3, 10 * pace.MOST_PER_SECOND])
def test_what_is_held_together_is_never_more_than_fits_into_one_report(clock: Clock, reports: int) -> None:
    sent: list[Any] = []
    told = Pace(sent.append)
    told.interval = 10.0
    for number in range(reports):
        metrics = {f"m{number}-{name}": 1.0 for name in range(kinds.MOST_METRICS - 1)}
        told.progress(wire.Progress(0, step=1, metrics=metrics))
    told.flush()
    assert all(len(report.metrics) <= kinds.MOST_METRICS for report in sent)
    assert f"m{reports - 1}-0" in sent[-1].metrics
    assert len(sent) == min(reports, pace.MOST_PER_SECOND + 1)
