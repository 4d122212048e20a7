"""Each code on a tensor, in this process alone."""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from muster.training.communication import (
    FP16,
    AllReduce,
    BlockMomentum,
    Compressor,
    KBit,
    LocalAggregation,
    ModelAveraging,
    OneBit,
    PartialSynchronisation,
    Reducer,
    Threshold,
    TopK,
    TwoPhase,
    WarmStart,
)
from muster.training.communication.collectives import from_bytes, to_bytes
from muster.training.communication.compiled import WORTH_COMPILING
from muster.training.communication.compressors import SAMPLE
from muster.training.communication.quantization import packed, unpacked
from muster.training.communication.reducer import all_finite

pytestmark = pytest.mark.slow  # imports TensorFlow

EXACT = [TopK(0.001), TopK(0.3), TopK(1.0), Threshold(0.0), Threshold(1.0), FP16(), KBit(32)]
ROUNDING = [OneBit(), KBit(2), KBit(4), KBit(8)]
every_code = pytest.mark.parametrize("code", EXACT + ROUNDING, ids=lambda code: f"{type(code).__name__} {vars(code)}")
SPECIAL = {
    "zeros": np.zeros((9, 7)),
    "one element": np.full((1, 1), -3.5),
    "one row": np.arange(5.0)[None],
    "rows not by eight": np.linspace(-2, 2, 11 * 3).reshape(11, 3),
    "all equal": np.full((8, 4), 0.1),
    "one sign": np.linspace(1, 2, 12).reshape(6, 2),
    "no columns": np.zeros((9, 0)),
    "one column": np.linspace(-1, 1, 13)[:, None],
    "three dimensions": np.linspace(-1, 1, 24).reshape(2, 3, 4),
    "negative zeros": np.array([[-0.0, 0.0, -1.0]]),
}
tensors = arrays(
    np.float32,
    st.tuples(st.integers(1, 20), st.integers(1, 9)),
    elements=st.floats(-60_000, 60_000, width=32, allow_subnormal=False),
)


