"""Quantization: a few bits for each value, and two numbers for each column of a tensor to decode them.

A column is one position of the last axis: in a dense layer, the weights of one unit's inputs.
"""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np
import tensorflow as tf

from .collectives import Payload, TwoPhase
from .compiled import one_pass
from .compressors import Compressor


class OneBit(Compressor):
    """A code of one bit per value, its sign, and two means per column (1-bit SGD of CNTK; Seide 2014).

    A value is decoded as the mean of those in its column that have the same sign; 0 counts as positive. It needs error
    feedback. Each value takes an eighth of a byte, and each column 8 bytes more.
    """

    collective = TwoPhase
    columnar = True

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Return bits, and for each column the means of values below 0 and of the others; 0 if there are none."""
        matrix = _columns(tensor)
        above = matrix >= 0
        count = _column_sums(tf.cast(above, tf.float32))
        low = tf.math.divide_no_nan(_column_sums(tf.minimum(matrix, 0)), matrix.shape[0] - count)
        high = tf.math.divide_no_nan(_column_sums(tf.maximum(matrix, 0)), count)
        return packed(tf.cast(above, tf.uint8), 1), low, high

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Return for each value one of the two means of its column."""
        bits, low, high = payload
        return tf.reshape(_chosen(bits, low, high, _rows(shape), size=np.prod(shape, dtype=int)), shape)


class KBit(Compressor):
    """2, 4 or 8 bits per value: the nearest of evenly spaced levels from a column's least to its largest value.

    32 bits send values as they are, for comparison.

    Args:
        bits: 2, 4, 8 or 32; for one bit there is `OneBit`.

    Raises:
        ValueError: `bits` is another number.
    """

    collective = TwoPhase
    columnar = True

    def __init__(self, bits: int) -> None:
        if bits not in (2, 4, 8, 32):
            raise ValueError(f"KBit({bits!r}): 2, 4, 8 or 32 bits; for one there is OneBit().")
        self.bits = bits

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Return the levels, and for each column the lowest level and the distance between two."""
        if self.bits == 32:
            return (tensor,)
        matrix = _columns(tensor)
        low = tf.reduce_min(matrix, 0)
        step = (tf.reduce_max(matrix, 0) - low) / (2**self.bits - 1)
        levels = tf.round(tf.math.divide_no_nan(matrix - low, step))
        return packed(tf.cast(levels, tf.uint8), self.bits), low, step

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """Return the level of each value."""
        if self.bits == 32:
            return tf.reshape(payload[0], shape)
        levels, low, step = payload
        codes = tf.cast(unpacked(levels, self.bits, _rows(shape)), tf.float32)
        return tf.reshape(codes * step + low, shape)


def packed(codes: tf.Tensor, bits: int) -> tf.Tensor:
    """Pack a matrix of codes of ``bits`` (1, 2, 4 or 8) bits, one code in each uint8: 8 / ``bits`` codes into a byte.

    The codes of a byte are of consecutive rows, the first in the lowest bits; missing rows count as 0.
    """
    if bits == 8:
        return codes
    shifts = _shifts(bits)
    rows = tf.pad(codes, [[0, -codes.shape[0] % len(shifts)], [0, 0]])
    groups = tf.reshape(rows, [rows.shape[0] // len(shifts), len(shifts), codes.shape[1]])
    return tf.add_n(tf.unstack(tf.bitwise.left_shift(groups, shifts), axis=1))


def unpacked(data: tf.Tensor, bits: int, rows: int) -> tf.Tensor:
    """Return the first `rows` rows of packed codes, one code in each uint8."""
    if bits == 8:
        return data
    shifts = _shifts(bits)
    groups = tf.bitwise.right_shift(tf.expand_dims(data, 1), shifts) & np.uint8(2**bits - 1)
    return tf.reshape(groups, [data.shape[0] * len(shifts), data.shape[1]])[:rows]


def _shifts(bits: int) -> np.ndarray[Any, Any]:
    """Return the bit at which each code of a byte begins, as a column."""
    return np.arange(0, 8, bits, dtype=np.uint8)[:, np.newaxis]


def _columns(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [_rows(tensor.shape), tensor.shape[-1]])


def _rows(shape: Sequence[int]) -> int:
    """Return the number of rows; reshape cannot infer it (-1) without columns, as in the stripe of some ranks."""
    return int(np.prod(shape[:-1], dtype=int))


def _column_sums(matrix: tf.Tensor) -> tf.Tensor:
    """Return the sums of the columns, by a product with ones, which takes half the time of `tf.reduce_sum`."""
    return tf.linalg.matvec(matrix, tf.ones([matrix.shape[0]]), transpose_a=True)


@one_pass
def _chosen(bits: tf.Tensor, low: tf.Tensor, high: tf.Tensor, rows: int) -> tf.Tensor:
    return tf.where(unpacked(bits, 1, rows) == 1, high, low)
