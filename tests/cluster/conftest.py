"""Fixtures that all tests of this folder share."""

from __future__ import annotations

import pytest
from muster.run import orchestrator


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_temporary_folder(leaves_no_folders: None) -> None:
    """Fail tests of this folder that leave a folder of Muster's behind."""


@pytest.fixture(autouse=True)
def agents_may_take_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give agents longer for their stacks: whether a busy machine lets them answer in two seconds is no test's."""
    monkeypatch.setattr(orchestrator, "STACKS_SECONDS", 10.0)
