"""The base of all schemes: one step between this rank's gradients and the variables, and a state that can be saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np
import tensorflow as tf

from .. import horovod, states

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
    """The variables of a scheme by name. Values that are loaded before there are variables wait for them."""

    def __init__(self) -> None:
        self._variables: Dict[str, tf.Variable] = {}
        self._is_complete = False
        self._waiting: Dict[str, Any] = {}

    def variable(self, name: str, initial: Any) -> tf.Variable:
        """A new variable, of the type and shape of its initial value."""
        initial = np.asarray(initial)
        self._variables[name] = tf.Variable(initial, trainable=False, dtype=initial.dtype, name=name.replace("/", "_"))
        return self._variables[name]

    def complete(self) -> None:
        """Take all variables for made: give them the values that wait for them."""
        self._is_complete = True
        if self._waiting:  # the state of a scheme that has not taken a step is empty
            self.load(self._waiting)

    def values(self) -> Dict[str, Any]:
        """Return the value of every variable, or what waits for it."""
        if not self._is_complete:
            return dict(self._waiting)
        return {name: variable.numpy() for name, variable in self._variables.items()}

    def load(self, values: Mapping[str, Any]) -> None:
        """Set all variables, or keep the values for them; ValueError, and nothing set, where they are of others."""
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
    """A way to keep the ranks' models together: what they send, when, and what the optimizer gets to apply.

    In `model.fit` and wherever a Keras 3 optimizer is at hand, `DistributedOptimizer(optimizer, compression=scheme)`
    does all of this. In a loop without one::

        scheme.build(variables)
        scheme.step(gradients, variables, apply=lambda gradients: optimizer.apply_gradients(zip(gradients, variables)))

    Every rank must call `step` with the same variables in the same order, equally often. It works inside `tf.function`
    and outside.

    Args:
        name: Distinguishes the collectives of schemes that may be at work at the same time.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.built = False
        self._state = State()

    def build(self, variables: Sequence[Any], slots: Sequence[Any] = ()) -> None:
        """Make the scheme's own variables; calling it again does nothing. `step` does it where nobody did.

        Args:
            variables: Those that `step` will be called with.
            slots: What the optimizer remembers of gradients before (its momentum), for schemes that reset it.

        Raises:
            ValueError: The scheme does not suit these variables, or state that was loaded is of something else.
        """
        if self.built:
            return
        with tf.init_scope():  # so that variables are made once, whoever is being traced
            self._sent = self._state.variable("bytes_sent", np.int64(0))
            self._build(list(variables), list(slots))
            self._state.complete()
        self.built = True

    @tf.autograph.experimental.do_not_convert
    def step(self, gradients: Sequence[Gradient], variables: Sequence[Any], apply: Apply) -> None:
        """One training step: communicate, and have gradients applied.

        Args:
            gradients: This rank's, one for each variable; None for a variable without part in the loss.
            variables: What they belong to.
            apply: Called with the gradients to apply; not called in a step that all ranks leave out.
        """
        self.build(variables)
        self._step(list(gradients), list(variables), apply)

    @property
    def bytes_sent(self) -> int:
        """Bytes that this rank has sent for training so far; not for use inside `tf.function`.

        Counted from the sizes of what is handed to the collectives and from the algorithms behind them, ring
        allreduce and allgather; what the network's protocols add to it is left out.
        """
        return int(self._sent.numpy()) if self.built else 0

    @tf.autograph.experimental.do_not_convert
    def synchronise(self, variables: Sequence[Any]) -> None:
        """Make the variables the same on all ranks, where the scheme lets them drift apart: before they are saved."""
        self.build(variables)
        self._synchronise(list(variables))

    def follow(self, variables: Sequence[Any]) -> None:  # noqa: B027 - most schemes do not remember any
        """Go on from variables that were changed without this scheme, on all ranks alike."""

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
        """A state for this rank out of those of all ranks that saved theirs, where they were more or fewer than now.

        What ranks remember becomes its mean, as gradients do when they are sent at last.

        Raises:
            ValueError: They differ in something that has no mean.
        """
        merged: Dict[str, Any] = states.merged(
            [{name: value for name, value in state.items() if name != "bytes_sent"} for state in saved]
        )
        sent = [state["bytes_sent"] for state in saved if "bytes_sent" in state]  # nothing is, before the first step
        return {**merged, "bytes_sent": np.int64(np.mean(sent))} if sent else merged

    def _build(self, variables: List[Any], slots: List[Any]) -> None:  # noqa: B027 - Dense has none
        """Make variables with `self._state.variable`."""

    @abstractmethod
    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        """Do the work of `step`, once everything is built."""

    def _synchronise(self, variables: List[Any]) -> None:  # noqa: B027 - most schemes keep them the same at all times
        """Do the work of `synchronise`, once everything is built."""

    def _count(self, size: Any) -> None:
        """Add to the bytes sent, an int or a tensor."""
        self._sent.assign_add(tf.cast(size, tf.int64))


def densified(gradients: Sequence[Gradient]) -> List[Optional[tf.Tensor]]:
    """The gradients with sparse ones (`IndexedSlices`, of embeddings) made dense, so that they can be summed."""
    return [None if gradient is None else tf.convert_to_tensor(gradient) for gradient in gradients]


class Dense(Scheme):
    """Plain Horovod: the mean of every gradient over all ranks, by one allreduce each, which Horovod fuses.

    Sends 2(N-1)/N of 4 bytes for every parameter. How much Horovod fuses is for `horovodrun` to say
    (`--fusion-threshold-mb`).

    Args:
        op: Horovod's reduction: "Average", or "Adasum", which adds what is orthogonal and averages what is parallel
            (Maleki 2020); that needs a Horovod built with MPI and a power of two of ranks.
        name: As for every scheme.

    Raises:
        ValueError: Another reduction.
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
    """The size of a tensor whose shape is known before it is computed."""
    return int(tensor.shape.num_elements() * tensor.dtype.size)


def whole(name: str, number: int) -> int:
    """The number, if it is whole and at least 1; ValueError otherwise."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError(f"{name}={number!r}: a whole number, at least 1.")
    return number
