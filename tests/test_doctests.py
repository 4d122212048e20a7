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


SLOW = {"muster.board.tensorboard", "muster.training.checkpoint"}  # TensorFlow


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in WITH_EXAMPLES]
)
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0
