"""Files of states: nested dicts, lists and tuples of NumPy arrays, numbers, strings and None, in one `.npz`.

Nothing is pickled, so a file from an untrusted source can do no harm, and every NumPy can read it. Python 3.6 syntax.
"""

import json
import os
from typing import Any, List, Sequence, Union

from .extras import extra

with extra():
    import numpy as np

PLAIN = (bool, int, float, str, type(None))
BROUGHT_BY_OTHERS = 2  # a dtype's `isbuiltin` if another package registered the type


def write(path: Union[str, "os.PathLike[str]"], state: Any) -> None:
    """Write a state to a file, and wait until it is on the disk.

    Raises:
        TypeError: The state contains an object of another type than those above.
    """
    arrays = []  # type: List[np.ndarray[Any, Any]]
    structure = json.dumps(_described(state, arrays))
    with open(path, "wb") as file:
        np.savez(file, *arrays, structure=np.array(structure))
        file.flush()
        os.fsync(file.fileno())


def read(path: Union[str, "os.PathLike[str]"]) -> Any:
    """Return the state in a file; arrays without dimensions come back as NumPy scalars."""
    with np.load(path, allow_pickle=False) as file:
        return _restored(json.loads(str(file["structure"])), file)


def merged(states: Sequence[Any]) -> Any:
    """Merge several states of the same structure: keep equal values, and average floating-point values that differ.

    Raises:
        ValueError: The states differ in anything else.
    """
    first = states[0]
    if isinstance(first, dict) and all(isinstance(state, dict) and set(state) == set(first) for state in states):
        return {key: merged([state[key] for state in states]) for key in first}
    if isinstance(first, (list, tuple)) and {(type(state), len(state)) for state in states} == {
        (type(first), len(first))
    }:
        return type(first)(merged(parts) for parts in zip(*states))
    values = [np.asarray(state) for state in states]
    if len({(value.dtype, value.shape) for value in values}) == 1:
        if all(value.tobytes() == values[0].tobytes() for value in values):
            return first
        if is_floating(values[0]):
            return np.mean(np.stack(values), axis=0, dtype=np.float64).astype(values[0].dtype)
    raise ValueError("states of several ranks that are no floating-point numbers differ")


def is_floating(array: "np.ndarray[Any, Any]") -> bool:
    """Return whether an array holds floating-point numbers, bfloat16 included, which NumPy does not count as such."""
    return "float" in array.dtype.name


def _described(state: Any, arrays: List["np.ndarray[Any, Any]"]) -> Any:
    """Return a state as JSON data, and append its arrays to `arrays`; the key of each JSON object names a type."""
    if isinstance(state, (np.ndarray, np.generic)):
        arrays.append(np.asarray(state))
        kind = arrays[-1].dtype
        # Of types that other packages register with NumPy, such as bfloat16, a file keeps only the bytes.
        return {kind.name if kind.isbuiltin == BROUGHT_BY_OTHERS else "array": len(arrays) - 1}
    if isinstance(state, dict):
        strange = [key for key in state if not isinstance(key, str)]
        if strange:
            raise TypeError("A state's keys are strings, unlike {!r}.".format(strange[0]))
        return {"dict": {key: _described(value, arrays) for key, value in state.items()}}
    if isinstance(state, (list, tuple)):
        return {type(state).__name__: [_described(value, arrays) for value in state]}
    if isinstance(state, PLAIN):
        return state
    raise TypeError(
        "A state consists of NumPy arrays, numbers, strings, and dicts and lists of them, and has no place for "
        "{!r}.".format(type(state))
    )


def _restored(described: Any, arrays: Any) -> Any:
    if not isinstance(described, dict):
        return described
    ((kind, content),) = described.items()
    if kind == "dict":
        return {key: _restored(value, arrays) for key, value in content.items()}
    if kind in ("list", "tuple"):
        values = [_restored(value, arrays) for value in content]
        return tuple(values) if kind == "tuple" else values
    array = arrays["arr_{}".format(content)]
    return (array if kind == "array" else array.view(kind))[()]
