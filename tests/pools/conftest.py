"""An endpoint that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.runtime.background import call_in_background

from tests.listening import Listening


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path)
    yield made
    call_in_background(made.session.close)
