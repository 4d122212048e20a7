"""Fixtures of the tests of pools: an endpoint that listens, and checks that nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.runtime.background import call_in_background

from tests.listening import Listening


@pytest.fixture(autouse=True)
def nothing_is_left_running(ends_its_guards: None) -> None:
    """Fail tests of this folder that leave a guard or a login running."""


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path)
    yield made
    call_in_background(made.session.close)


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_temporary_folder(leaves_no_folders: None) -> None:
    """Fail tests of this folder that leave a folder of Muster's behind."""
