"""The end of a run: who is stopped when, and what happens where somebody does not want to end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from muster.errors import LauncherFailed, LaunchRefused, PlatformError, RunStopped
from muster.job import Process, Status
from muster.pools.calls import CLOSE_SECONDS
from muster.pools.pool import GONE_SECONDS
from muster.run.ending import HANG_UP_SECONDS, KILL_SECONDS, STOP_GRACE
from muster.run.launcher import LauncherProcess
from muster.run.request import AT_ONCE
from muster.run.tasks import Tasks
from muster.testing import Outcome, Program, Scene


def sent(outcome: Outcome, kinds: set[str]) -> list[tuple[str, str]]:
    return [(worker, kind) for worker, kind, _ in outcome.orders if kind in kinds]


def test_those_that_decide_are_stopped_first_and_agents_last() -> None:
    with Scene(2, n_ps=1, strategy="parameter_server") as scene:
        scene.at(3, scene.stop)
        outcome = scene.play()
    order = [name for name, _ in sent(outcome, {"stop"})]
    assert order == ["worker-0", "worker-1", "ps-0"]
    assert sorted((name, kind) for name, kind, _ in outcome.orders[-3:]) == [
        ("ps-0", "end"),
        ("worker-0", "end"),
        ("worker-1", "end"),
    ]


# What processes and agents do when they are told to end, and how long the end takes.
ENDS = [
    ({}, 0.2),
    ({"stops_after": 1.0}, 1.1),
    ({"stops_after": None}, STOP_GRACE + 0.1),  # they are killed
    ({"stops_after": None, "deaf_to": frozenset(["stop"])}, STOP_GRACE + KILL_SECONDS + 0.1),
    ({"leaves_after": None}, 0.1 + HANG_UP_SECONDS),
    ({"deaf_to": frozenset(["stop", "end"])}, STOP_GRACE + KILL_SECONDS + HANG_UP_SECONDS),
]


@pytest.mark.parametrize(("behaviour", "seconds"), ENDS)
def test_how_long_the_end_takes(behaviour: dict[str, object], seconds: float) -> None:
    with Scene() as scene:
        vars(scene.workers["worker-1"].behaviour).update(behaviour)
        scene.at(3, scene.stop)
        outcome = scene.play()
    assert isinstance(outcome.error, RunStopped)
    assert outcome.seconds == pytest.approx(3 + seconds, abs=0.05)


def test_only_those_that_have_not_ended_are_told_to_stop_at_once() -> None:
    with Scene() as scene:
        scene.workers["worker-1"].behaviour.stops_after = None
        scene.at(3, scene.stop)
        outcome = scene.play()
    assert sent(outcome, {"stop"}) == [("worker-0", "stop"), ("worker-1", "stop"), ("worker-1", "stop")]


def test_a_second_stop_leaves_no_time() -> None:
    with Scene() as scene:
        scene.workers["worker-1"].behaviour.stops_after = None
        scene.at(3, scene.stop)
        scene.at(3.5, scene.stop, AT_ONCE)
        outcome = scene.play()
    assert outcome.seconds == pytest.approx(3.6, abs=0.05)


def test_nobody_waits_for_the_processes_of_a_lost_agent() -> None:
    with Scene() as scene:
        scene.at(3, scene.workers["worker-1"].hang_up)
        scene.at(3.1, scene.stop)
        outcome = scene.play()
    assert outcome.ordered("worker-1")[-1] == "start"
    assert outcome.seconds == pytest.approx(3.4, abs=0.2)


@pytest.mark.parametrize("owns_platform", [True, False])
@pytest.mark.parametrize("method", ["close", "stop", "poll"])
@pytest.mark.parametrize("error", [None, PlatformError("it does not want to"), KeyError("a defect of its own")])
def test_a_platform_that_does_not_let_go(owns_platform: bool, method: str, error: Exception | None) -> None:
    with Scene(owns_platform=owns_platform) as scene:
        if error:
            scene.platform.errors[method] = error
        else:
            scene.platform.seconds[method] = float("inf")
        scene.at(3, scene.stop)
        outcome = scene.play()
        assert all(worker.status.is_final for worker in scene.orchestrator.state.workers.values())  # type: ignore[union-attr]
    assert isinstance(outcome.error, RunStopped), "the error that ended the run is the one that counts"
    assert outcome.seconds < 3.5 + CLOSE_SECONDS + GONE_SECONDS
    is_used = method == ("close" if owns_platform else "stop")
    assert ("note" in outcome.kinds()) >= is_used


def test_a_platform_of_somebody_elses_goes_on() -> None:
    with Scene(owns_platform=False) as scene:
        assert scene.play().error is None
        assert "close" not in [method for method, _ in scene.platform.calls]
        assert {worker.status for worker in scene.platform.list()} == {Status.STOPPED}


def test_workers_that_do_not_go_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(owns_platform=False) as scene:
        monkeypatch.setattr(scene.platform, "_stop", lambda names: None)
        scene.at(3, scene.stop)
        outcome = scene.play()
    assert outcome.seconds == pytest.approx(3.2 + GONE_SECONDS, abs=0.2)


def launched(scene: Scene) -> None:
    for rank, worker in enumerate(scene.workers.values()):
        scene.at(3, worker.start, rank)


def test_a_launcher_that_ignores_sigterm_is_killed() -> None:
    with Scene(strategy="horovod") as scene:
        launched(scene)
        scene.launcher = Program(ignores_sigterm=True)
        scene.at(5, scene.stop)
        outcome = scene.play()
        assert not scene.launcher.is_running
    assert outcome.seconds == pytest.approx(5 + STOP_GRACE + 0.6, abs=0.6)


def test_a_launcher_that_cannot_be_started() -> None:
    with Scene(strategy="horovod") as scene:

        def refuse(argv: tuple[str, ...]) -> Program:
            raise PermissionError(13, "Permission denied")

        scene.loop.programs = refuse
        outcome = scene.play()
    assert isinstance(outcome.error, LaunchRefused)
    assert "cannot be started" in str(outcome.error)


def test_ranks_that_are_told_of_after_their_launcher_has_ended_have_been_started() -> None:
    with Scene(strategy="horovod") as scene:
        for rank, worker in enumerate(scene.workers.values()):
            scene.at(3.5, worker.start, rank)
            scene.at(3.6, worker.exit, 0, rank)
        scene.at(3, scene.launcher.exit, 0)
        outcome = scene.play()
    assert outcome.error is None


@pytest.mark.parametrize("code", [1, -9, 0])
def test_a_launcher_that_ends_before_all_ranks_run(code: int) -> None:
    with Scene(strategy="horovod") as scene:
        scene.at(2, scene.launcher.exit, code)
        outcome = scene.play()
    assert isinstance(outcome.error, LauncherFailed)


@pytest.mark.parametrize(
    ("takes", "stops", "seconds", "noted"),
    [(5.0, None, 18.3, False), (1000.0, None, 313.3, True), (1000.0, AT_ONCE, 20.3, True)],
)
def test_what_workers_have_written_is_waited_for_but_not_against_an_urgent_stop(
    takes: float, stops: str | None, seconds: float, noted: bool
) -> None:
    with Scene() as scene:

        async def collect() -> None:
            await asyncio.sleep(takes)

        scene.at(3, lambda: setattr(scene.orchestrator._ending, "collect", collect))  # type: ignore[union-attr]
        if stops:
            scene.at(20, scene.stop, stops)
        outcome = scene.play()
    assert outcome.error is None, "it had succeeded before"
    assert outcome.seconds == pytest.approx(seconds, abs=5)
    assert ("note" in outcome.kinds()) == noted


def test_a_defect_while_results_are_got_is_a_note_and_does_not_fail_the_run() -> None:
    async def collect() -> None:
        raise OverflowError("a defect")

    with Scene() as scene:
        scene.at(3, lambda: setattr(scene.orchestrator._ending, "collect", collect))  # type: ignore[union-attr]
        scene.at(4, scene.stop)
        outcome = scene.play()
    assert isinstance(outcome.error, RunStopped)
    assert [event.data["text"] for event in outcome.events if "Not all results" in event.data.get("text", "")] == [
        "Not all results of the workers could be got: a defect"
    ]


def test_a_launcher_that_has_just_ended_can_be_ended_all_the_same(tmp_path: Path) -> None:
    """Its end is known to the event loop a moment before it is to the run, whose own error would be covered."""

    async def end_it() -> None:
        tasks = Tasks(lambda: None)
        launcher = LauncherProcess(tmp_path / "log", lambda code: None, tasks)
        await launcher.start(Process(("true",), {}, "/"))
        assert launcher._ended is not None
        await launcher._ended
        launcher.returncode = None
        launcher.terminate(1)
        await launcher.kill()

    asyncio.run(end_it())
