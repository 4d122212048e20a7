"""A few bits for each value, with two numbers for each column of a tensor that say what they stand for.

A column is one position of the last axis: what one unit of a layer gets from all units before it.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import tensorflow as tf

from .collectives import TwoPhase
from .compressors import Compressor, Payload


class OneBit(Compressor):
    """CNTK's one bit a value (Seide 2014): whether it is at least 0, and for each column the means of both kinds.

    Needs error feedback. Sends about an eighth of a byte for each value and 8 bytes for each column.
    """

    collective = TwoPhase

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Bits, and for each column the mean of what is below 0 and of what is not; 0 where there is nothing."""
        matrix = _columns(tensor)
        above = matrix >= 0
        count = tf.reduce_sum(tf.cast(above, tf.float32), 0)
        rows = tf.cast(tf.shape(matrix)[0], tf.float32)
        low = tf.math.divide_no_nan(tf.reduce_sum(tf.minimum(matrix, 0), 0), rows - count)
        high = tf.math.divide_no_nan(tf.reduce_sum(tf.maximum(matrix, 0), 0), count)
        return packed(tf.cast(above, tf.uint8), 1), low, high

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """One of its column's two means for each value."""
        bits, low, high = payload
        return _between(bits, 1, low, high - low, shape)


class KBit(Compressor):
    """2, 4 or 8 bits a value: which of evenly spaced levels, between each column's least and largest value, is nearest.

    32 bits send values as they are, for comparison.

    Args:
        bits: 2, 4, 8 or 32; for one bit there is `OneBit`.

    Raises:
        ValueError: Another number.
    """

    collective = TwoPhase

    def __init__(self, bits: int) -> None:
        if bits not in (2, 4, 8, 32):
            raise ValueError(f"KBit({bits!r}): 2, 4, 8 or 32 bits; for one there is OneBit().")
        self.bits = bits

    def compress(self, tensor: tf.Tensor) -> Payload:
        """Levels, and for each column the lowest and the distance between two."""
        if self.bits == 32:
            return (tensor,)
        matrix = _columns(tensor)
        low = tf.reduce_min(matrix, 0)
        step = (tf.reduce_max(matrix, 0) - low) / (2**self.bits - 1)
        levels = tf.round(tf.math.divide_no_nan(matrix - low, step))
        return packed(tf.cast(levels, tf.uint8), self.bits), low, step

    def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor:
        """The level of each value."""
        if self.bits == 32:
            return tf.reshape(payload[0], shape)
        levels, low, step = payload
        return _between(levels, self.bits, low, step, shape)


def packed(codes: tf.Tensor, bits: int) -> tf.Tensor:
    """Codes of 1, 2, 4 or 8 bits, which are a uint8 each, put together into whole bytes; the last is filled with 0.

    The first code of a byte is in its lowest bits.
    """
    in_byte = 8 // bits
    flat = tf.reshape(codes, [-1])
    rows = tf.reshape(tf.pad(flat, [[0, -flat.shape[0] % in_byte]]), [-1, in_byte])
    return sum((rows[:, place] * 2 ** (bits * place) for place in range(1, in_byte)), rows[:, 0])


def unpacked(data: tf.Tensor, bits: int, size: int) -> tf.Tensor:
    """The first `size` codes in packed bytes, as float32: for each byte what a table of all bytes says."""
    in_byte = 8 // bits
    table = (np.arange(256)[:, None] >> (bits * np.arange(in_byte))) & (2**bits - 1)
    return tf.reshape(tf.gather(tf.constant(table, tf.float32), tf.cast(data, tf.int32)), [-1])[:size]


def _columns(tensor: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tensor, [-1, tensor.shape[-1]])


def _between(data: tf.Tensor, bits: int, low: tf.Tensor, step: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    codes = unpacked(data, bits, int(np.prod(shape, dtype=int)))
    return tf.reshape(tf.reshape(codes, [-1, shape[-1]]) * step + low, shape)
