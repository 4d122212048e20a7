"""The examples in docstrings are run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import muster
import pytest

ROOT = Path(muster.__file__).parent
WITH_EXAMPLES = [
    ".".join(["muster", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(".__init__")
    for path in sorted(ROOT.rglob("*.py"))
    if ">>> " in path.read_text()
]


SLOW = {  # TensorFlow
    "muster.board.tensorboard",
    "muster.training.checkpoint",
    "muster.training.communication",
    "muster.training.communication.scheme",
    "muster.training.partition",
}


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in WITH_EXAMPLES]
)
def test_examples(module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = doctest.testmod(import_module(module))
    assert outcome.attempted > 0
    assert outcome.failed == 0
