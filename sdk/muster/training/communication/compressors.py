"""Codes for tensors: fewer bytes to send, and what comes back out of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Sequence, Tuple, Type

import numpy as np
import tensorflow as tf

from .. import horovod
from .collectives import AllGather, AllReduce, Collective

Payload = Tuple[tf.Tensor, ...]


class Compressor(ABC):
    """A code for float32 tensors, made of functions that hold no state and know one rank only.

    One of one's own gives `compress` and `decompress`; everything else follows from them.

    Attributes:
        collective: What payloads travel through unless a `Reducer` is told otherwise.
        summable: Whether the sum of payloads is a payload of the sum, so that an allreduce may add them on the way.
        ragged: Whether the size of a payload depends on the values, so that ranks send different amounts.
    """

    collective: Type[Collective] = AllGather
    summable = False
    ragged = False

    @abstractmethod
    def compress(self, tensor: tf.Tensor) -> Payload:
        """The tensors to send; of one dimension where their size depends on the values."""

    @abstractmethod
    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """A tensor of this shape, as near to the original as the payload tells."""

    def rest(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor:
        """What the payload does not tell about the tensor: the tensor less what is decompressed."""
        return tensor - self.decompress(payload, tensor.shape)

    def total(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor:
        """The sum of what payloads tell, added in their order, so that it is the same on every rank."""
        total = self.decompress(payloads[0], shape)
        for payload in payloads[1:]:
            total += self.decompress(payload, shape)
        return total


class FP16(Compressor):
    """Half precision: half the bytes. Values beyond its range are cut off; with error feedback the rest comes later.

    `AllReduce` divides by the number of ranks before values are compressed, so that the sum on the way stays in range.
    """

    collective = AllReduce
    summable = True

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Clip to the range that a mean may use, and round."""
        # Short of the largest half, 65,504, by more than the rounding of partial sums adds up to on 150 ranks.
        limit = 60_000 / horovod.size()
        return (tf.cast(tf.clip_by_value(tensor, -limit, limit), tf.float16),)

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Exactly what was rounded to."""
        return tf.reshape(tf.cast(payload[0], tf.float32), shape)


class Sparse(Compressor):
    """Some of a tensor's values with their indices; all others count as zero. What is sent is sent exactly."""

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Values, and their int32 indices in the flat tensor."""
        flat = tf.reshape(tensor, [-1])
        indices = self.select(tf.abs(flat))
        return tf.gather(flat, indices), indices

    @abstractmethod
    def select(self, magnitudes: tf.Tensor) -> tf.Tensor:
        """The indices of what to send, each once, out of a flat tensor of absolute values."""

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Zeros but for the values sent."""
        return self.total([payload], shape)

    def rest(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor:
        """The tensor with zeros where it was sent: bit for bit what subtracting gives, in a fraction of the time."""
        values, indices = payload
        flat = tf.reshape(tensor, [-1])
        return tf.reshape(tf.tensor_scatter_nd_update(flat, indices[:, None], tf.zeros_like(values)), tensor.shape)

    def total(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor:
        """One scatter for each rank, because the order within a scatter is not specified where indices repeat."""
        total = tf.zeros([np.prod(shape, dtype=int)])
        for values, indices in payloads:
            total = tf.tensor_scatter_nd_add(total, indices[:, None], values)
        return tf.reshape(total, shape)


class TopK(Sparse):
    """The values of the largest magnitude: of n values k = ceil(ratio * n).

    Sends N-1 times 8 bytes a value, so it is less than dense only for ratios below 1/N. The name that error feedback
    goes by with it is Deep Gradient Compression's ancestor, gradient dropping (Aji and Heafield 2017).

    Args:
        ratio: Above 0, at most 1.

    Raises:
        ValueError: Another ratio.
    """

    def __init__(self, ratio: float) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"TopK({ratio!r}): the ratio of values to send is above 0 and at most 1.")
        self.ratio = ratio

    def select(self, magnitudes: tf.Tensor) -> tf.Tensor:
        """Exactly k, the first of equal ones."""
        n = magnitudes.shape[0]
        k = math.ceil(self.ratio * n)
        if k == n:
            return tf.range(n)
        return _largest(magnitudes, k)


class Threshold(Sparse):
    """All values of at least a given magnitude: as many as there are, which differs from rank to rank.

    Args:
        threshold: At least 0.

    Raises:
        ValueError: Another threshold.
    """

    ragged = True

    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold < math.inf:
            raise ValueError(f"Threshold({threshold!r}): the least magnitude to send is a number, at least 0.")
        self.threshold = threshold

    def select(self, magnitudes: tf.Tensor) -> tf.Tensor:
        """All that reach the threshold, or are no number."""
        return tf.cast(tf.where(~(magnitudes < self.threshold))[:, 0], tf.int32)


SAMPLE = 65_536  # values, out of which a threshold is estimated


def _largest(magnitudes: tf.Tensor, k: int) -> tf.Tensor:
    """The indices of the k largest values, in a fraction of the time of `tf.math.top_k`.

    A sample gives a threshold that somewhat more than k values reach, most probably; only these are sorted. Where it is
    fewer or far more (many equal values), all are.
    """
    n = magnitudes.shape[0]
    if n <= SAMPLE:
        return tf.math.top_k(magnitudes, k, sorted=False).indices
    # Multiples of a large odd number: spread over the tensor, whatever the length of its rows.
    places = (np.arange(SAMPLE, dtype=np.int64) * 2_654_435_761 % n).astype(np.int32)
    expected = k * SAMPLE / n
    reached = min(SAMPLE, math.ceil(expected + 4 * math.sqrt(expected) + 1))  # four standard deviations to spare
    threshold = tf.math.top_k(tf.gather(magnitudes, places), reached).values[-1]
    candidates = tf.cast(tf.where(magnitudes >= threshold)[:, 0], tf.int32)
    found = tf.size(candidates)
    return tf.cond(
        (found >= k) & (found <= 4 * reached * n // SAMPLE),
        lambda: tf.gather(candidates, tf.math.top_k(tf.gather(magnitudes, candidates), k, sorted=False).indices),
        lambda: tf.math.top_k(magnitudes, k, sorted=False).indices,
    )
