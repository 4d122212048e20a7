"""Compressors: codes that send a tensor in fewer bytes, and decode it."""

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
    """A code for float32 tensors, made of functions without state that see one rank only.

    A custom compressor implements `compress` and `decompress`; everything else follows from them.

    Attributes:
        collective: The collective that sends the payloads, unless a `Reducer` is given another.
        summable: Whether the sum of payloads is a payload of the sum, so that an allreduce may add them on the way.
        columnar: Whether the last axis of every part of a payload is that of the tensor, and each of its positions is
            encoded separately, so that payloads can be cut and joined by columns.
        ragged: Whether the size of a payload depends on the values, so that ranks send different amounts.
    """

    collective: Type[Collective] = AllGather
    summable = False
    columnar = False
    ragged = False

    @abstractmethod
    def compress(self, tensor: tf.Tensor) -> Payload:
        """Return the tensors to send; of one dimension if their size depends on the values."""

    @abstractmethod
    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Return a tensor of this shape, the payload's approximation of the original."""

    def left_out(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor:
        """Return the difference between a tensor and its payload, decoded."""
        return tensor - self.decompress(payload, tensor.shape)

    def mean(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor:
        """Return the mean of the decoded payloads, added in their order, so that it is the same on every rank."""
        total = self.decompress(payloads[0], shape)
        for payload in payloads[1:]:
            total += self.decompress(payload, shape)
        return total / len(payloads)


class FP16(Compressor):
    """Half precision: half the bytes. Values are clipped to its range; with error feedback the rest is sent later.

    `AllReduce` divides by the number of ranks before values are compressed, so that all partial sums stay in range.
    """

    collective = AllReduce
    summable = True

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Clip to the range that a mean may use, and round."""
        # Below the largest half, 65,504, by more than the rounding errors of partial sums on 150 ranks.
        limit = 60_000 / horovod.size()
        return (tf.cast(tf.clip_by_value(tensor, -limit, limit), tf.float16),)

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Return the rounded values, exactly."""
        return tf.reshape(tf.cast(payload[0], tf.float32), shape)


class Sparse(Compressor):
    """Some of a tensor's values, sent exactly, with their indices; all others count as zero."""

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Return the selected values, and their int32 indices in the flat tensor."""
        return self.select(tf.reshape(tensor, [-1]))

    @abstractmethod
    def select(self, values: tf.Tensor) -> Payload:
        """Return the values of a flat tensor to send, and their indices, no index twice."""

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Return zeros except for the values sent."""
        return self.mean([payload], shape)

    def mean(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor:
        """Return the mean of all payloads, added up in one operation."""
        values = tf.concat([values for values, _ in payloads], 0) / len(payloads)
        indices = tf.concat([indices for _, indices in payloads], 0)
        # A GPU adds the values of one position in any order, so that ranks would get different sums. On a CPU this is
        # by far the fastest of TensorFlow's scatter operations.
        with tf.device("CPU:0"):
            dense = tf.math.unsorted_segment_sum(values, indices, np.prod(shape, dtype=int))
        return tf.reshape(dense, shape)


class Largest(Sparse):
    """All values above a magnitude, and the first ones of those equal to it.

    A subclass that selects other values, or sends them differently, must override `left_out`.
    """

    def left_out(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor:
        """Return the tensor with zeros for the values sent, found by magnitude: decoding them takes twice as long."""
        values, indices = payload
        magnitudes = tf.abs(values)
        least = tf.reduce_min(magnitudes)
        last = tf.reduce_max(tf.where(magnitudes == least, indices, -1))
        flat = tf.reshape(tensor, [-1])
        return tf.reshape(_without_largest(flat, least, last, size=flat.shape[0]), tensor.shape)


class TopK(Largest):
    """The values of the largest magnitude: of n values k = ceil(ratio * n).

    Each of N ranks sends N-1 times 8 bytes for each of the k values, which is less than dense only for ratios below
    1/N. With error feedback it is gradient dropping (Aji and Heafield 2017), the ancestor of Deep Gradient Compression.

    Args:
        ratio: Share of the values to send: above 0, at most 1.

    Raises:
        ValueError: The ratio is out of its range.
    """

    def __init__(self, ratio: float) -> None:
        if not 0 < ratio <= 1:
            raise ValueError(f"TopK({ratio!r}): the ratio of values to send is above 0 and at most 1.")
        self.ratio = ratio

    def select(self, values: tf.Tensor) -> Payload:
        """Return exactly k values; of equal ones the first."""
        n = values.shape[0]
        k = math.ceil(self.ratio * n)
        return (values, tf.range(n)) if k == n else largest(values, k)


class Threshold(Largest):
    """All values of at least a given magnitude; their number differs from rank to rank.

    Args:
        threshold: The least magnitude, at least 0.

    Raises:
        ValueError: The threshold is out of its range.
    """

    ragged = True

    def __init__(self, threshold: float) -> None:
        if not 0 <= threshold < math.inf:
            raise ValueError(f"Threshold({threshold!r}): the least magnitude to send is a number, at least 0.")
        self.threshold = float(threshold)  # a NumPy scalar would be a tensor of its own type in compiled code

    def select(self, values: tf.Tensor) -> Payload:
        """Return all values that reach the threshold."""
        return reaching(values, self.threshold)


SAMPLE = 16_384  # values from which a threshold is estimated


def largest(values: tf.Tensor, k: int) -> Payload:
    """Return the k values of the largest magnitude with their indices, in a fraction of the time of `tf.math.top_k`.

    A sample gives a threshold that most probably somewhat more than k values reach; only these are sorted. If fewer
    values or far more reach it (many equal values), all values are sorted.
    """
    n = values.shape[0]
    if n <= SAMPLE:
        return _top(values, tf.range(n), k)
    # Multiples of a large prime are spread over the tensor, whatever the length of its rows.
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
    """Return the k values of the largest magnitude with their indices; of equal ones the first."""
    positions = tf.math.top_k(tf.abs(values), k, sorted=False).indices
    return tf.gather(values, positions), tf.gather(indices, positions)


def reaching(values: tf.Tensor, threshold: Union[tf.Tensor, float]) -> Payload:
    """Return the values whose magnitude is at least `threshold`, with their indices."""
    indices = tf.cast(tf.where(_is_reaching(values, threshold, size=values.shape[0]))[:, 0], tf.int32)
    return tf.gather(values, indices), indices


@one_pass
def _is_reaching(values: tf.Tensor, threshold: Union[tf.Tensor, float]) -> tf.Tensor:
    """Compare each magnitude with a threshold: two comparisons need less memory than absolute values."""
    return (values >= threshold) | (values <= -threshold)


@one_pass
def _without_largest(values: tf.Tensor, least: tf.Tensor, last: tf.Tensor) -> tf.Tensor:
    """Return the values with zeros for magnitudes above `least`, and for those equal to it up to index `last`."""
    magnitudes = tf.abs(values)
    is_sent = (magnitudes > least) | ((magnitudes == least) & (tf.range(values.shape[0]) <= last))
    return tf.where(is_sent, 0.0, values)
