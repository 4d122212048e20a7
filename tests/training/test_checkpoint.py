"""Findings of checkpoint_program.py with real ranks: resumed trainings, kills at random moments, mistakes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from muster.training import states

from tests.training.processes import run_forking

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "checkpoint_program.py"
EXAMPLES, BATCH_SIZE, KILLS = 45, 4, 8  # as in the program
TRAININGS = ("fit", "top-k", "partial")


def latest(folder: Path) -> Path:
    return max(folder.glob("step-*"))


class Runs:
    """Return what the ranks wrote down."""

    def __init__(self, folder: Path) -> None:
        run_forking(PROGRAM, folder)
        self.folder = folder
        self.results = json.loads((folder / "results.json").read_text())

    def of(self, name: str, size: int = 2) -> list[Any]:
        return [json.loads((self.folder / f"{name}-of-{rank}.json").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", TRAININGS)
def test_the_runs_end_as_they_should(runs: Runs, name: str) -> None:
    whole, killed, resumed = runs.results["codes"][name]
    assert (whole, killed[1], resumed) == ([0, 0], -9, [0, 0])
    assert killed[0] != 0  # it lost the other rank


@pytest.mark.parametrize("name", TRAININGS)
def test_a_resumed_run_equals_the_uninterrupted_one_bit_for_bit(runs: Runs, name: str) -> None:
    for whole, resumed in zip(runs.of(f"{name}-whole"), runs.of(f"{name}-resumed"), strict=True):
        assert resumed["start"] == [1, 4, 10]  # in the middle of an epoch
        for what in ("digest", "residuals", "kept"):
            assert resumed[what] == whole[what], what


def test_the_digest_tells_trainings_and_ranks_apart(runs: Runs) -> None:
    digests = [rank["digest"] for name in TRAININGS for rank in runs.of(f"{name}-whole")]
    assert len(set(digests)) == len(digests)


def test_fit_goes_on_with_the_same_metrics_and_random_numbers(runs: Runs) -> None:
    for whole, resumed in zip(runs.of("fit-whole"), runs.of("fit-resumed"), strict=True):
        assert resumed["random"] == whole["random"]
        assert resumed["steps"] == whole["steps"][6:]  # those that are passed over are counted
        for name, values in resumed["history"].items():
            assert values == whole["history"][name][1:]


def test_progress_goes_on_where_it_was(runs: Runs) -> None:
    for whole, resumed in zip(runs.of("fit-whole"), runs.of("fit-resumed"), strict=True):
        assert whole["reports"][0] == [1, 1, 1 * BATCH_SIZE]
        assert resumed["reports"][0] == [2, 4, 10 * BATCH_SIZE]  # those that are passed over are not told again
        assert resumed["reports"][-1] == whole["reports"][-1] == [3, 6, 18 * BATCH_SIZE]


def test_a_loop_takes_the_same_batches(runs: Runs) -> None:
    for whole, resumed in zip(runs.of("top-k-whole"), runs.of("top-k-resumed"), strict=True):
        assert resumed["taken"] == whole["taken"][10:]


@pytest.mark.parametrize("name", ["fit", "top-k"])
def test_only_the_newest_are_kept(runs: Runs, name: str) -> None:
    kept = {"fit": ["step-00000016", "step-00000018"], "top-k": ["step-00000018"]}[name]
    assert [rank["kept"] for rank in runs.of(f"{name}-resumed")] == [kept, kept]


@pytest.mark.parametrize(("name", "size", "before"), [("one-bit", 1, "fit"), ("top-k", 3, "top-k")])
def test_another_number_of_ranks_goes_on_with_the_mean_of_what_was_the_ranks_own(
    runs: Runs, name: str, size: int, before: str
) -> None:
    ranks = runs.of(f"{name}-on-{size}", size)
    saved = [states.read(latest(runs.folder / f"{before}-left") / f"rank-{rank}.npz")["own"] for rank in range(2)]
    owed = np.mean([own["residuals"]["values"] for own in saved], axis=0)
    memories = [key for key in saved[0]["communication"] if key.endswith("/residual")]
    assert memories
    for rank in ranks:
        np.testing.assert_allclose(rank["loaded"]["residuals"], owed, rtol=1e-6)
    for key in memories:
        earlier = [own["communication"][key] for own in saved]
        now = [np.float32(rank["loaded"]["communication"][key]) for rank in ranks]
        if key.startswith("stripe/"):  # each rank has another part of it
            np.testing.assert_array_equal(np.concatenate(now, axis=1), np.concatenate(earlier, axis=1))
        else:
            for value in now:
                np.testing.assert_allclose(value, np.mean(earlier, axis=0), rtol=1e-5, atol=1e-8)
    assert len({rank["trained"] for rank in ranks}) == 1  # they went on together


@pytest.mark.parametrize(
    ("name", "size", "start", "twice"), [("one-bit", 1, [1, 8, 10], 0), ("top-k", 3, [1, 2, 10], 8)]
)
def test_another_number_of_ranks_goes_on_where_the_epoch_was(
    runs: Runs, name: str, size: int, start: list[int], twice: int
) -> None:
    ranks = runs.of(f"{name}-on-{size}", size)
    assert [rank["start"] for rank in ranks] == [start] * size
    before = [example for rank in runs.of("top-k-whole") for _, batch in rank["taken"][6:10] for example in batch]
    after = [example for rank in ranks for epoch, batch in rank["taken"] if epoch == 1 for example in batch]
    assert len(set(before) & set(after)) == twice
    assert len(set(before) | set(after)) == EXAMPLES - EXAMPLES % size


def test_a_kill_at_any_moment_leaves_the_last_good_one(runs: Runs) -> None:
    totals = runs.results["kills"]["totals"]
    assert len(totals) == KILLS
    assert all(before < after for before, after in zip(totals, totals[1:], strict=False))  # each went on from there
    assert runs.results["kills"]["in_the_middle"] >= 2  # those that were killed while they saved


def test_what_is_left_of_a_save_that_was_killed_is_removed_by_the_next(runs: Runs) -> None:
    left = [path.name for path in (runs.folder / "kills").iterdir() if path.name.startswith(".")]
    assert len(left) <= 1  # of the very last kill


def test_a_failure_of_one_rank_is_an_error_on_all(runs: Runs) -> None:
    first, second = (rank["found"]["failing rank"] for rank in runs.of("mistakes/mistakes"))
    assert first.startswith("CheckpointError: Another rank could not write its part of ")
    assert second.startswith("CheckpointError: Rank 1 could not write its part of ")
    assert "No space left on device" in second
    assert runs.of("mistakes/mistakes")[0]["left"] == ["step-00000003"], "nothing of the one that failed"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("another training", "restore()"),
        ("another model", "of another training: of model "),
        ("other own", "own=['communication', 'residuals'], and the checkpoint has ['communication', 'failing']"),
        ("nothing to keep", "keep=0"),
        ("not built", "no variables to save yet"),
        ("wrong epoch", "initial_epoch=checkpoint.position.epoch"),
        ("uneven", "would take different numbers of steps in an epoch, rank 0 6"),
    ],
)
def test_mistakes_are_named(runs: Runs, what: str, message: str) -> None:
    first, second = (rank["found"][what] for rank in runs.of("mistakes/mistakes"))
    assert message in first
    assert second != "nothing was raised"
