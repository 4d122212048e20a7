"""Measure what one step of each communication scheme costs on one core, without a network.

The gradients are those of an MLP with 10 million parameters. The process acts as rank 0 of 2, and the other rank is
simulated: it sends what this one sends. So everything is measured that a rank does between computing its gradients and
applying their mean, except for sending them. Plain Horovod (dense) has nothing to do there. TensorFlow has one thread,
and malloc the settings that it has in Muster's workers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from muster.agent.environment import HUGE_PAGES

from benchmarks.measuring import Figure, Target, fresh, main

SHAPES = ((784, 2048), (2048, 2048), (2048, 2048), (2048, 10))
RANKS = 2
TARGETS = {"TopK(0.01)": 60, "OneBit()": 120}  # milliseconds
SCHEMES = ("FP16()", "TopK(0.01)", "TopK(0.001)", "Threshold(2.5)", "OneBit()", "KBit(4)", "KBit(8)")


def measure(quick: bool) -> list[Figure]:
    """Measure many steps of each scheme, each scheme in a new process."""
    os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="2", GLIBC_TUNABLES=HUGE_PAGES)
    megabytes = 4 * sum(rows * columns for rows, columns in SHAPES) / 1e6
    figures = []
    for scheme in SCHEMES:
        milliseconds = fresh(step_milliseconds, scheme, 3 if quick else 30)
        target = Target(TARGETS[scheme], "ms") if scheme in TARGETS else None
        figures.append(
            Figure(f"a step's coding, {scheme}, 10 million parameters, one core", "ms", milliseconds, target=target)
        )
        figures.append(Figure(f"coding, {scheme}", "ms/MB", [value / megabytes for value in milliseconds]))
    return figures


def step_milliseconds(scheme: str, steps: int) -> list[float]:
    """Return the milliseconds of each of some steps of a scheme, on one core."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import tensorflow as tf
    from muster.training import communication

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    beside_an_equal()
    reducer = communication.as_scheme(eval(scheme, vars(communication)))
    gradients = [tf.random.stateless_normal(shape, (index, 0)) for index, shape in enumerate(SHAPES)]
    variables = [tf.Variable(gradient) for gradient in gradients]

    def apply(means: list[Any]) -> None:
        for variable, mean in zip(variables, means, strict=True):
            variable.assign(mean)

    step: Callable[..., Any] = tf.function(lambda *own: reducer.step(own, variables, apply))
    for _ in range(3):
        step(*gradients)
    return [timed(step, gradients) for _ in range(steps)]


def timed(step: Callable[..., Any], gradients: list[Any]) -> float:
    began = time.perf_counter()
    step(*gradients)
    return 1e3 * (time.perf_counter() - began)


def beside_an_equal() -> None:
    """Replace Horovod's collectives: they return what they would if the other rank sent the same data as this one."""
    import tensorflow as tf
    from muster.training import horovod

    def alltoall(tensor: Any, splits: Sequence[int], name: str) -> Any:
        return tf.tile(tensor[: splits[0]], [RANKS])

    horovod.size = lambda: RANKS
    horovod.allreduce = lambda tensor, name, op="Average": tensor if op == "Average" else tensor + tensor
    horovod.allgather = lambda tensor, name: tf.concat([tensor] * RANKS, 0)
    horovod.alltoall = alltoall


if __name__ == "__main__":
    main("codec_cost")
