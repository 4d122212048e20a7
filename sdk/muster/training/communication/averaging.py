"""Schemes that let each rank train by itself, and average parameters instead of gradients."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from .. import horovod
from .scheme import Apply, Gradient, Scheme, allreduce_bytes, bytes_of, whole


class PartialSynchronisation(Scheme):
    """Every step applies this rank's own gradients, then averages one chunk of the parameters, in turn (SINGA).

    Sends a dense step's bytes divided by the number of chunks, on average; every parameter is averaged once in
    `chunks` steps. With one chunk and plain SGD it is synchronous SGD.

    Args:
        chunks: Number of chunks that the tensors are divided into, of sizes as equal as whole tensors allow.
        name: As for every scheme.

    Raises:
        ValueError: The number is not whole and positive; from `build`: there are more chunks than tensors.
    """

    def __init__(self, chunks: int, *, name: str = "parameter") -> None:
        super().__init__(name)
        self.chunks = whole("chunks", chunks)

    def _build(self, variables: List[Any], slots: List[Any]) -> None:
        if self.chunks > len(variables):
            raise ValueError(f"chunks={self.chunks}, but there are only {len(variables)} tensors to divide.")
        self._turn = self._state.variable("turn", np.int64(0))
        sizes = [tf.TensorShape(variable.shape).num_elements() for variable in variables]
        self._chunks: List[List[int]] = [[] for _ in range(self.chunks)]
        for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
            min(self._chunks, key=lambda chunk: sum(sizes[i] for i in chunk)).append(index)

    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        apply(gradients)
        turns = [lambda chunk=chunk: self._average(variables, chunk) for chunk in self._chunks]
        tf.switch_case(tf.cast(self._turn % self.chunks, tf.int32), turns)
        self._turn.assign_add(1)

    def _synchronise(self, variables: List[Any]) -> None:
        self._average(variables, range(len(variables)))

    def _average(self, variables: Sequence[Any], chunk: Sequence[int]) -> None:
        self._count(average([variables[index] for index in chunk], [f"{self.name}_{index}" for index in chunk]))


class PeriodicScheme(Scheme):
    """Every step applies this rank's own gradients; after every `period` steps the ranks synchronise."""

    def _build(self, variables: List[Any], slots: List[Any]) -> None:
        self._steps = self._state.variable("steps", np.int64(0))  # since the ranks came together

    @property
    @abstractmethod
    def period(self) -> int:
        """Steps between two synchronisations."""

    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        apply(gradients)
        self._steps.assign_add(1)
        tf.cond(self._steps >= self.period, lambda: self._synchronise(variables), lambda: None)


class ModelAveraging(PeriodicScheme):
    """Local SGD: every rank trains by itself, and all parameters are averaged after every `period` steps.

    Sends a dense step's bytes divided by the period, on average. The optimizers' states are not averaged.

    Args:
        period: Number of steps from one averaging to the next.
        name: As for every scheme.

    Raises:
        ValueError: The number is not whole and positive.
    """

    def __init__(self, period: int, *, name: str = "parameter") -> None:
        super().__init__(name)
        self._period = whole("period", period)

    @property
    def period(self) -> int:
        """Steps from one averaging to the next, as given."""
        return self._period

    def _synchronise(self, variables: List[Any]) -> None:
        self._count(average(variables, [f"{self.name}_{index}" for index in range(len(variables))]))
        self._steps.assign(0)


