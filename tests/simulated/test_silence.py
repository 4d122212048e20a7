"""Agents that fall silent although their connections stand: they are told of, at no cost to those that report."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from muster.dashboard.fold import fold
from muster.dashboard.run import RunView
from muster.errors import RunStalled
from muster.job import Limits
from muster.pools import endpoint
from muster.testing import Scene

PAUSED = "Its container is paused."
FROM, TO = 20, 26  # seconds after an agent's last word in which it is told of


@pytest.fixture
def scene() -> Any:
    with Scene() as scene:
        for worker in scene.workers.values():
            worker.behaviour.runs_for = None
        scene.start()
        scene.advance(1)
        yield scene


def silences(scene: Scene) -> list[dict[str, Any]]:
    return [{"worker": event.worker, **event.data} for event in scene.events if event.kind == "silence"]


def said(scene: Scene) -> list[str]:
    view = RunView(clock=lambda: scene.loop.wall_time())
    for event in scene.events:
        fold(view, event)
    return view.silences


def freeze(scene: Scene, name: str) -> None:
    scene.workers[name].behaviour.deaf_to = frozenset(["ping"])


def thaw(scene: Scene, name: str) -> None:
    scene.workers[name].behaviour.deaf_to = frozenset()
    scene.do(scene.workers[name].say, "usage", cpu=0.1, memory=1)


def test_a_silent_agent_is_told_of_until_it_answers(scene: Scene) -> None:
    freeze(scene, "worker-1")
    scene.advance(FROM - 1)
    assert not said(scene)
    scene.advance(TO - FROM + 1)
    (text,) = said(scene)
    assert text.startswith("worker-1 has not answered for 2")
    scene.platform.waits("worker-1", PAUSED)
    scene.advance(10)
    (text,) = said(scene)
    assert text.startswith("worker-1 has not answered for 3")
    assert text.endswith(f" s. {PAUSED}")
    thaw(scene, "worker-1")
    scene.advance(1.1)
    assert not said(scene)
    assert len(silences(scene)) == 3, "it is told once, with the reason, and at the end"
    assert not scene.has_ended


def test_agents_that_report_are_asked_nothing_and_idle_ones_rarely(scene: Scene) -> None:
    for second in range(100):
        scene.loop.call_later(second, partial(scene.workers["worker-0"].say, "usage", cpu=0.1, memory=1))
    scene.advance(100)
    asked = {name: worker.order_types().count("ping") for name, worker in scene.workers.items()}
    assert asked["worker-0"] == 1, "the question for its clock"
    assert 4 <= asked["worker-1"] <= 1 + 100 / 10
    assert not silences(scene)


def test_a_session_that_was_suspended_blames_nobody(scene: Scene) -> None:
    scene.advance(4)
    scene.loop.pass_time(3600)
    scene.advance(60)
    assert not silences(scene)
    freeze(scene, "worker-0")
    scene.advance(8)
    scene.loop.pass_time(3600)
    scene.advance(1)
    assert not silences(scene)
    scene.advance(TO)
    (told,) = silences(scene)
    assert scene.loop.wall_time() - told["since"] < 2 * TO, "the hour is not counted"


def test_many_agents_are_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REPORTS_PER_SECOND", 0.1)  # two agents are asked to report every 20 s, as 10,000 are
    with Scene() as scene:
        scene.start()
        freeze(scene, "worker-1")
        scene.workers["worker-0"].behaviour.runs_for = scene.workers["worker-1"].behaviour.runs_for = None
        scene.advance(79)
        assert not silences(scene)
        assert [worker.order_types().count("ping") for worker in scene.workers.values()] == [2, 2]
        scene.advance(25)
        assert [told["worker"] for told in silences(scene)] == ["worker-1"]


def test_a_cut_agent_is_told_of_before_its_lease_ends() -> None:
    with Scene() as scene:
        scene.platform.lease_seconds = 60.0
        for worker in scene.workers.values():
            worker.behaviour.runs_for = None
        scene.start()
        scene.advance(5)
        scene.do(scene.workers["worker-1"].cut)
        scene.advance(TO)
        (text,) = said(scene)
        assert text.startswith("worker-1 has not answered for")
        assert text.endswith("Its connection has broken.")
        scene.do(scene.workers["worker-1"].dial)
        scene.advance(1.1)
        assert not said(scene)


def test_a_suspended_process_is_told_of_until_it_goes_on_or_ends(scene: Scene) -> None:
    worker = scene.workers["worker-1"]
    scene.do(worker.say, "suspended", rank=1, is_suspended=True)
    scene.advance(3)
    assert said(scene) == ["worker-1 (rank 1) is suspended, by SIGSTOP or a debugger, for 3.0 s."]
    scene.do(worker.say, "suspended", rank=1, is_suspended=False)
    scene.advance(0.1)
    assert not said(scene)
    scene.do(worker.say, "suspended", rank=1, is_suspended=True)
    scene.do(worker.exit, rank=1)
    scene.advance(0.1)
    assert not said(scene)


def test_a_run_that_stalls_for_a_silent_agent_says_why_it_is_silent() -> None:
    with Scene(limits=Limits(stall=40)) as scene:
        for worker in scene.workers.values():
            worker.behaviour.runs_for = None
        scene.start()
        scene.advance(1)
        scene.workers["worker-1"].behaviour.deaf_to = frozenset(["ping", "stacks"])
        for second in range(30):
            scene.loop.call_later(second, partial(scene.workers["worker-0"].report, "stage", stage="at work", rank=0))
        scene.platform.waits("worker-1", PAUSED)
        error = scene.finish().error
    assert isinstance(error, RunStalled)
    assert f"Its agent does not answer. {PAUSED}" in str(error)