def decoded(code: Compressor, tensor: npt.NDArray[Any]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = code.decompress(code.compress(tf.constant(tensor)), tensor.shape).numpy()
    return found


def assert_conserves(code: Compressor, tensor: npt.NDArray[Any]) -> None:
    """Check that what is sent and what is left out add up to the tensor: bit for bit, or within rounding."""
    payload = code.compress(tf.constant(tensor))
    sent = code.decompress(payload, tensor.shape).numpy()
    left = code.left_out(tf.constant(tensor), payload).numpy()
    largest = np.float32(np.abs(tensor).max(initial=0))
    limit = 2 * np.spacing(largest) if code in ROUNDING else 1e-45
    np.testing.assert_array_less(np.abs((sent + left) - tensor), limit)


@every_code
@pytest.mark.parametrize("name", SPECIAL)
def test_sent_and_left_make_the_tensor(code: Compressor, name: str) -> None:
    assert_conserves(code, SPECIAL[name].astype(np.float32))


@every_code
@settings(max_examples=25)
@given(tensor=tensors)
def test_sent_and_left_make_any_tensor(code: Compressor, tensor: npt.NDArray[Any]) -> None:
    assert_conserves(code, tensor)


@every_code
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_told_before_it_is_coded(code: Compressor, value: float) -> None:
    tensor = np.array([[1, 2, 3], [4, value, 6], [7, 8, 9]], np.float32)
    assert decoded(code, tensor).shape == tensor.shape
    assert not all_finite([tf.zeros(3), tf.constant(tensor)])
    assert all_finite([tf.zeros(3), tf.constant(tensor[:1])])


def test_the_same_check_finds_a_value_that_is_lost() -> None:
    class Forgetful(TopK):
        def left_out(self, tensor: npt.NDArray[Any], payload: Any) -> Any:
            return tf.zeros_like(tensor)

    class Repeating(TopK):
        def left_out(self, tensor: npt.NDArray[Any], payload: Any) -> Any:
            return tensor

    for code in (Forgetful(0.5), Repeating(0.5)):
        with pytest.raises(AssertionError):
            assert_conserves(code, np.array([[0.1, 1.0]], np.float32))


@settings(max_examples=50)
@given(tensor=tensors, ratio=st.floats(1e-6, 1))
def test_top_k_is_the_k_largest(tensor: npt.NDArray[Any], ratio: float) -> None:
    values, indices = (part.numpy() for part in TopK(ratio).compress(tf.constant(tensor)))
    k = math.ceil(ratio * tensor.size)
    assert len(values) == len(set(indices.tolist())) == k
    np.testing.assert_array_equal(values, tensor.reshape(-1)[indices])
    np.testing.assert_array_equal(np.sort(np.abs(values)), np.sort(np.abs(tensor), axis=None)[-k:])


@pytest.mark.parametrize("run", [lambda function: function, tf.function], ids=["eager", "traced"])
@pytest.mark.parametrize("n", [3 * SAMPLE + 17, 2 * WORTH_COMPILING + 17])
@pytest.mark.parametrize("kind", ["normal", "sparse", "equal", "both signs", "periodic", "few large", "unlucky"])
def test_top_k_of_large_tensors_is_exact(kind: str, n: int, run: Callable[..., Any]) -> None:
    random = np.random.RandomState(0)
    sampled = np.isin(np.arange(n), np.arange(300, dtype=np.int64) * 2_654_435_761 % n)  # fewer than k
    values = {
        "normal": random.normal(size=n),
        "sparse": np.where(random.random_sample(n) < 0.001, random.normal(size=n), 0),
        "equal": np.ones(n),
        "both signs": np.where(np.arange(n) % 2, 1.0, -1.0),
        "unlucky": np.where(sampled, 100.0, 1.0),
        "periodic": np.where(np.arange(n) % 64 == 0, 100.0, 1.0),
        "few large": np.where(np.arange(n) < 10, 1e9, 1e-9),
    }[kind].astype(np.float32)
    payload = run(TopK(0.01).compress)(tf.constant(values))
    sent, indices = (part.numpy() for part in payload)
    k = math.ceil(0.01 * n)
    assert len(set(indices.tolist())) == k
    np.testing.assert_array_equal(np.sort(np.abs(sent)), np.sort(np.abs(values))[-k:])
    left_out = run(TopK(0.01).left_out)(tf.constant(values), payload).numpy()
    values[indices] = 0
    np.testing.assert_array_equal(left_out, values)


@pytest.mark.parametrize("code", [OneBit(), KBit(2), KBit(4), KBit(8)], ids=["1 bit", "2 bits", "4 bits", "8 bits"])
def test_a_stripe_says_the_same_by_itself_as_in_the_whole(code: Compressor) -> None:
    """Also where only the whole is large enough to be decoded by compiled code."""
    rows, columns = 400, 2 * WORTH_COMPILING // 400
    tensor = tf.constant(np.random.RandomState(0).normal(size=(rows, columns)), tf.float32)
    payload = code.compress(tensor)
    stripe = tuple(part[..., :7] for part in payload)
    whole = code.decompress(payload, (rows, columns)).numpy()
    np.testing.assert_array_equal(code.decompress(stripe, (rows, 7)), whole[:, :7])


@settings(max_examples=50)
@given(tensor=tensors, threshold=st.floats(0, 1e5, width=32, allow_subnormal=False))
def test_threshold_is_all_that_reach_it(tensor: npt.NDArray[Any], threshold: float) -> None:
    _, indices = Threshold(threshold).compress(tf.constant(tensor))
    np.testing.assert_array_equal(indices, np.flatnonzero(np.abs(tensor) >= np.float32(threshold)))


def test_a_threshold_may_be_a_scalar_of_another_type() -> None:
    values = np.random.RandomState(0).normal(size=2 * WORTH_COMPILING).astype(np.float32)
    _, indices = Threshold(np.quantile(np.abs(values.astype(np.float64)), 0.99)).compress(tf.constant(values))
    assert len(indices) == pytest.approx(0.01 * len(values), rel=0.01)


@settings(max_examples=50)
@given(tensor=tensors)
def test_one_bit_is_the_means_of_both_signs(tensor: npt.NDArray[Any]) -> None:
    expected = np.empty_like(tensor, dtype=np.float64)
    for column in range(tensor.shape[1]):
        for chosen in (tensor[:, column] >= 0, tensor[:, column] < 0):
            expected[chosen, column] = tensor[chosen, column].astype(np.float64).mean() if chosen.any() else 0
    largest = np.abs(tensor).max()
    np.testing.assert_allclose(
        decoded(OneBit(), tensor), expected, rtol=1e-5, atol=1e-6 * largest + 1e-37
    )  # TensorFlow flushes denormals


@pytest.mark.parametrize("bits", [2, 4, 8])
@settings(max_examples=25)
@given(tensor=tensors)
def test_k_bit_is_the_nearest_level(bits: int, tensor: npt.NDArray[Any]) -> None:
    half = (tensor.max(0) - tensor.min(0)) / (2**bits - 1) / 2
    error = np.abs(decoded(KBit(bits), tensor) - tensor)
    assert (error <= half * 1.001 + 1e-6 * np.abs(tensor).max(0) + 1e-37).all()  # TensorFlow flushes denormals


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
@pytest.mark.parametrize("rows", [1, 7, 8, 9])
def test_packed_codes_are_as_many_to_a_byte_as_fit(bits: int, rows: int) -> None:
    codes = np.random.RandomState(0).randint(0, 2**bits, (rows, 5)).astype(np.uint8)
    together = packed(tf.constant(codes), bits)
    assert together.shape == (math.ceil(rows * bits / 8), 5)
    np.testing.assert_array_equal(unpacked(together, bits, rows), codes)


def test_bytes_of_one_bit_are_an_eighth_of_a_byte_and_eight_for_each_column() -> None:
    assert to_bytes([OneBit().compress(tf.zeros((800, 30)))]).shape[0] == 800 * 30 / 8 + 8 * 30


def test_what_goes_into_a_buffer_comes_out_of_it() -> None:
    payloads = [(tf.constant([1.5, -2.0]), tf.constant([[1, 2]])), (tf.constant([7], tf.uint8), tf.zeros([0, 3]))]
    (again,) = from_bytes(to_bytes(payloads), [payloads])
    for before, after in zip(payloads, again, strict=True):
        for part, other in zip(before, after, strict=True):
            assert part.dtype == other.dtype
            np.testing.assert_array_equal(part, other)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda: TopK(0),
        lambda: TopK(1.5),
        lambda: Threshold(-1),
        lambda: Threshold(math.nan),
        lambda: KBit(3),
        lambda: Reducer(TopK(0.1), collective=AllReduce),
        lambda: Reducer(OneBit(), collective=AllReduce),
        lambda: Reducer(TopK(0.1), collective=TwoPhase),
        lambda: Reducer(Threshold(1), collective=TwoPhase),
        lambda: ModelAveraging(0),
        lambda: PartialSynchronisation(cast(int, 2.5)),
        lambda: BlockMomentum(100, 0),
        lambda: BlockMomentum(100, 10, momentum=0.5, time_constant=100),
        lambda: BlockMomentum(100, 10, momentum=1),
        lambda: BlockMomentum(100, 10, time_constant=0),
        lambda: LocalAggregation(None, 0),
        lambda: WarmStart(OneBit(), -1, 10),
        lambda: PartialSynchronisation(3).build([tf.Variable(0.0)]),
    ],
)
def test_what_makes_no_sense_is_refused(attempt: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        attempt()
