"""The script that tells cats from dogs, with real processes; and those that fail on purpose, where they do not."""

import re

import numpy as np
import pytest
from training.listener import Listener
from training.processes import REPOSITORY, alone, horovodrun

pytestmark = pytest.mark.slow

SCRIPTS = REPOSITORY / "worker_scripts"
SCRIPT = SCRIPTS / "cats_vs_dogs_horovod.py"


def printed_accuracy(output):
    (accuracy,) = re.findall(r"test accuracy ([01]\.\d{4})$", output, re.MULTILINE)
    return float(accuracy)


def test_two_ranks_train_and_rank_0_saves(tmp_path):
    """Whether they learn, the test of the notebook sees."""
    checkpoint = tmp_path / "checkpoints" / "model.keras"
    options = ["--drawn", "--epochs", "2", "--steps", "10", "--checkpoint", checkpoint]
    with Listener() as agent:
        output = horovodrun(SCRIPT, *options, MUSTER_REPORT=agent.path)
    accuracy = printed_accuracy(output)
    assert agent.of_rank(0)[-1]["metrics"]["test_accuracy"] == pytest.approx(accuracy, abs=1e-4)
    last = agent.of_rank(1)[-1]
    assert (last["epochs"], last["steps"], last["examples"]) == (2, 10, 2 * 10 * 32)
    assert list(checkpoint.parent.iterdir()) == [checkpoint]
    assert_takes_bytes(checkpoint)


def assert_takes_bytes(checkpoint):
    """The saved model takes pictures as they are, and says how likely each shows a dog."""
    import keras

    model = keras.saving.load_model(checkpoint)
    (probability,) = model.predict(np.zeros((1, 64, 64, 3), np.uint8), verbose=0)
    assert 0 <= probability <= 1


def test_alone_in_one_process(tmp_path):
    output = alone(SCRIPT, "--drawn", "--epochs", "1", "--steps", "2", "--batch-size", "4")
    assert output.startswith("drawn cats and dogs (synthetic, not photographs): 3,200 to train, 400 to test")
    assert 0 <= printed_accuracy(output) <= 1


def test_the_chief_saves_what_the_parameter_servers_hold(tmp_path):
    path = tmp_path / "models" / "model.npz"
    alone(SCRIPTS / "mnist_ps_tf1.py", "--steps", "3", "--sync", "--limit-train", "64", "--checkpoint", path)
    with np.load(path) as variables:
        assert [name.split("/", 1)[1] for name in variables.files] == [
            f"{layer}/{kind}" for layer in ("conv1", "conv2", "hidden", "logits") for kind in ("kernel", "bias")
        ]
        assert variables["lenet/hidden/kernel"].shape == (7 * 7 * 64, 128)


@pytest.mark.parametrize("script", sorted((SCRIPTS / "failures").glob("*.py")), ids=lambda path: path.stem)
def test_what_fails_on_purpose_fails_in_rank_1_only(script):
    alone(script)
