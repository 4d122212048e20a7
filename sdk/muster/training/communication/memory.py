"""Memories: they keep the part of a tensor that was not sent, from step to step, so that it is not lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Sequence

import numpy as np
import tensorflow as tf

from .scheme import State


class Memory(ABC):
    """The memory for one tensor.

    Args:
        state: The state that its variables are added to, so that they are saved.
        name: Prefix of their names.
        shape: Shape of the tensor.
    """

    @abstractmethod
    def __init__(self, state: State, name: str, shape: Sequence[int]) -> None: ...

    @abstractmethod
    def compensate(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the tensor to send in place of this one."""

    @abstractmethod
    def remember(self, left_out: tf.Tensor) -> None:
        """Keep the part of the tensor from `compensate` that was not sent."""


class ErrorFeedback(Memory):
    """Adds what was left out so far to the next tensor to send (Seide 2014): `v = g + e; e = v - D(C(v))`."""

    def __init__(self, state: State, name: str, shape: Sequence[int]) -> None:
        self.residual = state.variable(f"{name}/residual", np.zeros(shape, np.float32))

    def compensate(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the sum of the tensor and the residual."""
        return tensor + self.residual

    def remember(self, left_out: tf.Tensor) -> None:
        """Keep what was left out as the new residual."""
        self.residual.assign(left_out)


class NoMemory(Memory):
    """Forgets what was left out: for unbiased codes."""

    def __init__(self, state: State, name: str, shape: Sequence[int]) -> None:
        pass

    def compensate(self, tensor: tf.Tensor) -> tf.Tensor:
        """Return the tensor itself."""
        return tensor

    def remember(self, left_out: tf.Tensor) -> None:
        """Ignore what was left out."""
