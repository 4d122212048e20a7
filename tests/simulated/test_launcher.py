"""Launchers that a worker runs, and the server of ranks that agents start, in simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from muster.errors import LauncherFailed, StartTimeout, WorkerLost, WorkerPreempted
from muster.job import Plan
from muster.strategies.horovod import Horovod
from muster.strategies.mpi import MPI
from muster.testing import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    with Scene(strategy=Horovod(launcher="agents")) as scene:
        yield scene


def test_agents_start_the_ranks_and_the_first_worker_runs_the_server_until_they_have_ended(scene: Scene) -> None:
    outcome = scene.play()
    assert outcome.error is None
    ordered = outcome.ordered("worker-0")
    assert ordered.index("launch") < ordered.index("start")
    assert "launch" not in outcome.ordered("worker-1")
    assert ordered.index("stop_launcher") > ordered.index("release")
    assert not scene.workers["worker-0"].runs_launcher
    assert scene.orchestrator is not None
    assert (scene.orchestrator.facts.run_dir / "logs" / "launcher.log").read_text() == "ready\n"


def test_ranks_are_stopped_before_their_server(scene: Scene) -> None:
    scene.at(5, scene.stop)
    ordered = scene.play().ordered("worker-0")
    assert ordered.index("stop") < ordered.index("stop_launcher") < ordered.index("end")


@pytest.mark.parametrize(("code", "signal"), [(1, None), (0, None), (0, 9)])
def test_a_server_that_ends_before_them_fails_the_run(scene: Scene, code: int, signal: int | None) -> None:
    scene.at(5, lambda: scene.workers["worker-0"].end_launcher(code, signal=signal))
    error = scene.play().error
    assert isinstance(error, LauncherFailed)
    assert "rendezvous on worker-0 itself failed" in error.message
    assert "ready" in str(error.details)


def test_a_server_that_never_listens_is_named(scene: Scene) -> None:
    scene.workers["worker-0"].behaviour.listens_after = None
    scene.workers["worker-0"].behaviour.runs_for = None
    error = scene.play().error
    assert isinstance(error, StartTimeout)
    assert error.worker == "worker-0"


def test_a_worker_that_is_lost_with_it_is_the_cause(scene: Scene) -> None:
    scene.at(5, scene.workers["worker-0"].hang_up)
    error = scene.play().error
    assert isinstance(error, WorkerLost)
    assert error.worker == "worker-0"


def test_one_that_does_not_end_is_killed(scene: Scene) -> None:
    scene.workers["worker-0"].behaviour.deaf_to = frozenset({"stop_launcher"})
    outcome = scene.play()
    assert outcome.error is None
    graces = [fields["grace"] for _, kind, fields in outcome.orders if kind == "stop_launcher"]
    assert graces[0] > 0
    assert graces[1:] == [0]


def test_where_a_worker_has_no_sshd_the_launcher_that_was_begun_is_dropped_and_it_is_said() -> None:
    with Scene(strategy="horovod") as scene:
        behaviour = scene.workers["worker-1"].behaviour
        behaviour.hello = {"ssh_port": None, "host_key": None, "no_ssh": "it has no sshd"}
        outcome = scene.play()
        assert outcome.error is None
        assert not scene.launcher.is_running
        (note,) = [event.data["text"] for event in outcome.events if event.kind == "note"]
        assert "nobody can log in to worker-1 (it has no sshd)" in note
        assert "start" in outcome.ordered("worker-1")


def test_a_launcher_that_goes_with_its_agent_is_not_the_cause(scene: Scene) -> None:
    agent = scene.workers["worker-0"]
    scene.at(5, agent.exit, rank=0, signal=15, reason="stopped")
    scene.at(5.99, lambda: agent.end_launcher(signal=9))
    scene.at(6, agent.hang_up)
    outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.worker == "worker-0"


@pytest.mark.parametrize(("has_ended", "leaves"), [(False, 7), (True, 7), (True, 5.25)])
def test_a_launcher_that_loses_a_worker_which_is_taken_away_is_not_the_cause(
    scene: Scene, has_ended: bool, leaves: float
) -> None:
    """Not even where the worker's own ranks have come to their end meanwhile."""
    scene.at(5, lambda: scene.workers["worker-1"].say("preempted", seconds=20.0))
    if has_ended:
        scene.at(5.2, scene.workers["worker-1"].exit, rank=1)
    scene.at(5.3, lambda: scene.workers["worker-0"].end_launcher(255))
    scene.at(leaves, scene.workers["worker-1"].hang_up)
    outcome = scene.play()
    assert isinstance(outcome.error, WorkerPreempted)
    assert outcome.error.worker == "worker-1"


@dataclass(frozen=True)
class Unplaced(MPI):
    """Leaves it to its launcher how many ranks there are."""

    def plan(self, *args: Any) -> Plan:
        return replace(super().plan(*args), ranks={})


def test_nothing_trains_before_a_launcher_has_started_a_process() -> None:
    with Scene(strategy=Unplaced()) as scene:
        scene.at(20, scene.stop)
        phases = {
            event.data["phase"]: event.data["launcher"] for event in scene.play().events if event.kind == "run_phase"
        }
        assert phases == {"launching": None, "connecting": None, "starting": "mpiexec", "ending": None}
