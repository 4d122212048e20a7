"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import muster
import pytest

ROOT = Path(muster.__file__).parent
WITH_EXAMPLES = [
    ".".join(["muster", *path.relative_to(ROOT).with_suffix("").parts])
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text() and path.name != "__init__.py"
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples(module: str) -> None:
    outcome = doctest.testmod(import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0
