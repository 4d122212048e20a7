"""Defects, of ours and of platforms: whatever raises, wherever it does, the run ends and says so."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from muster.errors import WorkerLost
from muster.job import Status, Worker
from muster.run.ending import Ending
from muster.run.milestones import Milestones
from muster.run.state import RunState
from muster.run.tasks import Tasks
from muster.run.watch import PlatformWatch
from muster.runtime.background import BlockingCalls
from muster.testing import Scene, ScriptedPlatform, SimulatedLoop


def raising(*_: Any, **__: Any) -> Any:
    raise KeyError("a defect")


@pytest.mark.parametrize("status", [Status.RUNNING, Status.FAILED])
def test_unknown_names_in_a_listing_hide_nothing(status: Status) -> None:
    with Scene() as scene:
        scene.platform.strangers = [Worker("7", "nobody", status)]
        scene.at(3, scene.platform.end, "worker-1", Status.FAILED, "its node is gone")
        scene.at(3, scene.workers["worker-1"].hang_up)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert "its node is gone" in str(outcome.error)


def test_a_listing_that_makes_no_sense_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with Scene() as scene:
        scene.platform.strangers = [None]
        scene.at(3, scene.workers["worker-1"].hang_up)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.worker == "worker-1"
    assert caplog.text.count("did not answer") == 1


@pytest.mark.parametrize("method", ["_poll", "_explain_lost", "_rest"])
def test_a_watch_that_dies_ends_the_run_with_its_traceback(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene() as scene:
        scene.at(3, monkeypatch.setattr, PlatformWatch, method, raising)
        outcome = scene.play()
    assert isinstance(outcome.error, KeyError)
    assert outcome.error.__traceback__ is not None
    assert outcome.seconds < 5
    assert outcome.ordered("worker-0")[-1] == "end"


def test_a_message_that_cannot_be_handled_ends_the_run_with_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunState, "_on_usage", raising)
    with Scene() as scene:
        scene.at(3, scene.workers["worker-1"].say, "usage", cpu=1.0, memory=5)
        outcome = scene.play()
    assert isinstance(outcome.error, KeyError)
    assert outcome.error.__traceback__ is not None
    assert outcome.ordered("worker-0")[-1] == "end"


def test_a_platform_that_launches_slowly_is_not_asked_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    with Scene() as scene:
        submit = scene.platform.submit

        def slowly(*args: Any) -> Any:
            scene.loop.sleep(30)
            return submit(*args)

        scene.platform.submit = slowly
        outcome = scene.play()
    assert outcome.error is None
    assert "did not answer" not in caplog.text


def test_a_defect_when_the_launcher_ends_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(strategy="horovod") as scene:
        monkeypatch.setattr(Milestones, "is_decided", raising)
        for rank, worker in enumerate(scene.workers.values()):
            scene.at(3, worker.start, rank)
        scene.at(4, scene.launcher.exit)
        outcome = scene.play()
    assert isinstance(outcome.error, KeyError)


def test_a_defect_in_a_callback_of_the_launcher_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene(strategy="horovod") as scene:
        monkeypatch.setattr(scene.launcher, "exit", scene.launcher.exit)
        scene.at(2, lambda: monkeypatch.setattr(scene.orchestrator, "plan", raising))  # it has no ranks
        scene.at(4, scene.launcher.exit)
        outcome = scene.play()
    assert isinstance(outcome.error, AttributeError)
    assert outcome.seconds < 6


@pytest.mark.parametrize(
    ("callback", "lease"), [("on_lost", 0.0), ("on_lost", 5.0), ("on_cut", 15.0), ("on_back", 15.0)]
)
def test_a_defect_where_connections_end_or_come_back_ends_the_run(
    callback: str, lease: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlatformWatch, callback, raising)
    platform = ScriptedPlatform()
    platform.lease_seconds = lease
    with Scene(platform=platform) as scene:
        player = scene.workers["worker-1"]
        player.behaviour.runs_for = 60
        scene.at(3, player.hang_up)
        if callback == "on_back":
            scene.at(4, player.dial)
        outcome = scene.play()
    assert isinstance(outcome.error, KeyError)


@pytest.mark.parametrize("method", ["stop_processes", "release"])
def test_a_defect_in_the_ending_is_told(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ending, method, raising)
    with Scene() as scene:
        outcome = scene.play()
    assert isinstance(outcome.error, KeyError)
    if method == "stop_processes":
        assert scene.platform.calls[-1][0] == "close"


@pytest.mark.parametrize("turns", range(5))
def test_a_watch_that_is_cancelled_ends_also_where_an_agent_hangs_up_in_that_moment(turns: int) -> None:
    with Scene() as scene:
        scene.start()
        scene.advance(3)
        assert scene.orchestrator is not None
        watch = scene.orchestrator.watch
        task = next(task for task in asyncio.all_tasks(scene.loop) if task.get_name() == "watch over the platform")

        async def both() -> None:
            watch.on_lost("worker-1")
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()

        scene.loop.run(both())
        scene.advance(0.01)  # long before the run ends for that
        assert task.done()


@pytest.mark.parametrize("turns", range(5))
def test_a_call_that_is_cancelled_ends_also_where_its_answer_comes_in_that_moment(turns: int) -> None:
    async def main() -> None:
        calls = BlockingCalls("test")
        task = asyncio.ensure_future(calls.call(loop.sleep, 1.0, seconds=5))
        await asyncio.sleep(1)
        for _ in range(turns):
            await asyncio.sleep(0)
        had_ended = task.done()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or had_ended

    loop = SimulatedLoop()
    loop.run(main(), limit=10)
    loop.close()


def test_a_task_that_does_not_want_to_end_is_told_again() -> None:
    async def stubborn() -> None:
        for _ in range(3):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1000)

    async def main() -> None:
        tasks = Tasks(lambda: None)
        tasks.start(stubborn(), "stubborn")
        await asyncio.sleep(1)
        await tasks.cancel()

    loop = SimulatedLoop()
    loop.run(main(), limit=10)
    loop.close()
