"""Horovod whose ranks agents start, unless a test says otherwise: ``pytest --horovod-by-agents`` has it by the name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from muster.options.fields import option
from muster.strategies import STRATEGIES
from muster.strategies.horovod import Horovod

FLAG = "--horovod-by-agents"


@dataclass(frozen=True)
class HorovodByAgents(Horovod):
    """The strategy with another default."""

    launcher: str | None = option("agents", "What starts the ranks: horovodrun or agents", metavar="NAME")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    parser.addoption(FLAG, action="store_true", help="agents start Horovod's ranks in tests that leave it open")


@pytest.fixture(autouse=True)
def horovod_as_asked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the strategy its other default where that is asked for."""
    if request.config.getoption(FLAG):
        monkeypatch.setitem(STRATEGIES, "horovod", f"{__name__}:{HorovodByAgents.__name__}")
