"""Two ranks that learned handwritten digits, tested on a third of them."""

import json
from pathlib import Path

import pytest

from tests.training.processes import run_forking

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "digits_program.py"


@pytest.fixture(scope="module")
def accuracies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    folder = tmp_path_factory.mktemp("digits")
    run_forking(PROGRAM, folder)
    found: dict[str, float] = json.loads((folder / "accuracies.json").read_text())
    return found


def test_what_memory_is_for(accuracies: dict[str, float]) -> None:
    assert accuracies["1 bit"] - accuracies["1 bit, no memory"] > 1
    assert accuracies["top-k"] - accuracies["top-k, no memory"] > 1


def test_one_bit_learns_almost_what_dense_does(accuracies: dict[str, float]) -> None:
    # The benchmarks say how much exactly; rounding, and with it these numbers, differs from machine to machine.
    assert accuracies["dense"] > 94
    assert accuracies["dense"] - accuracies["1 bit"] < 1.5
