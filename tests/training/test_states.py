"""Nested states survive a file as they are, and are merged by what they agree on."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from muster.training import states

arrays = npst.arrays(
    st.one_of(npst.floating_dtypes(endianness="="), npst.integer_dtypes(endianness="="), npst.boolean_dtypes()),
    npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
)
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
nested = st.recursive(
    st.one_of(arrays, plain),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=3),
    ),
    max_leaves=8,
)


@pytest.mark.slow
@given(state=nested)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, state: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "state.npz"
    states.write(path, state)
    same(states.read(path), state)


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, np.ndarray):
        assert (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())
    else:
        assert found == expected


def test_what_others_brought_to_numpy_is_read_as_what_it_was(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="it comes with TensorFlow")
    state = {"half": np.array([1, 2.5], np.float32).astype(ml_dtypes.bfloat16), "number": ml_dtypes.bfloat16(3)}
    states.write(tmp_path / "state.npz", state)
    found = states.read(tmp_path / "state.npz")
    same(found, state)
    merged = states.merged([found["half"], np.zeros_like(found["half"])])
    assert (merged.dtype, merged.tolist()) == (ml_dtypes.bfloat16, [0.5, 1.25])


@pytest.mark.parametrize("state", [object(), {"x": [object()]}, {1: 2}])
def test_what_cannot_be_read_again_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises(TypeError, match="state"):
        states.write(tmp_path / "state.npz", state)


def test_merging_keeps_what_agrees_and_takes_the_mean_of_numbers() -> None:
    first = {"residual": np.array([1, 2], np.float32), "steps": 3, "parts": [np.float64(1.0), ("a", True)]}
    second = {"residual": np.array([3, 5], np.float32), "steps": 3, "parts": [np.float64(2.0), ("a", True)]}
    merged = states.merged([first, second])
    assert merged["residual"].dtype == np.float32
    assert merged["residual"].tolist() == [2, 3.5]
    assert (merged["steps"], merged["parts"]) == (3, [1.5, ("a", True)])


@given(value=npst.arrays(np.float32, 3), count=st.integers(1, 5))
def test_merging_equals_changes_no_bit(value: npt.NDArray[Any], count: int) -> None:
    assert states.merged([value] * count).tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "pair", [({"a": 1}, {"a": 2}), ({"a": 1}, {"b": 1}), ([1], [1, 1]), (np.zeros(2), np.zeros(3)), ("x", "y")]
)
def test_what_cannot_be_merged_is_refused(pair: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="differ"):
        states.merged(pair)
