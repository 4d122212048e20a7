"""The warning that all ranks read the same examples, which their gradients tell before they are averaged."""

from __future__ import annotations

from typing import Any, List, Sequence

import tensorflow as tf

from .. import horovod
from ..progress import warn

MOST = 8  # gradients that are compared, those of the last layers: each costs microseconds in every traced step
STEPS = 3  # in which the gradients must be the same: those of one step may be so by chance, where they are coarse
SAME_EXAMPLES = (
    "reads the same examples as all other ranks, as their gradients say: all do the same work. "
    "muster.training.partition gives each rank its share"
)


class Sameness:
    """Compares the gradients of all ranks in the first steps, and warns if they were the same, to the last bit.

    That costs a small allgather in these steps, and a look at a counter in all later ones.

    Args:
        name: Prefix of the name of its collective.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._left = tf.Variable(STEPS, trainable=False, name=f"{name}_steps_to_compare")

    def look(self, gradients: Sequence[Any]) -> None:
        """Compare the gradients of one step, which this rank has computed and not yet sent."""
        own = [gradient for gradient in gradients if gradient is not None][-MOST:]
        if own and horovod.size() > 1:
            tf.cond(self._left > 0, lambda: self._compare(own), lambda: None)

    def _compare(self, gradients: Sequence[Any]) -> None:
        parts = [part for gradient in gradients for part in _parts(gradient)]
        sums = tf.stack([of_part for part in parts for of_part in (tf.reduce_sum(part), tf.reduce_sum(part * part))])
        of_all = horovod.allgather(sums[None], f"{self._name}_sums")
        # Gradients that are all zero, or overflow, may be so for any examples.
        is_told = tf.reduce_all(tf.math.is_finite(of_all)) & tf.reduce_any(of_all != 0)
        is_same = is_told & tf.reduce_all(of_all == of_all[:1])
        self._left.assign(tf.where(is_same, self._left - 1, -1))
        tf.cond(tf.equal(self._left, 0), _warn, lambda: None)


def _warn() -> None:
    tf.py_function(lambda: warn(SAME_EXAMPLES), [], [])  # in a traced step, too


def _parts(gradient: Any) -> List[tf.Tensor]:
    """Return the numbers of a gradient: of a sparse one also their places."""
    parts = [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]
    return [tf.cast(part, tf.float64) for part in parts]
