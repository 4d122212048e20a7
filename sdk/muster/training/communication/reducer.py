"""The scheme that sends gradients by means of a compressor, a memory and a collective."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

import tensorflow as tf

from .. import horovod
from .collectives import Collective, Exchanged, restriped
from .compressors import Compressor
from .memory import ErrorFeedback, Memory
from .scheme import Apply, Dense, Gradient, Scheme, allreduce_bytes, bytes_of, densified

Compression = Union[Scheme, Compressor, None]

MINIMUM_SIZE = 1_000  # elements below which compression costs more than it saves


class Reducer(Scheme):
    """Sends compressed gradients, and keeps what compression leaves out for later steps.

    Tensors of one dimension or of few elements are sent dense, all in one allreduce. A flag is sent with them, so that
    all ranks skip a step together when a gradient of one of them is not finite; their memories are then unchanged.

    Args:
        compressor: The compressor.
        memory: The class (or another callable) that makes the memory of each tensor; `NoMemory` for none.
        collective: The class of the collective; None for the compressor's default.
        minimum_size: Least number of elements of a tensor that is compressed. A summable compressor compresses all
            tensors, whatever their size.
        name: As for every scheme.

    Raises:
        ValueError: The compressor's payloads cannot go through that collective.
    """

    def __init__(
        self,
        compressor: Compressor,
        *,
        memory: Callable[..., Memory] = ErrorFeedback,
        collective: Optional[Type[Collective]] = None,
        minimum_size: int = MINIMUM_SIZE,
        name: str = "gradient",
    ) -> None:
        super().__init__(name)
        self.compressor = compressor
        self.collective = (collective or compressor.collective)(compressor, f"{name}_compressed")
        self._memory = memory
        self._minimum_size = minimum_size

    def _build(self, variables: List[Any], slots: List[Any]) -> None:
        self._compressed = [index for index, variable in enumerate(variables) if self._is_compressed(variable.shape)]
        shapes = [tuple(variables[index].shape) for index in self._compressed]
        self._memories = [
            self._memory(self._state, f"gradient/{index}", shape) for index, shape in zip(self._compressed, shapes)
        ]
        self.collective.build(shapes, self._memory, self._state)

    def _step(self, gradients: List[Gradient], variables: List[Any], apply: Apply) -> None:
        own = [
            tf.zeros(variable.shape) if gradient is None else tf.cast(gradient, tf.float32)
            for gradient, variable in zip(densified(gradients), variables)
        ]
        small = [index for index in range(len(own)) if index not in self._compressed]
        small_means, finite_everywhere = self._average_dense([own[index] for index in small], all_finite(own))

        def take() -> None:
            tensors = [memory.compensate(own[index]) for memory, index in zip(self._memories, self._compressed)]
            exchange = self.collective.exchange(tensors) if tensors else Exchanged([], [], 0)
            for memory, left_out in zip(self._memories, exchange.left_out):
                memory.remember(left_out)
            self._count(exchange.bytes_sent)
            means = dict(zip([*self._compressed, *small], [*exchange.means, *small_means]))
            apply([None if g is None else tf.cast(means[index], g.dtype) for index, g in enumerate(gradients)])

        tf.cond(finite_everywhere, take, lambda: None)

    def merge_states(self, saved: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
        """Merge states as every scheme does, but join stripes and cut them anew for the present number of ranks."""
        stripes = [name for name in saved[0] if name.startswith("stripe/")]
        merged = super().merge_states([{name: state[name] for name in state if name not in stripes} for state in saved])
        return {**merged, **{name: restriped([state[name] for state in saved]) for name in stripes}}

    def _average_dense(self, tensors: Sequence[tf.Tensor], finite: tf.Tensor) -> Tuple[List[tf.Tensor], tf.Tensor]:
        """Return the means of small tensors, and whether all gradients of all ranks are finite."""
        flag = tf.cast([~finite], tf.float32)
        fused = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors] + [flag], 0)
        mean = horovod.allreduce(fused, f"{self.name}_dense")
        sizes = [tensor.shape.num_elements() for tensor in tensors]
        parts = tf.split(mean, [*sizes, 1])
        means = [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors)]
        self._count(allreduce_bytes(bytes_of(fused)))
        return means, parts[-1][0] == 0

    def _is_compressed(self, shape: Sequence[int]) -> bool:
        elements = tf.TensorShape(shape).num_elements()
        return self.compressor.summable or (len(shape) > 1 and elements >= self._minimum_size)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return whether all values of all tensors, and their sums, are finite: one pass, where `is_finite` takes two."""
    return tf.reduce_all([tf.math.is_finite(tf.reduce_sum(tensor)) for tensor in tensors])


def as_scheme(compression: Compression) -> Scheme:
    """Return the scheme for a `compression` argument: a scheme, a compressor, or None for plain Horovod.

    Raises:
        TypeError: `compression` is none of these.
    """
    if compression is None:
        return Dense()
    if isinstance(compression, Compressor):
        return Reducer(compression)
    if isinstance(compression, Scheme):
        return compression
    raise TypeError(f"compression={compression!r} is neither a compressor, such as TopK(0.01), nor a scheme.")
