"""Operations on large tensors that XLA compiles into one loop, where TensorFlow passes over memory for each."""

from __future__ import annotations

from typing import Any, Callable

import tensorflow as tf

WORTH_COMPILING = 100_000  # values from which on to compile, which takes a tenth of a second for each shape, once


def one_pass(function: Callable[..., tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Wrap a function of tensors so that it is compiled if the keyword argument `size`, a number of values, is large.

    Only for functions that compare, select and move values: XLA rounds a multiplication followed by an addition once
    or twice, depending on the processor, and all ranks must decode alike.
    """
    compiled = tf.function(function, jit_compile=True)

    def call(*arguments: Any, size: int) -> tf.Tensor:
        return (compiled if size >= WORTH_COMPILING else function)(*arguments)

    return call
