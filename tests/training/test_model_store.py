"""A model that a callback saves reaches the disk as everything else does, before it gets its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.test_store import calls

__all__ = ["calls"]
pytestmark = pytest.mark.slow  # Keras is imported


class Model:
    def save(self, path: Path) -> None:
        path.write_text("all of it")

    save_weights = save


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_a_model_is_on_the_disk_before_it_gets_its_name(
    tmp_path: Path, calls: list[tuple[str, str]], name: str
) -> None:
    keras: Any = pytest.importorskip("muster.training.keras")
    calls.clear()
    keras.save_atomically(Model(), tmp_path / "models" / name)
    assert [what for what, _ in calls] == ["sync", "replace", "sync"]
    assert [name for _, name in calls[1:]] == [name, "models"]
