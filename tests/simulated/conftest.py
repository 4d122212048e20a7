"""Fixtures of a simulated event loop, and of a run's whole execution on it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from muster.checks.planning import member_names
from muster.events.observers import Observers
from muster.job import Job, Script
from muster.run import execution
from muster.run.execution import Execution
from muster.run.request import CheckedRun
from muster.strategies import get_strategy
from muster.testing import ScriptedPlatform, SimulatedLoop


@pytest.fixture(autouse=True)
def nothing_is_left_running(ends_its_guards: None) -> None:
    """Fail tests of this folder that leave a guard or a login running."""


@pytest.fixture
def loop() -> Iterator[SimulatedLoop]:
    loop = SimulatedLoop()
    yield loop
    loop.close()


@pytest.fixture
def checked() -> CheckedRun:
    job = Job(Script("file", "train.py"), 2, python="python", cwd="/", name="job")
    strategy = get_strategy("processes")
    return CheckedRun(job, strategy, ScriptedPlatform(), members=member_names(job, strategy))


@pytest.fixture
def made(loop: SimulatedLoop, monkeypatch: pytest.MonkeyPatch) -> Execution:
    monkeypatch.setattr(execution, "background_loop", lambda: loop)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda work, loop: loop.create_task(work))
    return Execution(Observers([]))
