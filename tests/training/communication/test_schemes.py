"""Schemes in one process alone, where collectives return what they are given."""

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from muster.training import states
from muster.training.communication import (
    FP16,
    BlockMomentum,
    Compressor,
    Dense,
    LocalAggregation,
    ModelAveraging,
    OneBit,
    PartialSynchronisation,
    Reducer,
    Scheme,
    Threshold,
    TopK,
    WarmStart,
)

pytestmark = pytest.mark.slow  # imports TensorFlow

SCHEMES: dict[str, Callable[[], Scheme]] = {
    "dense": Dense,
    "top-k": lambda: Reducer(TopK(0.1)),
    "1 bit": lambda: Reducer(OneBit()),
    "averaged": lambda: ModelAveraging(2),
    "block momentum": lambda: BlockMomentum(2, 1),
    "partial": lambda: PartialSynchronisation(1),
    "warm start": lambda: WarmStart(OneBit(), 2, 1),
    "aggregated": lambda: LocalAggregation(OneBit(), 2),
}


def stepped(scheme: Scheme) -> Scheme:
    """The scheme after a step of its own."""
    variable = tf.Variable(tf.ones((50, 40)))
    gradient = tf.reshape(tf.range(2000.0), (50, 40))
    scheme.step([gradient], [variable], lambda means: variable.assign_sub(means[0]))
    return scheme


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_saved_before_the_first_step_is_the_beginning(name: str, ranks: int) -> None:
    saved = [SCHEMES[name]().state_dict() for _ in range(ranks)]
    scheme = SCHEMES[name]()
    scheme.load_state_dict(saved[0] if ranks == 1 else scheme.merge_states(saved))
    np.testing.assert_equal(stepped(scheme).state_dict(), stepped(SCHEMES[name]()).state_dict())


@pytest.mark.parametrize("name", ["top-k", "1 bit", "averaged", "aggregated"])
def test_a_state_from_before_the_first_step_and_one_from_after_it_are_of_no_one_training(name: str) -> None:
    before, after = SCHEMES[name]().state_dict(), stepped(SCHEMES[name]()).state_dict()
    for pair in ([before, after], [after, before]):
        with pytest.raises(ValueError, match="differ"):
            SCHEMES[name]().merge_states(pair)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_gradients_of_any_type_are_added_up_without_loss_and_in_the_middle_of_it_saved(
    tmp_path: Path, dtype: str
) -> None:
    variable = tf.Variable(tf.zeros(3, dtype))
    first, second = LocalAggregation(None, 4), LocalAggregation(None, 4)
    for number, scheme in enumerate([first, first, second, second]):
        if number == 2:
            states.write(tmp_path / "state.npz", first.state_dict())
            second.load_state_dict(states.read(tmp_path / "state.npz"))
        # Beyond the range of halves in sum; too little to change a sum of halves; and as exact as 64 bits are.
        gradient = tf.constant([60_000, 1 if number else 256, 1 + 2**-40], dtype)
        scheme.step([gradient], [variable], lambda means: variable.assign_add(means[0]))
    assert variable.numpy().tolist() == tf.constant([60_000, 259 / 4, 1 + 2**-40], dtype).numpy().tolist()


def test_state_of_something_else_is_refused() -> None:
    scheme = Reducer(TopK(0.1))
    scheme.load_state_dict({"gradient/0/residual": np.zeros((50, 41), np.float32), "bytes_sent": 0})
    with pytest.raises(ValueError, match="another model, scheme or number of ranks"):
        scheme.build([tf.Variable(tf.zeros((50, 40)))])


@pytest.mark.parametrize("code", [TopK(0.1), Threshold(1), OneBit(), FP16()], ids=lambda code: type(code).__name__)
def test_models_of_small_tensors_only(code: Compressor) -> None:
    variable = tf.Variable([1.0, 2.0])
    Reducer(code).step([tf.constant([0.5, -1.0])], [variable], lambda means: variable.assign_sub(means[0]))
    np.testing.assert_array_equal(variable, [0.5, 3.0])


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_that_has_not_been_built_can_be_sent_to_other_processes(name: str) -> None:
    again = pickle.loads(pickle.dumps(SCHEMES[name]()))
    np.testing.assert_equal(stepped(again).state_dict(), stepped(SCHEMES[name]()).state_dict())


def test_the_steps_of_a_warm_start_are_no_move_of_the_first_block() -> None:
    variable = tf.Variable([0.0])
    scheme = WarmStart(BlockMomentum(2, 1, momentum=0.5), distributed_after=3, batch_size=1)
    weights = []
    for _ in range(5):
        scheme.step([tf.constant([-1.0])], [variable], lambda means: variable.assign_sub(means[0]))
        weights.append(float(variable[0]))
        if not scheme.distributed:
            scheme.synchronise([variable])
    # After a block of two steps: of the two that it has moved a half, and half of that again for Nesterov.
    assert weights == [1, 2, 3, 4, 3 + 1.5]
