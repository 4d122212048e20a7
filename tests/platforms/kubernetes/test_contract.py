"""The contract of every platform on a real Kubernetes, with smaller workers, and more patience for each of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent.places import symbol
from muster.errors import LaunchRefused
from muster.job import Resources, WorkerSpec
from muster.platforms import get_platform
from muster.platforms.base import Platform
from muster.platforms.kubernetes import platform as kubernetes

from tests.platforms import test_contract as contract
from tests.platforms.kubernetes.space import Space
from tests.platforms.test_contract import *  # noqa: F403  its tests take the fixtures below
from tests.support import Run, StubSession, eventually, shell

del test_all_or_nothing  # noqa: F821  here a log cannot be in the way; that of the name below is
del test_can_launch_again_after_closing  # noqa: F821  20 s, which a node takes for pods that are only being made

PATIENCE = 60.0  # seconds: pods take longer than processes here
PLACES = {"scratch": Path(symbol("scratch")), "cwd": symbol("scratch"), "resources": Resources(cpu=0.1, memory=0.2)}


class PodRun(Run):
    """A run whose workers are small, and have folders of their own."""

    def spec(self, name: str = "worker-0", **changes: Any) -> WorkerSpec:
        return super().spec(name, **{**PLACES, **changes})


class PatientSession(StubSession):
    """A stand-in for a session that waits longer."""

    def wait_for(self, kind: str, worker: str | None = None, count: int = 1, timeout: float = PATIENCE) -> Any:
        return super().wait_for(kind, worker, count, timeout)


@pytest.fixture
def run(run: Run) -> Run:
    return PodRun(run.folder, run.id, run.scratch)


@pytest.fixture
def stub_session() -> Iterator[StubSession]:
    session = PatientSession()
    yield session
    session.close()


@pytest.fixture  # type: ignore[no-redef]  # in place of the one that has the other platforms
def platform(space: Space, run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    monkeypatch.setattr(contract, "eventually", functools.partial(eventually, timeout=PATIENCE))
    platform = get_platform("kubernetes", **space.options, tunnel=False)
    yield platform
    monkeypatch.setattr(kubernetes, "CLOSE_SECONDS", 1.0)  # a node takes up to 15 s for pods that are only being made
    platform.close()


def test_a_name_that_is_taken_refuses_the_whole_submission_which_can_be_made_again(
    platform: Platform, run: Run, space: Space
) -> None:
    specs = [run.spec(f"worker-{number}", process=shell("sleep 600")) for number in range(2)]
    path = f"/api/v1/namespaces/{space.name}/pods"
    name = platform.submit([specs[1]], "before")[0].partition("/")[2]
    with pytest.raises(LaunchRefused, match="worker-1 was refused: there is something of that name already"):
        platform.submit(specs, run.id)
    assert [pod["metadata"]["name"] for pod in space.cluster.pods(space.name)] == [name]
    space.cluster.client.delete(f"{path}/{name}", gracePeriodSeconds="0")
    assert len(platform.submit(specs, run.id)) == 2
