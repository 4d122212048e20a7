"""The base class of all schemes, with a step from this rank's gradients to the variables, and state to be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from .. import horovod, states
from .sameness import Sameness

Gradient = Union[tf.Tensor, tf.IndexedSlices, None]
Apply = Callable[[List[Gradient]], Any]
"""Lets the optimizer apply gradients to the variables that the step was called with."""


def allreduce_bytes(size: int) -> int:
    """Return the bytes that each rank sends in a ring allreduce of `size` bytes: 2(N-1)/N of them, rounded down."""
    return 2 * (horovod.size() - 1) * size // horovod.size()


def allgather_bytes(size: Any) -> Any:
    """Return the bytes that each rank sends, to every other, in an allgather of `size` of its own (int or tensor)."""
    return (horovod.size() - 1) * size


class State:
    """The variables of a scheme by name. Values loaded before the variables exist are kept until they do."""

    def __init__(self) -> None:
        self._variables: Dict[str, tf.Variable] = {}
        self._is_complete = False
        self._waiting: Dict[str, Any] = {}

    def variable(self, name: str, initial: Any) -> tf.Variable:
        """Return a new variable, of the type and shape of its initial value."""
        initial = np.asarray(initial)
        self._variables[name] = tf.Variable(initial, trainable=False, dtype=initial.dtype, name=name.replace("/", "_"))
        return self._variables[name]

    def complete(self) -> None:
        """Note that all variables exist, and give them the values that were loaded before."""
        self._is_complete = True
        if self._waiting:  # the state of a scheme that has not taken a step is empty
            self.load(self._waiting)

    def values(self) -> Dict[str, Any]:
        """Return the value of every variable, or the loaded values if the variables do not exist yet."""
        if not self._is_complete:
            return dict(self._waiting)
        return {name: variable.numpy() for name, variable in self._variables.items()}

    def load(self, values: Mapping[str, Any]) -> None:
        """Set all variables, or keep the values until the variables exist.

        Raises:
            ValueError: Names or shapes differ from those of the variables; none is set.
        """
        if not self._is_complete:
            self._waiting = dict(values)
            return
        here = {name: tuple(variable.shape) for name, variable in self._variables.items()}
        saved = {name: np.shape(value) for name, value in values.items()}
        if saved != here:
            different = min(name for name in {*here, *saved} if here.get(name) != saved.get(name))
            raise ValueError(
                f"The saved state is of another model, scheme or number of ranks: {different} has the shape "
                f"{here.get(different)} here and {saved.get(different)} there."
            )
        for name, variable in self._variables.items():
            variable.assign(values[name])


class Scheme(ABC):
    """A way to keep the ranks' models together: what they send, when, and which gradients the optimizer applies.

    `DistributedOptimizer(optimizer, compression=scheme)` uses it in `model.fit`, and wherever there is a Keras 3
    optimizer. In a loop without one:

    >>> scheme, weights = Dense(), tf.Variable([1.0, 2.0])
    >>> scheme.build([weights])
    >>> scheme.step([tf.constant([0.5, 0.5])], [weights], apply=lambda means: weights.assign_sub(means[0]))
    >>> weights.numpy().tolist()
    [0.5, 1.5]

    Every rank must call `step` with the same variables in the same order, equally often. It works inside `tf.function`
    and outside.

    Args:
        name: Prefix of the names of its collectives; different for schemes that are in use at the same time.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.built = False
        self._state = State()

    def build(self, variables: Sequence[Any], slots: Sequence[Any] = ()) -> None:
        """Make the scheme's own variables, unless that has been done. `step` calls it, too.

        Args:
            variables: The variables that `step` will be called with.
            slots: The optimizer's variables that accumulate gradients (its momentum), for schemes that reset them.

        Raises:
            ValueError: The scheme does not suit these variables, or the loaded state is of other variables.
        """
        if self.built:
            return
        with tf.init_scope():  # so that variables are made once, whoever is being traced
            self._sent = self._state.variable("bytes_sent", np.int64(0))
            self._sameness = Sameness(self.name)
            self._build(list(variables), list(slots))
            self._state.complete()
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def step(self, gradients: Sequence[Gradient], variables: Sequence[Any], apply: Apply) -> None:
        """Take one training step: communicate, and let the optimizer apply gradients.

        Args:
            gradients: This rank's gradients, one for each variable; None for a variable without part in the loss.
            variables: The variables.
            apply: Called with the gradients to apply; not called in a step that all ranks skip.
        """
        self.build(variables)
        self._compare(gradients)
        self._step(list(gradients), list(variables), apply)

    @property
    def bytes_sent(self) -> int:
        """Number of bytes that this rank has sent for training so far; not for use inside `tf.function`.

        It is computed from the sizes of the tensors given to the collectives, and their algorithms, ring allreduce and
        allgather; the overhead of network protocols is not included.
        """
        return int(self._sent.numpy()) if self.built else 0

    @tf.autograph.experimental.do_not_convert
    def synchronise(self, variables: Sequence[Any]) -> None:
        """Make the variables the same on all ranks, if the scheme lets them drift apart: before they are saved."""
        self.build(variables)
        self._synchronise(list(variables))

    def follow(self, variables: Sequence[Any]) -> None:  # noqa: B027 - most schemes keep no copy of them
        """Take note of variables that were changed without this scheme, on all ranks alike."""

    def state_dict(self) -> Dict[str, Any]:
        """Return the state of this rank's scheme, as NumPy arrays by name; to be saved for every rank."""
        return self._state.values()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state of the same rank; before or after `build`.

        Raises:
            ValueError: The state is of another model, scheme or number of ranks (before `build`: raised by that).
        """
        self._state.load(state)

    def merge_states(self, saved: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """Return a state for this rank, merged from the states of all ranks that saved, if their number was another.

        Values that the ranks keep, such as residuals, become their mean, as gradients do when they are sent.

        Raises:
            ValueError: The states differ in something that has no mean.
        """
        merged: Dict[str, Any] = states.merged(
            [{name: value for name, value in state.items() if name != "bytes_sent"} for state in saved]
        )
        sent = [state["bytes_sent"] for state in saved if "bytes_sent" in state]  # a state is empty before a step
        return {**merged, "bytes_sent": np.int64(np.mean(sent))} if sent else merged

    def _build(self, variables: List[Any], slots: List[Any]) -> None:  # noqa: B027 - Dense has none
        """Make variables with `self._state.variable`."""

    def _compare(self, gradients: Sequence[Gradient]) -> None:
        """Warn if this rank's gradients are those of all other ranks."""
        self._sameness.look(gradients)

    @abstractmethod
    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        """Do the work of `step`, once everything is built."""

    def _synchronise(self, variables: List[Any]) -> None:  # noqa: B027 - most schemes keep them the same at all times
        """Do the work of `synchronise`, once everything is built."""

    def _count(self, size: Any) -> None:
        """Add an int or a tensor to the number of bytes sent."""
        self._sent.assign_add(tf.cast(size, tf.int64))


