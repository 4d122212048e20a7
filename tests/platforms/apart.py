"""Workers on this machine that do not even see the working directory of the session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from muster.job import WorkerSpec

from tests.platforms.isolated import Isolated, has_namespaces


class Apart(Isolated):
    """The same, and what is in one more folder cannot be seen either.

    Args:
        hides: the folder.
        cache: the folder in which workers may keep files for later runs; None for none.
    """

    def __init__(self, hides: Path, cache: Path | None = None) -> None:
        super().__init__()
        self._hides = hides
        self._cache = cache

    def _hidden(self, spec: WorkerSpec) -> tuple[str, ...]:
        return (*super()._hidden(spec), str(self._hides))

    def _config(self, *arguments: Any) -> dict[str, Any]:
        config = super()._config(*arguments)
        return {**config, "cache": {"folder": str(self._cache), "most": 1 << 24}} if self._cache else config


def apart(hides: Path, cache: Path | None = None) -> Apart:
    """Such a platform; skips the test where there can be none."""
    if not has_namespaces():
        pytest.skip("only root can give workers a view of the files of their own")
    return Apart(hides, cache)