class BlockMomentum(PeriodicScheme):
    """Blockwise model-update filtering (Chen and Huo 2016), as in CNTK's `block_momentum_distributed_learner`.

    Every rank trains by itself; after each block a separate momentum filters the sum S of the models' updates:
    `D = eta D + (1 - eta) zeta S; W = Wg - D`, and with Nesterov's look-ahead `W -= eta D`. S is a sum, so N ranks move
    by N (1 - eta) zeta times their mean; with the defaults this factor is 1. eta = 0 and zeta = 1/N are plain model
    averaging.

    Args:
        block_size: Examples of all ranks in a block; rounded up to whole steps.
        batch_size: Examples in one step of one rank.
        momentum: eta, at least 0 and below 1; None for the one that follows from the time constant.
        time_constant: T, in examples: eta = exp(-n / (T / N)) for n examples of each rank in a block. None for
            -block_size / ln(1 - 1/N), which makes eta = 1 - 1/N.
        learning_rate: zeta, the block learning rate.
        nesterov: Look ahead.
        reset_momentum: Begin each block with the optimizer's slots (momentum and the like) at 0, as CNTK does. Meant
            for SGD; Adam takes large steps without its second moments.
        name: As for every scheme.

    Raises:
        ValueError: A number is out of its range, or both `momentum` and `time_constant` are given.
    """

    def __init__(
        self,
        block_size: int,
        batch_size: int,
        *,
        momentum: Optional[float] = None,
        time_constant: Optional[float] = None,
        learning_rate: float = 1.0,
        nesterov: bool = True,
        reset_momentum: bool = True,
        name: str = "parameter",
    ) -> None:
        super().__init__(name)
        self.block_size, self.batch_size = whole("block_size", block_size), whole("batch_size", batch_size)
        if momentum is not None and time_constant is not None:
            raise ValueError("BlockMomentum takes a momentum, or a time_constant from which it follows; not both.")
        if momentum is not None and not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum!r}: from 0 to below 1.")
        if time_constant is not None and not time_constant > 0:
            raise ValueError(f"time_constant={time_constant!r}: a number of examples above 0.")
        self._momentum, self._time_constant = momentum, time_constant
        self.learning_rate, self.nesterov, self.reset_momentum = learning_rate, nesterov, reset_momentum

    @property
    def period(self) -> int:
        """Number of steps in a block."""
        return math.ceil(self.block_size / (self.batch_size * horovod.size()))

    @property
    def momentum(self) -> float:
        """The momentum eta, for the present number of ranks."""
        if self._momentum is not None:
            return self._momentum
        ranks, own_examples = horovod.size(), self.period * self.batch_size
        if self._time_constant is None and ranks == 1:
            return 0.0
        time_constant = self._time_constant or -self.block_size / math.log(1 - 1 / ranks)
        return math.exp(-own_examples / (time_constant / ranks))

    def _build(self, variables: List[Any], slots: List[Any]) -> None:
        super()._build(variables, slots)
        self._slots = slots
        values = [tf.convert_to_tensor(variable).numpy() for variable in variables]
        self._globals = [self._state.variable(f"global/{index}", value) for index, value in enumerate(values)]
        self._moves = [
            self._state.variable(f"move/{index}", np.zeros_like(value)) for index, value in enumerate(values)
        ]

    def follow(self, variables: Sequence[Any]) -> None:
        """Take note of changes to the variables without this scheme, so that the next block does not count them."""
        for own, common in zip(variables, self._globals):
            common.assign(tf.convert_to_tensor(own))

    def _synchronise(self, variables: List[Any]) -> None:
        eta, zeta = self.momentum, self.learning_rate
        for index, (own, common, move) in enumerate(zip(variables, self._globals, self._moves)):
            moved = common - tf.convert_to_tensor(own)
            total = horovod.allreduce(moved, f"{self.name}_{index}", "Sum")
            move.assign(eta * move + (1 - eta) * zeta * total)
            common.assign_sub((1 + eta) * move if self.nesterov else move)
            own.assign(common)
            self._count(allreduce_bytes(bytes_of(moved)))
        if self.reset_momentum:
            for slot in self._slots:
                slot.assign(tf.zeros(slot.shape, slot.dtype))
        self._steps.assign(0)


def average(variables: Sequence[Any], names: Sequence[str]) -> int:
    """Set variables to their means over all ranks, by one allreduce for each name, and return the bytes sent."""
    values = [tf.convert_to_tensor(variable) for variable in variables]
    means = [horovod.allreduce(value, name) for value, name in zip(values, names)]
    for variable, mean in zip(variables, means):
        variable.assign(mean)
    return sum(allreduce_bytes(bytes_of(value)) for value in values)
