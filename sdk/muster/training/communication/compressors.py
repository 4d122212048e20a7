"""Codes for tensors: fewer bytes to send, and what comes back out of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Sequence, Type, Union

import numpy as np
import tensorflow as tf

from .. import horovod
from .collectives import AllGather, AllReduce, Collective, Payload
from .compiled import one_pass


class Compressor(ABC):
    """A code for float32 tensors, made of functions that hold no state and know one rank only.

    One of one's own gives `compress` and `decompress`; everything else follows from them.

    Attributes:
        collective: What payloads travel through unless a `Reducer` is told otherwise.
        summable: Whether the sum of payloads is a payload of the sum, so that an allreduce may add them on the way.
        columnar: Whether the last axis of every part of a payload is that of the tensor, each position of which is
            coded by itself, so that payloads can be cut and joined by columns.
        ragged: Whether the size of a payload depends on the values, so that ranks send different amounts.
    """

    collective: Type[Collective] = AllGather
    summable = False
    columnar = False
    ragged = False

    @abstractmethod
    def compress(self, tensor: tf.Tensor) -> Payload:
        """The tensors to send; of one dimension where their size depends on the values."""

    @abstractmethod
    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """A tensor of this shape, as near to the original as the payload tells."""

    def left_out(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor:
        """Return the part of a tensor that its payload does not tell."""
        return tensor - self.decompress(payload, tensor.shape)

    def mean(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor:
        """The mean of what payloads tell, added in their order, so that it is the same on every rank."""
        total = self.decompress(payloads[0], shape)
        for payload in payloads[1:]:
            total += self.decompress(payload, shape)
        return total / len(payloads)


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
        return self.select(tf.reshape(tensor, [-1]))

    @abstractmethod
    def select(self, values: tf.Tensor) -> Payload:
        """Return the values of a flat tensor to send, and their indices, each once."""

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Zeros but for the values sent."""
        return self.mean([payload], shape)

    def mean(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor:
        """The same values at the same positions added up, all payloads at once."""
        values = tf.concat([values for values, _ in payloads], 0) / len(payloads)
        indices = tf.concat([indices for _, indices in payloads], 0)
        # A GPU adds what goes to the same position in any order, which would differ from rank to rank. And of all of
        # TensorFlow's scatters this is by far the fastest on a CPU.
        with tf.device("CPU:0"):
            dense = tf.math.unsorted_segment_sum(values, indices, np.prod(shape, dtype=int))
        return tf.reshape(dense, shape)


class Largest(Sparse):
    """All values above a magnitude, and of those equal to it the first ones.

    A subclass that selects others, or sends something else of them, has a `left_out` of its own.
    """

    def left_out(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor:
        """Zeros for what is sent, told by magnitude: to decode it and subtract that takes twice as long."""
        values, indices = payload
        magnitudes = tf.abs(values)
        least = tf.reduce_min(magnitudes)
        last = tf.reduce_max(tf.where(magnitudes == least, indices, -1))
        flat = tf.reshape(tensor, [-1])
        return tf.reshape(_without_largest(flat, least, last, size=flat.shape[0]), tensor.shape)


class TopK(Largest):
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

    def select(self, values: tf.Tensor) -> Payload:
        """Exactly k, the first of equal ones."""
        n = values.shape[0]
        k = math.ceil(self.ratio * n)
        return (values, tf.range(n)) if k == n else largest(values, k)


class Threshold(Largest):
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
        self.threshold = float(threshold)  # a NumPy scalar would be a tensor of its own type in compiled code

    def select(self, values: tf.Tensor) -> Payload:
        """All that reach the threshold."""
        return reaching(values, self.threshold)


SAMPLE = 16_384  # values, out of which a threshold is estimated


def largest(values: tf.Tensor, k: int) -> Payload:
    """The k values of the largest magnitude with their indices, in a fraction of the time of `tf.math.top_k`.

    A sample gives a threshold that somewhat more than k values reach, most probably; only these are sorted. Where it is
    fewer or far more (many equal values), all are.
    """
    n = values.shape[0]
    if n <= SAMPLE:
        return _top(values, tf.range(n), k)
    # Multiples of a large prime: spread over the tensor, whatever the length of its rows.
    positions = (np.arange(SAMPLE, dtype=np.int64) * 2_654_435_761 % n).astype(np.int32)
    expected = k * SAMPLE / n
    rank = min(SAMPLE, math.ceil(expected + 4 * math.sqrt(expected) + 1))  # four standard deviations to spare
    threshold = tf.math.top_k(tf.abs(tf.gather(values, positions)), rank).values[-1]
    candidates, indices = reaching(values, threshold)
    found = tf.size(candidates)
    chosen: Payload = tf.cond(
        (found >= k) & (found <= 4 * rank * n // SAMPLE),
        lambda: _top(candidates, indices, k),
        lambda: _top(values, tf.range(n), k),
    )
    return chosen


def _top(values: tf.Tensor, indices: tf.Tensor, k: int) -> Payload:
    """The k values of the largest magnitude, the first of equal ones."""
    positions = tf.math.top_k(tf.abs(values), k, sorted=False).indices
    return tf.gather(values, positions), tf.gather(indices, positions)


def reaching(values: tf.Tensor, threshold: Union[tf.Tensor, float]) -> Payload:
    """The values of at least a magnitude, with their indices."""
    indices = tf.cast(tf.where(_is_reaching(values, threshold, size=values.shape[0]))[:, 0], tf.int32)
    return tf.gather(values, indices), indices


@one_pass
def _is_reaching(values: tf.Tensor, threshold: Union[tf.Tensor, float]) -> tf.Tensor:
    """Two comparisons, which need less memory than absolute values."""
    return (values >= threshold) | (values <= -threshold)


@one_pass
def _without_largest(values: tf.Tensor, least: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Zeros for all above a magnitude, and for those equal to it up to an index."""
    magnitudes = tf.abs(values)
    is_sent = (magnitudes > least) | ((magnitudes == least) & (tf.range(values.shape[0]) <= last))
    return tf.where(is_sent, 0.0, values)
