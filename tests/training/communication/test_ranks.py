"""Two ranks that ran all of rank_program.py, and three that ran most of it."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training.communication.oracle import (
    COMPRESSED,
    CONSERVED_STEPS,
    SHAPES,
    Array,
    block_momentum,
    gradients,
    momentum_of,
)
from tests.training.processes import run_forking

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "rank_program.py"
PARAMETERS = sum(int(np.prod(shape)) for shape in SHAPES)
SMALL = 4 * (50 + 30 * 3 + 1)  # bytes of what goes dense, with the flag
GRADIENT_SCHEMES = ["dense", "fp16", "top-k", "threshold", "1 bit", "4 bit"]


class Ranks:
    """Return what so many ranks wrote down."""

    def __init__(self, folder: Path, size: int) -> None:
        self.size = size
        self.found = [pickle.loads((folder / f"rank-{rank}-of-{size}.pickle").read_bytes()) for rank in range(size)]

    def of_all(self, check: str) -> list[Any]:
        return [found[check] for found in self.found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_forking(PROGRAM, folder)
    return folder


@pytest.fixture(scope="module", params=[2, 3], ids=["2 ranks", "3 ranks"])
def ranks(request: pytest.FixtureRequest, folder: Path) -> Ranks:
    return Ranks(folder, request.param)


@pytest.fixture(scope="module")
def pair(folder: Path) -> Ranks:
    return Ranks(folder, 2)


def test_weights_are_the_same_on_all_ranks_after_every_step(ranks: Ranks) -> None:
    found = ranks.of_all("digests_of_steps")
    for name in GRADIENT_SCHEMES:
        assert all(of_rank[name] == found[0][name] for of_rank in found), name
        assert len(set(found[0][name])) == 5  # every step did something


def test_the_same_check_finds_a_decode_that_one_rank_skips(ranks: Ranks) -> None:
    found = ranks.of_all("digests_of_steps")
    assert found[-1]["skips one decode"] != found[0]["skips one decode"]


def conserved(ranks: Ranks, name: str) -> float:
    """The largest part, over all tensors, of what was put in that has neither come out nor is remembered."""
    total = [sum(of_tensor) for of_tensor in zip(*everything(ranks.size), strict=True)]
    accounted = [ranks.size * applied for applied in ranks.found[0]["conservation"][name]["applied"]]
    for rank, found in enumerate(ranks.found):
        state = found["conservation"][name]["state"]
        for number, index in enumerate(COMPRESSED):
            if f"gradient/{index}/residual" in state:
                accounted[index] = accounted[index] + state[f"gradient/{index}/residual"]
            if f"stripe/{number}/residual" in state:  # of a mean, for this rank's columns
                columns = np.array_split(np.arange(SHAPES[index][-1]), ranks.size)[rank]
                stripe = state[f"stripe/{number}/residual"].reshape(*SHAPES[index][:-1], -1)
                accounted[index][..., columns] += ranks.size * stripe
    if name == "fp16":  # compresses all
        for index in set(range(len(SHAPES))) - set(COMPRESSED):
            for found in ranks.found:
                residual = found["conservation"][name]["state"][f"gradient/{index}/residual"]
                accounted[index] = accounted[index] + residual
    return max(float(np.abs(a - t).max() / np.abs(t).max()) for a, t in zip(accounted, total, strict=True))


def everything(size: int) -> list[list[Array]]:
    return [gradients(rank, step) for rank in range(size) for step in range(CONSERVED_STEPS)]


@pytest.mark.parametrize("name", GRADIENT_SCHEMES[1:])
def test_what_is_put_in_comes_out_or_is_remembered(ranks: Ranks, name: str) -> None:
    # The sum of halves is rounded on its way around the ring, which no residual sees.
    assert conserved(ranks, name) < (1e-3 if name == "fp16" else 1e-6)


def test_the_same_check_finds_what_is_forgotten(ranks: Ranks) -> None:
    assert conserved(ranks, "forgets the rest") > 0.1


def assert_is_plain_horovod(ranks: Ranks, name: str) -> None:
    for found in ranks.of_all("identity"):
        for ours, plain in zip(found[name], found["dense"], strict=True):
            for mean, expected in zip(ours, plain, strict=True):
                if ranks.size == 2:
                    np.testing.assert_array_equal(mean, expected)
                else:
                    np.testing.assert_allclose(mean, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["top-k", "threshold", "32 bit"])
def test_what_leaves_nothing_out_is_plain_horovod(ranks: Ranks, name: str) -> None:
    assert_is_plain_horovod(ranks, name)


def test_the_same_check_finds_what_is_left_out(ranks: Ranks) -> None:
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_is_plain_horovod(ranks, "almost all")


def assert_weights(ours: list[Array], expected: list[Array]) -> None:
    for own, right in zip(ours, expected, strict=True):
        np.testing.assert_allclose(own, right, rtol=2e-5, atol=2e-6)


def test_block_momentum_is_the_formula(ranks: Ranks) -> None:
    size = ranks.size
    expected = block_momentum(size, 1 - 1 / size, 1, nesterov=True, reset=True, momentum=0.9)
    other = block_momentum(size, momentum_of(500, size), 0.7, nesterov=False, reset=False, momentum=0.9)
    for found in ranks.of_all("averaged_models"):
        assert_weights(found["block momentum"][-1], expected)
        assert_weights(found["block momentum, time constant"][-1], other)


@pytest.mark.parametrize(
    "wrong", [{"eta": 0.51}, {"zeta": 1.01}, {"nesterov": False}, {"reset": False}], ids=lambda wrong: str(wrong)
)
def test_the_same_check_finds_another_formula(ranks: Ranks, wrong: dict[str, Any]) -> None:
    right = {"eta": 1 - 1 / ranks.size, "zeta": 1, "nesterov": True, "reset": True}
    expected = block_momentum(ranks.size, **{**right, **wrong}, momentum=0.9)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_weights(ranks.found[0]["averaged_models"]["block momentum"][-1], expected)


@pytest.mark.parametrize(("scheme", "other"), [("block momentum", "averaged"), ("three chunks", "synchronous")])
def test_the_same_check_tells_schemes_apart(ranks: Ranks, scheme: str, other: str) -> None:
    found = ranks.found[0]["averaged_models"]
    with pytest.raises(AssertionError, match="Mismatched elements"):
        assert_weights(found[scheme][-1], found[other][-1])


def test_block_momentum_without_momentum_is_model_averaging(ranks: Ranks) -> None:
    for found in ranks.of_all("averaged_models"):
        for ours, averaged in zip(found["like averaged"], found["averaged"], strict=True):
            assert_weights(ours, averaged)


def test_averaged_models_drift_apart_and_come_together(ranks: Ranks) -> None:
    first, second = ranks.of_all("averaged_models")[:2]
    together = [
        all(np.array_equal(a, b) for a, b in zip(ours, others, strict=True))
        for ours, others in zip(first["averaged"], second["averaged"], strict=True)
    ]
    assert together == 3 * [False, False, True]


def test_partial_synchronisation_with_one_chunk_is_synchronous_sgd(ranks: Ranks) -> None:
    for found in ranks.of_all("averaged_models"):
        assert_weights(found["one chunk"][-1], found["synchronous"][-1])


def test_partial_synchronisation_averages_one_chunk_in_turn(ranks: Ranks) -> None:
    first, second = ranks.of_all("averaged_models")[:2]
    same = [
        {index for index, (a, b) in enumerate(zip(ours, others, strict=True)) if np.array_equal(a, b)}
        for ours, others in zip(first["three chunks"], second["three chunks"], strict=True)
    ]
    assert same[:3] == same[3:6] == [{0}, {2}, {1, 3}]
    for ours, others in zip(first["synchronised"], second["synchronised"], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, others, strict=True))


def allreduce(size: int, ranks: int) -> int:
    return 2 * (ranks - 1) * size // ranks


def of_stripes(ranks: Ranks, name: str) -> int:
    """Bytes of a step of all ranks together; stripes need not be equal."""
    return sum(found[name][0] - allreduce(SMALL, ranks.size) for found in ranks.of_all("bytes_sent"))


def test_bytes_sent_are_the_formulas(ranks: Ranks) -> None:
    n = ranks.size
    values = sum(-(-int(np.prod(SHAPES[index])) // 100) for index in COMPRESSED)
    columns, rows = SHAPES[0][1] + SHAPES[2][2], [40, 30]
    bits = {
        bits: sum(-(-r // (8 // bits)) * SHAPES[i][-1] for r, i in zip(rows, COMPRESSED, strict=True))
        for bits in (1, 4)
    }
    for rank, found in enumerate(ranks.of_all("bytes_sent")):
        steps = {name: np.diff([0, *sent]).tolist() for name, sent in found.items()}
        dense = sum(allreduce(4 * int(np.prod(shape)), n) for shape in SHAPES)
        halves = sum(allreduce(2 * int(np.prod(shape)), n) for shape in SHAPES)
        top_k = (n - 1) * 8 * values + allreduce(SMALL, n)
        assert steps["dense"] == 4 * [dense]
        assert steps["fp16"] == 4 * [halves + allreduce(4, n)]
        assert steps["top-k"] == 4 * [top_k]
        assert steps["averaged"] == [0, 0, 0, dense]
        assert steps["block momentum"] == [0, 0, 0, dense]
        assert steps["aggregated"] == [0, top_k] * 2
        assert sum(steps["partial"]) == dense
        assert steps["warm start"][:2] == [0, 0]
        for name, payload in {"1 bit": bits[1] + 8 * columns, "4 bit": bits[4] + 8 * columns}.items():
            assert of_stripes(ranks, name) == 2 * (n - 1) * payload
            assert steps[name] == 4 * [steps[name][0]]
        # The same check finds bits that are not packed.
        assert of_stripes(ranks, "not packed") > 3 * of_stripes(ranks, "1 bit")
        chosen = [[(np.abs(gradients(r, 0)[index]) >= 1.5).sum() for index in COMPRESSED] for r in range(n)]
        lengths = 2 * 2 * 4
        assert steps["threshold"][0] == (n - 1) * (8 * sum(chosen[rank]) + lengths) + allreduce(SMALL, n)


def test_a_resumed_run_is_the_uninterrupted_one(pair: Ranks) -> None:
    for found in pair.of_all("resumed"):
        for name, (whole, resumed, forgetful) in found.items():
            assert whole == resumed, name
            if name != "dense":
                assert forgetful != whole, name  # the same check finds that state was lost


def test_many_steps_are_traced_once(pair: Ranks) -> None:
    for found in pair.of_all("many_steps"):
        # The same check finds what is traced anew.
        assert found == {**dict.fromkeys(found, 1), "numbered": 5}
        assert len(found) == 7


def test_both_ranks_leave_out_a_step_together(pair: Ranks) -> None:
    for found in pair.of_all("not_finite"):
        for name, outcome in found.items():
            assert outcome["unchanged"] == outcome["finite"] == (not name.startswith("dense")), name
    found = pair.of_all("not_finite")
    assert all(
        outcome["digest"] == found[0][name]["digest"]
        for of_rank in found
        for name, outcome in of_rank.items()
        if not name.startswith("dense")
    )


def test_halves_out_of_range_come_later(ranks: Ranks) -> None:
    for large, small in ranks.of_all("out_of_range"):
        assert large == pytest.approx(100_000, rel=1e-3)
        assert small == pytest.approx(3e-7, abs=2**-23)  # twice the least half above 0


def test_fit_with_uneven_last_batches(pair: Ranks) -> None:
    found = pair.of_all("fit")
    for name in found[0]:
        assert all(of_rank[name]["changed"] for of_rank in found)
        assert len({of_rank[name]["digest"] for of_rank in found}) == 1, name
        assert {of_rank[name]["steps"] for of_rank in found} == {4 if name == "aggregated" else 8}


def test_sparse_gradients_and_missing_ones(pair: Ranks) -> None:
    found = pair.of_all("sparse_gradients")
    assert all(of_rank == found[0] for of_rank in found)


def test_tensors_of_fewer_columns_than_ranks(ranks: Ranks) -> None:
    found = ranks.of_all("few_columns")
    assert len(set(found[0].values())) == 2
    assert all(of_rank == found[0] for of_rank in found)


def test_adasum_is_refused_where_horovod_has_none(ranks: Ranks) -> None:
    for found in ranks.of_all("refusals"):
        assert "Adasum needs a Horovod built with MPI" in found["adasum"]
