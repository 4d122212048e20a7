"""The gradients that all ranks of rank_program.py train on, and what must come of them, in NumPy."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SHAPES = [(40, 50), (50,), (6, 5, 48), (30, 3)]  # the first and the third are compressed
COMPRESSED = [0, 2]
RATE = 0.125
BATCH = 8
BLOCK = 3  # steps
CONSERVED_STEPS = 4  # after which nothing may be lost


def gradients(rank: int, step: int) -> list[Array]:
    """Other ones on every rank, in every step."""
    random = np.random.RandomState(1000 * rank + step)
    return [random.normal(size=shape).astype("float32") for shape in SHAPES]


def block_momentum(size: int, eta: float, zeta: float, *, nesterov: bool, reset: bool, momentum: float) -> list[Array]:
    """The weights after three blocks, as the formula says it."""
    common = [np.ones(shape) for shape in SHAPES]
    filtered = [np.zeros(shape) for shape in SHAPES]
    moments = [[np.zeros(shape) for shape in SHAPES] for _ in range(size)]
    for block in range(3):
        models = [[weights.copy() for weights in common] for _ in range(size)]
        for rank, model in enumerate(models):
            for step in range(block * BLOCK, (block + 1) * BLOCK):
                for weights, moment, gradient in zip(model, moments[rank], gradients(rank, step), strict=True):
                    moment[...] = momentum * moment + gradient
                    weights -= RATE * moment
            if reset:
                for moment in moments[rank]:
                    moment[...] = 0
        for index, weights in enumerate(common):
            moved = sum(weights - model[index] for model in models)
            filtered[index] = eta * filtered[index] + (1 - eta) * zeta * moved
            common[index] = weights - filtered[index] - (eta * filtered[index] if nesterov else 0)
    return common


def momentum_of(time_constant: float, size: int) -> float:
    return math.exp(-BLOCK * BATCH / (time_constant / size))
