"""The ready scripts without a cluster: each alone, in one process. On clusters the demo and the notebooks run them."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.training.processes import REPOSITORY, alone

pytestmark = pytest.mark.slow

SCRIPTS = REPOSITORY / "worker_scripts"
FEW = ("--limit-train", "64", "--batch-size", "16")
ON_DIGITS = {
    "mnist_ps_tf1.py": ("--steps", "3"),
    "mnist_ps_tf1.py --sync": ("--steps", "3", "--checkpoint", "models/model.npz"),
    "mnist_ps_tf2.py": ("--steps", "3"),
    "mnist_horovod.py": ("--epochs", "1"),
    "mnist_multi_worker.py": ("--epochs", "1"),
}
CATS = "cats_vs_dogs_horovod.py"
ON_CATS = ("--drawn", "--epochs", "1", "--steps", "2", "--batch-size", "4")
FAILURES = sorted(f"failures/{path.name}" for path in (SCRIPTS / "failures").glob("*.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alone")


@pytest.fixture(scope="module")
def outputs(folder: Path) -> Iterator[dict[str, Future[str]]]:
    """Return what each script has printed; as many run at once as there are cores."""

    def run(command: str, *arguments: str) -> str:
        script, *options = command.split()
        return alone(SCRIPTS / script, *options, *arguments, cwd=folder, KERAS_HOME=str(folder))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        begun: dict[str, Future[str]] = {CATS: pool.submit(run, CATS, *ON_CATS)}
        begun |= {command: pool.submit(run, command, *options, *FEW) for command, options in ON_DIGITS.items()}
        begun |= {command: pool.submit(run, command) for command in FAILURES}
        yield begun


def printed_accuracy(output: str) -> float:
    (accuracy,) = re.findall(r"test accuracy ([01]\.\d{4})$", output, re.MULTILINE)
    return float(accuracy)


@pytest.mark.parametrize("command", ON_DIGITS)
def test_digits(command: str, outputs: dict[str, Future[str]]) -> None:
    output = outputs[command].result()
    assert "64 to train, 359 to test" in output
    assert 0 <= printed_accuracy(output) < 1


def test_cats_and_dogs(outputs: dict[str, Future[str]]) -> None:
    output = outputs[CATS].result()
    assert output.startswith("drawn cats and dogs (synthetic, not photographs): 3,200 to train, 400 to test")
    assert 0 <= printed_accuracy(output) <= 1


@pytest.mark.parametrize("command", FAILURES, ids=lambda command: Path(command).stem)
def test_what_fails_on_purpose_fails_in_rank_1_only(command: str, outputs: dict[str, Future[str]]) -> None:
    outputs[command].result()


def test_the_chief_saves_what_the_parameter_servers_hold(folder: Path, outputs: dict[str, Future[str]]) -> None:
    outputs["mnist_ps_tf1.py --sync"].result()
    with np.load(folder / "models" / "model.npz") as variables:
        assert [name.split("/", 1)[1] for name in variables.files] == [
            f"{layer}/{kind}" for layer in ("conv1", "conv2", "hidden", "logits") for kind in ("kernel", "bias")
        ]
        assert variables["lenet/hidden/kernel"].shape == (7 * 7 * 64, 128)
