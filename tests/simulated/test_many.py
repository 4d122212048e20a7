"""The work of the engine for a run grows no faster than the number of its workers, whatever becomes of them."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import muster
import pytest
from muster.checks.planning import member_names
from muster.events.observers import Observers
from muster.job import Limits, Worker
from muster.platforms.base import PollBackoff
from muster.records.journal import Journal
from muster.run import execution
from muster.run.attempts import RestartPolicy
from muster.run.checked import CheckedRun
from muster.run.execution import Execution
from muster.testing import Scene, ScriptedPlatform, ScriptedWorker, SimulatedLoop

from tests.simulated.executing import finish

PACKAGE = Path(muster.__file__).parent
PLAYED = ("testing", "agent")  # rooms of what a test plays, and not the engine
FOREIGN = "of others"
FEW, MANY = 8, 32
FREE = 90  # lines that a function may run beside those for its workers
SPREAD = 0.2  # seconds over which workers do the same
GATHERED = 0.05  # seconds in which the session takes what comes together, as its loop does
ALONE = 0.001  # seconds between two messages that come alone
AT = 12.0


def all_end_well(scene: Scene) -> None:
    """Every process ends by itself."""


def one_fails(scene: Scene) -> None:
    scene.at(AT, scene.workers["worker-1"].exit, 3, rank=1)


def all_fail(scene: Scene) -> None:
    for rank, worker in enumerate(scene.workers.values()):
        scene.at(AT, worker.exit, 3, rank=rank)


def all_are_lost(scene: Scene) -> None:
    for worker in scene.workers.values():
        scene.at(AT, worker.hang_up)


def all_raise(scene: Scene) -> None:
    for rank, worker in enumerate(scene.workers.values()):
        scene.at(AT, worker.raise_exception, rank=rank)


def is_stopped(scene: Scene) -> None:
    scene.at(AT, scene.stop)


def nobody_gets_a_place(scene: Scene) -> None:
    scene.platform.queued.update(scene.workers)
    scene.at(AT, scene.stop)


def all_are_cut_off_and_come_back(scene: Scene) -> None:
    for worker in scene.workers.values():
        scene.at(AT, worker.cut)
        scene.at(AT + 1, worker.dial)


def all_print_and_use_memory(scene: Scene) -> None:
    for worker in scene.workers.values():
        scene.at(AT, worker.say, "output", text="a line\n" * 10)
        scene.at(AT, worker.say, "usage", cpu=1.0, memory=1_000_000)


@pytest.mark.parametrize(
    "happens",
    [
        all_end_well,
        one_fails,
        all_fail,
        all_are_lost,
        all_are_cut_off_and_come_back,
        all_print_and_use_memory,
        all_raise,
        is_stopped,
        nobody_gets_a_place,
    ],
)
def test_four_times_the_workers_are_four_times_the_work(happens: Callable[[Scene], None], tmp_path: Path) -> None:
    few, many = (lines_run(count, happens, Journal(tmp_path / f"{count}.jsonl")) for count in (FEW, MANY))
    assert_linear(few, many)


def test_workers_that_say_hello_one_after_the_other_are_no_more_work_each_if_there_are_many(tmp_path: Path) -> None:
    few, many = (
        lines_run(count, all_end_well, Journal(tmp_path / f"{count}.jsonl"), one_by_one=True) for count in (FEW, MANY)
    )
    assert_linear(few, many)


@pytest.mark.parametrize("all_go", [False, True], ids=["one is lost", "all but one are lost"])
def test_another_attempt_of_four_times_the_workers_is_four_times_the_work(
    monkeypatch: pytest.MonkeyPatch, checked: CheckedRun, all_go: bool
) -> None:
    few, many = (lines_of_attempts(count, monkeypatch, checked, all_go) for count in (FEW, MANY))
    assert_linear(few, many)


def assert_linear(few: Counter[str], many: Counter[str]) -> None:
    ratio = MANY / FEW
    worst = {name: (few[name], count) for name, count in many.items() if count > 1.3 * ratio * few[name] + FREE}
    assert not worst
    assert sum(many.values()) < 1.2 * ratio * sum(few.values())


def lines_of_attempts(
    n_workers: int, monkeypatch: pytest.MonkeyPatch, checked: CheckedRun, all_go: bool
) -> Counter[str]:
    """Count the lines of two attempts, of which the first loses one worker, or all but the first."""
    loop, platform = SimulatedLoop(), ScriptedPlatform()
    monkeypatch.setattr(execution, "background_loop", lambda: loop)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: loop.create_task(work))
    job = replace(checked.job, n_workers=n_workers)
    members = member_names(job, checked.strategy)
    names = [name for name, _, _ in members]

    def goes(player: ScriptedWorker) -> Callable[[str, dict[str, Any]], None]:
        starts = iter([True])

        def on_order(kind: str, fields: dict[str, Any]) -> None:
            if kind == "start" and next(starts, False):
                loop.call_later(2, player.hang_up)

        return on_order

    for name in names:
        platform.player(name).behaviour.runs_for = 30
    for name in names[1:] if all_go else names[1:2]:
        platform.player(name).on_order = goes(platform.player(name))
    made = Execution(Observers([]))
    policy = RestartPolicy(1)
    with counted() as counts:
        made.begin(
            replace(checked, job=job, platform=platform, members=members, restart_policy=policy, limits=Limits(run=60))
        )
        result = finish(loop, made)
    loop.close()
    assert result.error is None
    assert "lost" in result.timings
    return counts


def test_very_many_workers_are_polled_less_often() -> None:
    def pause(n_workers: int) -> float:
        return PollBackoff(ScriptedPlatform()).seconds([Worker(str(n), f"worker-{n}") for n in range(n_workers)])

    assert pause(100) == ScriptedPlatform.poll_seconds[0]
    assert pause(10_000) == 5


def lines_run(
    n_workers: int, happens: Callable[[Scene], None], journal: Journal, one_by_one: bool = False
) -> Counter[str]:
    """Count the lines that each function of the engine runs for a run of so many workers.

    Their hellos come in a few moments, or ``one_by_one``.
    """
    with Scene(n_workers, limits=Limits(start=60, stall=500, run=500), observers=[journal]) as scene:
        for index, worker in enumerate(scene.workers.values()):
            later = GATHERED * round(SPREAD * index / n_workers / GATHERED)
            worker.behaviour.hello_after = 0.1 + (ALONE * index if one_by_one else later)
            worker.behaviour.runs_for = 20 + later
            worker.behaviour.stops_after = worker.behaviour.leaves_after = 0.1 + later / 10
            for step in range(1, 4):
                scene.at(5 + step / 20 + later, report, worker, index, step)  # too often for all to be journalled
        happens(scene)
        with counted() as counts:
            scene.play()
            journal.close()
    return counts


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the lines that each function of the engine runs; a loop's line counts for each turn."""
    counts: Counter[str] = Counter()
    counters: dict[CodeType, Callable[[FrameType, str, Any], Any] | None] = {}

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code not in counters:
            counters[frame.f_code] = counter_of(frame.f_code)
        return counters[frame.f_code]

    def counter_of(code: CodeType) -> Callable[[FrameType, str, Any], Any] | None:
        name = name_of(code)

        def count(frame: FrameType, event: str, arg: Any) -> Any:
            counts[name] += 1
            return count

        return None if name == FOREIGN else count

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield counts
    finally:
        sys.settrace(before)


def name_of(code: CodeType) -> str:
    """A function of the engine by its file and line, or ``FOREIGN``."""
    path = Path(code.co_filename)
    if not path.is_relative_to(PACKAGE) or path.relative_to(PACKAGE).parts[0] in PLAYED:
        return FOREIGN
    return f"{path.relative_to(PACKAGE)}: {code.co_name}, {code.co_firstlineno}"


def report(worker: Any, rank: int, step: int) -> None:
    """Have a rank tell of a step."""
    told = {"kind": "progress", "time": 0.0, "rank": rank, "step": step, "steps": 10, "metrics": {"loss": 1.0}}
    worker.say("report", report=told)
