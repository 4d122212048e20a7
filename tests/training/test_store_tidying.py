"""Tidying up raises nothing once a checkpoint is published, also where a folder cannot even be renamed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from muster.training.store import Store

from tests.training.test_store import save


def test_an_old_checkpoint_that_cannot_be_renamed_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = os.rename

    def busy(before: Path, after: Path) -> None:
        if str(after).endswith(".old"):
            raise OSError(errno.EBUSY, "busy")
        rename(before, after)

    store = Store(tmp_path / "checkpoints", keep=1)
    save(store, 1)
    monkeypatch.setattr(os, "rename", busy)
    save(store, 2)
    assert store.newest() == 2
