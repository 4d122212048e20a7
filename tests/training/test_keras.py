"""Two ranks, and one process alone, both of which ran all of keras_program.py."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.listener import Listener
from tests.training.processes import run_forking

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "keras_program.py"


class Runs:
    """The notes that the processes wrote down, and the reports of the two ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with Listener() as agent:
            run_forking(PROGRAM, folder, MUSTER_REPORT=agent.path)
        self.reports = [agent.of_rank(0), agent.of_rank(1)]
        self.ranks = [self._read("rank-0-of-2.json"), self._read("rank-1-of-2.json")]
        self.alone = self._read("rank-0-of-1.json")

    def of_both(self, check: str) -> list[Any]:
        return [rank[check] for rank in self.ranks]

    def _read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def test_ranks_begin_apart_and_end_bit_identical_on_different_data(runs: Runs) -> None:
    first, second = runs.of_both("fit")
    assert first["before"] != second["before"]
    assert first["after"] == second["after"]
    assert first["steps"] == second["steps"] == 12


def test_the_training_step_is_traced_once_where_that_can_be_had(runs: Runs) -> None:
    for found in [runs.alone["traces"], *runs.of_both("traces")]:
        assert "exactness" in found.pop("no such metric")
        assert found == {
            "plain": [1, ["accuracy", "loss"], True],
            "without metrics": [1, ["loss"], True],
            "own metric": [1, ["loss", "sparse_top_k_categorical_accuracy"], True],
            "two outputs": [2, ["left_accuracy", "left_loss", "loss", "right_loss"], True],
            "own class": [2, ["accuracy", "loss"], True],
        }


def test_models_with_steps_of_their_own_and_weights_that_other_callbacks_set_are_trained_as_before(runs: Runs) -> None:
    for found in [runs.alone["own_steps"], *runs.of_both("own_steps")]:
        assert found == {
            "one hot": ["accuracy", "loss"],
            "auto-encoder": ["accuracy", "loss"],
            "half trained": ["loss"],
            "restored": [5.0],
        }


def test_without_averaging_the_same_check_fails(runs: Runs) -> None:
    first, second = runs.of_both("fit_without_averaging")
    assert first["before"] == second["before"]
    assert first["after"] != second["after"]


def test_two_ranks_equal_one_process_with_twice_the_batch(runs: Runs) -> None:
    together = runs.of_both("fit_on_common_data")
    assert together[0] == together[1]
    for ours, expected in zip(together[0]["weights"], runs.alone["fit_on_common_data"]["weights"], strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_custom_loops_stay_bit_identical_with_sparse_gradients(runs: Runs) -> None:
    first, second = runs.of_both("custom_loops")
    assert first == second
    assert first["gradients"] == ["EagerTensor", "IndexedSlices", "SymbolicTensor"]
    assert len(set(first["digests"].values())) == 4  # every loop did train


def test_all_ranks_leave_out_a_step_with_an_infinite_gradient_on_one(runs: Runs) -> None:
    first, second = runs.of_both("infinite_gradient_on_last_rank")
    assert first == second
    initial, after_infinite, after_finite = first["digests"]
    assert initial == after_infinite != after_finite


def test_metrics_are_averaged(runs: Runs) -> None:
    assert runs.of_both("average_metrics") == 2 * [{"loss": 0.5, "accuracy": 1.0}]
    assert runs.alone["average_metrics"] == {"loss": 0.0, "accuracy": 1.0}


def test_history_and_later_callbacks_see_the_averaged_metrics(runs: Runs) -> None:
    first, second = runs.of_both("fit")
    assert first["last_epoch"] == second["last_epoch"] == first["seen_by_later_callbacks"]
    assert set(first["last_epoch"]) == {"loss", "accuracy", "val_loss", "val_accuracy"}


def test_collectives_and_a_scheme_of_ones_own(runs: Runs) -> None:
    for rank, result in enumerate(runs.of_both("collectives")):
        assert result == {"rank": rank, "broadcast": 1, "after own scheme": [-1.0, -1.0], "calls": ["variable"]}
    assert runs.alone["collectives"]["broadcast"] == 0


def test_variables_are_broadcast_together_by_type_and_large_ones_alone(runs: Runs) -> None:
    assert runs.alone["batches"] == [[5, 5], [20], [0, 5], [0, 1]]


def test_what_would_train_apart_or_hang_is_refused(runs: Runs) -> None:
    for refusals in runs.of_both("refusals"):
        assert "does not average gradients" in refusals["plain optimizer"]
        assert "DistributedOptimizer(LossScaleOptimizer(...))" in refusals["loss scale outside"]
        assert "jit_compile=False" in refusals["XLA"]
        assert "different models" in refusals["different models"]  # of as many values
    mistakes = {"not built", "not an optimizer", "not a scheme", "compressed loss scale", "file name"}
    assert set(runs.alone["refusals"]) == mistakes


def test_mistakes_are_named(runs: Runs) -> None:
    refusals = runs.alone["refusals"]
    assert refusals["not built"].startswith("ValueError: Model 'sequential")
    assert refusals["not an optimizer"].startswith("TypeError: ")
    assert refusals["not a scheme"].startswith("TypeError: compression=0.01")
    assert "mixed_bfloat16" in refusals["compressed loss scale"]
    assert ".weights.h5" in refusals["file name"]


def test_only_rank_zero_saves_and_leaves_nothing_beside(runs: Runs) -> None:
    saved = sorted(str(path.relative_to(runs.folder)) for path in runs.folder.glob("checkpoints-of-*-of-2/*"))
    assert saved == ["checkpoints-of-0-of-2/epoch-01.keras", "checkpoints-of-0-of-2/epoch-02.keras"]
    assert not list(runs.folder.glob("checkpoints-of-*/.*"))


def test_a_save_that_fails_leaves_the_checkpoint_before_it(runs: Runs) -> None:
    assert runs.alone["half_a_file"] == {"error": "disk full", "files": {"model.keras": "whole"}}


def test_what_two_ranks_saved_is_an_ordinary_model(runs: Runs) -> None:
    loaded = runs.alone["load_what_two_ranks_saved"]
    np.testing.assert_allclose(loaded["predictions"], runs.ranks[0]["fit"]["predictions"], rtol=1e-6)
    assert loaded["optimizer"] == {"class": "Adam", "steps": 12}
    assert loaded["steps_after_more"] == 18


def test_every_rank_reports_its_progress(runs: Runs) -> None:
    for rank, messages in enumerate(runs.reports):
        first_fit = [message for message in messages if message.get("epochs") == 2]
        assert [message["epoch"] for message in first_fit][0] == 1
        last = first_fit[-1]
        assert (last["epoch"], last["step"], last["steps"], last["examples"]) == (2, 6, 6, 2 * 6 * 16)
        assert last["metrics"] == pytest.approx(runs.ranks[rank]["fit"]["last_epoch"])
        # 8 * 16 + 16 + 16 * 3 + 3 parameters of 4 bytes in 12 steps; two ranks send as much as that.
        assert last["bytes_sent"] == runs.ranks[rank]["fit"]["bytes_sent"] == 12 * 4 * 195