def densified(gradients: Sequence[Gradient]) -> List[Optional[tf.Tensor]]:
    """Return the gradients with sparse ones (`IndexedSlices`, of embeddings) made dense, so that they can be summed."""
    return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


class Dense(Scheme):
    """Plain Horovod: the mean of every gradient over all ranks, by one allreduce each, which Horovod fuses.

    Each of N ranks sends 2(N-1)/N of 4 bytes for every parameter. `--fusion-threshold-mb` of `horovodrun` sets how much
    Horovod fuses.

    Args:
        op: Horovod's reduction: "Average", or "Adasum", which adds orthogonal gradients and averages parallel ones
            (Maleki 2020); it needs a Horovod built with MPI, and a power of two as the number of ranks.
        name: As for every scheme.

    Raises:
        ValueError: `op` is another reduction.
    """

    def __init__(self, op: str = "Average", *, name: str = "gradient") -> None:
        super().__init__(name)
        if op not in ("Average", "Adasum"):
            raise ValueError(f'op={op!r}: gradients are reduced by "Average" or by "Adasum".')
        self.op = op

    def _build(self, variables: List[Any], slots: List[Any]) -> None:  # noqa: B027 - Dense has none
        ranks = horovod.size()
        if self.op == "Adasum" and ranks > 1 and (ranks & (ranks - 1) or not horovod.has_adasum()):
            raise ValueError(
                f"Adasum needs a Horovod built with MPI and a power of two of ranks; here are {ranks}, and Horovod was "
                f"built {'with' if horovod.has_adasum() else 'without'} MPI. Use Dense(), or install Horovod "
                "again with HOROVOD_WITH_MPI=1 and launch by MPI."
            )

    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        dense = densified(gradients)
        apply(
            [
                None if gradient is None else horovod.allreduce(gradient, f"{self.name}_{index}", self.op)
                for index, gradient in enumerate(dense)
            ]
        )
        self._count(sum(allreduce_bytes(bytes_of(gradient)) for gradient in dense if gradient is not None))


def bytes_of(tensor: tf.Tensor) -> int:
    """Return the size in bytes of a tensor whose shape is known statically."""
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def whole(name: str, number: int) -> int:
    """Return the number if it is whole and at least 1; raise ValueError otherwise."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name}={number!r}: a whole number, at least 1.")
    return number
