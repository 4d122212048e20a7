"""Horovod's tests both ways: ``pytest --horovod-by-agents -m horovod`` has agents start the ranks, not horovodrun.

A test is marked ``horovod`` if it starts Horovod's ranks and leaves open what starts them: horovodrun does, then. One
without the mark fails, and so does one with it whose ranks start in the same way with the flag, or never. Those that
``make elsewhere`` and ``make matrix`` run by themselves need no mark, but may have it: faults and recoveries on other
platforms do. Among the former is a training of each strategy on each platform, Horovod's both ways.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.records.runs import Run
from muster.strategies import STRATEGIES
from muster.strategies.horovod import AGENTS, HOROVODRUN

FLAG = "--horovod-by-agents"
RUN_APART = ("elsewhere", "installation")
VARIABLE = "TESTS_HOROVOD_BY_AGENTS"  # asks the same of sessions in processes of their own (sitecustomize.py)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    parser.addoption(FLAG, action="store_true", help="agents start Horovod's ranks in tests that leave it open")


@pytest.fixture(autouse=True)
def horovod_as_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the strategy its other default where that is asked for."""
    if request.config.getoption(FLAG):
        monkeypatch.setitem(STRATEGIES, "horovod", "horovod_by_agents:HorovodByAgents")
        monkeypatch.setenv(VARIABLE, "1")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test, and fail it if its mark and what has started its ranks do not fit."""
    since, home = time.time(), os.environ["MUSTER_HOME"]
    result = yield
    started_by = launchers_left_open(Path(os.environ.get("MUSTER_HOME", home)), since)  # some undo what was set
    is_marked = item.get_closest_marker("horovod") is not None
    if item.config.getoption(FLAG):
        assert not is_marked or started_by == {AGENTS}, f"agents were to start the ranks: {started_by or 'nobody'}"
    elif HOROVODRUN in started_by and not is_marked and not any(map(item.get_closest_marker, RUN_APART)):
        pytest.fail("Mark it horovod, so that agents start its ranks, too; or say launcher=, and why it is one.")
    elif is_marked and not started_by:
        pytest.fail("It is marked horovod, and no run of it leaves open what starts Horovod's ranks.")
    return result


def launchers_left_open(home: Path, since: float) -> set[str]:
    """Return what has started the ranks of Horovod's runs since a time that do not say what should."""
    found = set()
    for path in home.glob("runs/*/plan.json"):
        if not path.is_file() or path.stat().st_mtime < since:
            continue
        run = Run(path.parent)
        jobs = [event.data["job"] for event in run.events() if event.kind == "run_requested"]
        if jobs and jobs[0].get("strategy") == "horovod" and "launcher" not in jobs[0].get("options", {}):
            launcher = (run.plan or {}).get("launcher")
            found |= {HOROVODRUN if launcher["starts_ranks"] else AGENTS} if launcher else set()
    return found
