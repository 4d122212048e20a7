"""Fixtures of a simulated event loop, and of a run's whole execution on it."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.checks.planning import member_names
from muster.events.observers import Observers
from muster.job import Job, Script
from muster.run import execution
from muster.run.checked import CheckedRun
from muster.run.execution import Execution
from muster.strategies import get_strategy
from muster.testing import ScriptedPlatform, SimulatedLoop


@pytest.fixture(autouse=True)
def nothing_is_left_running(ends_its_guards: None) -> None:
    """Fail tests of this folder that leave a guard or a login running."""


@pytest.fixture(scope="session")
def memory() -> Iterator[Path]:
    """A folder in memory, if the machine has one: these tests make and remove thousands of files."""
    shared = "/dev/shm"
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def homes(memory: Path) -> Iterator[Path]:
    return (memory / f"home{number}" for number in itertools.count())


@pytest.fixture(scope="session")
def folders(memory: Path) -> Iterator[Path]:
    return (memory / str(number) for number in itertools.count())


@pytest.fixture
def tmp_path(folders: Iterator[Path]) -> Path:
    folder = next(folders)
    folder.mkdir(0o700)
    return folder


@pytest.fixture(autouse=True)
def scratch_in_memory(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(memory))


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
