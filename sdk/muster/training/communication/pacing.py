"""Schemes that wrap another scheme and decide when it communicates."""

from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Sequence, Tuple, Type

import numpy as np
import tensorflow as tf

from .reducer import Compression, as_scheme
from .scheme import Apply, Gradient, Scheme, densified, whole


class Wrapper(Scheme):
    """A scheme that calls an inner scheme; its state includes the inner scheme's."""

    def __init__(self, compression: Compression) -> None:
        self.scheme = as_scheme(compression)
        super().__init__(self.scheme.name)

    def build(self, variables: Sequence[Any], slots: Sequence[Any] = ()) -> None:
        """Make the variables of both schemes."""
        self.scheme.build(variables, slots)
        super().build(variables, slots)

    def _compare(self, gradients: Sequence[Gradient]) -> None:
        """Leave that to the inner scheme: before it begins the ranks may have to train alike."""

    def _synchronise(self, variables: List[Any]) -> None:
        self.scheme.synchronise(variables)

    def follow(self, variables: Sequence[Any]) -> None:
        """Let the inner scheme take note of variables that were changed without it."""
        self.scheme.follow(variables)

    @property
    def bytes_sent(self) -> int:
        """Number of bytes that the inner scheme has sent."""
        return self.scheme.bytes_sent

    def state_dict(self) -> Dict[str, Any]:
        """Return the state of both schemes."""
        return {**super().state_dict(), **{f"scheme/{key}": value for key, value in self.scheme.state_dict().items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of both schemes; raise ValueError as every scheme does."""
        own, inner = _divided(state)
        super().load_state_dict(own)
        self.scheme.load_state_dict(inner)

    def merge_states(self, saved: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """Merge the states of both schemes, each in its own way."""
        own, inner = zip(*map(_divided, saved))
        merged = self.scheme.merge_states(inner)
        return {**super().merge_states(own), **{f"scheme/{key}": value for key, value in merged.items()}}


def _divided(state: Mapping[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Return the state of a wrapper, and that of its inner scheme."""
    inner = {key[len("scheme/") :]: value for key, value in state.items() if key.startswith("scheme/")}
    return {key: value for key, value in state.items() if not key.startswith("scheme/")}, inner


class WarmStart(Wrapper):
    """CNTK's `distributed_after`: no communication at first, then the scheme.

    At first all ranks must train alike, from the same variables, on the same data in the same order, so that their
    gradients are the same and need not be sent. From then on the program must give each rank its own data;
    `distributed` says when.

    Args:
        compression: The compressor or scheme to use afterwards.
        distributed_after: Examples of one rank before communication begins; rounded up to whole steps.
        batch_size: Examples in one step of one rank.

    Raises:
        ValueError: A number is not whole and positive.
    """

    def __init__(self, compression: Compression, distributed_after: int, batch_size: int) -> None:
        super().__init__(compression)
        examples = whole("distributed_after", distributed_after)
        self.steps_alone = math.ceil(examples / whole("batch_size", batch_size))

    def _build(self, variables: List[Any], slots: List[Any]) -> None:
        self._steps = self._state.variable("steps", np.int64(0))

    @property
    def distributed(self) -> bool:
        """True if the next step communicates, so that each rank must now get its own data."""
        return self.built and bool(self._steps.numpy() >= self.steps_alone)

    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:

        def alone() -> None:
            apply(gradients)
            self.scheme.follow(variables)

        tf.cond(self._steps < self.steps_alone, alone, lambda: self.scheme.step(gradients, variables, apply))
        self._steps.assign_add(1)

    def _synchronise(self, variables: List[Any]) -> None:
        tf.cond(self._steps < self.steps_alone, lambda: None, lambda: self.scheme.synchronise(variables))


class LocalAggregation(Wrapper):
    """Horovod's `backward_passes_per_step`: the scheme takes a step with the mean of several gradients of this rank.

    The optimizer applies, and counts, only the scheme's steps. The effect is that of a batch as many times as large.

    Args:
        compression: The compressor or scheme that takes the steps.
        backward_passes_per_step: Number of calls of `step` for one step of the scheme.

    Raises:
        ValueError: The number is not whole and positive.
    """

    def __init__(self, compression: Compression, backward_passes_per_step: int) -> None:
        super().__init__(compression)
        self.passes = whole("backward_passes_per_step", backward_passes_per_step)

    def _build(self, variables: List[Any], slots: List[Any]) -> None:
        self._passed = self._state.variable("passed", np.int64(0))
        self._sums = [
            self._state.variable(f"sum/{index}", np.zeros(variable.shape, _type_of_sums(variable)))
            for index, variable in enumerate(variables)
        ]

    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        dense = densified(gradients)
        for total, gradient in zip(self._sums, dense):
            if gradient is not None:
                total.assign_add(tf.cast(gradient, total.dtype))
        self._passed.assign_add(1)

        def take() -> None:
            means = [None if g is None else tf.cast(s / self.passes, g.dtype) for s, g in zip(self._sums, dense)]
            self.scheme.step(means, variables, apply)
            for total in self._sums:
                total.assign(tf.zeros_like(total))
            self._passed.assign(0)

        tf.cond(self._passed >= self.passes, take, lambda: None)


def _type_of_sums(variable: Any) -> Type[np.floating[Any]]:
    """Return a type wide enough to sum gradients in half precision without loss of small ones or overflow."""
    return np.float64 if tf.as_dtype(variable.dtype) == tf.float64 else np.float32
