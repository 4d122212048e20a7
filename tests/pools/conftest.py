"""An endpoint that listens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from listening import Listening
from muster.runtime.background import background_loop


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Listening]:
    made = Listening(tmp_path)
    yield made
    background_loop().call_soon_threadsafe(made.session.close)
