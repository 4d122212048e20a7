"""The ranks of ``network_schemes``: they time each communication scheme in turn, or train with it to the end.

    python network_ranks.py time FILE LAYERS TURNS STEPS SCHEME ...
    python network_ranks.py learn FILE SEEDS EPOCHS SCHEME ...

Rank 0 writes JSON to FILE: for each scheme a list with an entry for each turn or seed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from muster.training import communication, horovod, partition

from benchmarks.network_schemes import BATCH_SIZE, DIGITS_BATCH_SIZE, PERIOD, PERIODIC, SCHEMES, WIDTH

# Dense training tolerates more noise, such as half the batch at a rate of 0.05; but there compressed gradients, part of
# which are old, lose more than half a point of accuracy.
LEARNING_RATE, MOMENTUM = 0.03, 0.9
HIDDEN = (128, 128, 128)
FOLDS = 3
COUNTER = Path("/sys/class/net/eth0/statistics/tx_bytes")


class Training:
    """A network of dense layers with stochastic gradient descent, whose ranks communicate by one scheme.

    Args:
        name: name of the scheme.
        widths: widths of the layers, from the inputs to the outputs.
        seed: seed of the initial weights.
    """

    def __init__(self, name: str, widths: Sequence[int], seed: int = 0) -> None:
        random = np.random.RandomState(seed)
        self.layers = []
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            kernel = random.normal(scale=(2 / inputs) ** 0.5, size=(inputs, outputs))
            self.layers.append((tf.Variable(kernel, dtype=tf.float32), tf.Variable(tf.zeros(outputs))))
        self.variables = [variable for layer in self.layers for variable in layer]
        self.velocities = [tf.Variable(tf.zeros_like(variable)) for variable in self.variables]
        self.scheme = SCHEMES[name](communication, f"scheme_{list(SCHEMES).index(name)}_{seed}")
        self.scheme.build(self.variables, self.velocities)
        self.step = tf.function(self._step, reduce_retracing=True)

    def logits(self, x: tf.Tensor) -> tf.Tensor:
        for kernel, bias in self.layers[:-1]:
            x = tf.nn.relu(x @ kernel + bias)
        kernel, bias = self.layers[-1]
        return x @ kernel + bias

    def _step(self, x: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.logits(x))
            loss = tf.reduce_mean(loss)

        def apply(gradients: Sequence[tf.Tensor]) -> None:
            for variable, velocity, gradient in zip(self.variables, self.velocities, gradients, strict=True):
                tf.raw_ops.ResourceApplyMomentum(  # in one pass over memory
                    var=variable.handle, accum=velocity.handle, lr=rate, grad=gradient, momentum=MOMENTUM
                )

        self.scheme.step(tape.gradient(loss, self.variables), self.variables, apply)


def time_schemes(names: Sequence[str], layers: int, turns: int, steps: int) -> dict[str, list[dict[str, float]]]:
    """Return the seconds and bytes of a step in each turn, by scheme; every second turn is in reverse order."""
    random = np.random.RandomState(horovod.rank())
    x = tf.constant(random.normal(size=(BATCH_SIZE, WIDTH)), tf.float32)
    labels, rate = tf.constant(random.randint(0, WIDTH, BATCH_SIZE)), tf.constant(0.001)
    trainings = {name: Training(name, [WIDTH] * (layers + 1)) for name in names}
    for training in trainings.values():
        for _ in range(2):  # so that tracing, allocation and negotiation, which happen once, are not timed
            training.step(x, labels, rate)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for turn in range(turns):
        for name in names if turn % 2 == 0 else reversed(names):
            training, count = trainings[name], PERIOD if name in PERIODIC else steps
            horovod.allreduce(tf.zeros(1), name="together")
            before, sent, started = counted(), training.scheme.bytes_sent, time.perf_counter()
            for _ in range(count):
                training.step(x, labels, rate)
            seconds = time.perf_counter() - started
            horovod.allreduce(tf.zeros(1), name="together")  # so that all that was sent has arrived, and is counted
            taken[name].append(
                {
                    "seconds": seconds / count,
                    "bytes": (training.scheme.bytes_sent - sent) / count,
                    "counted": (counted() - before) / count,
                }
            )
    return taken


def counted() -> int:
    """Return the bytes that this host has sent, as counted by its network interface."""
    return int(COUNTER.read_text())


def learn(names: Sequence[str], seeds: int, epochs: int) -> dict[str, list[dict[str, float]]]:
    """Return the accuracy with each seed, by scheme, on a third of scikit-learn's 1,797 digits, not trained on."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    examples, labels = (digits.data / 16).astype(np.float32), digits.target.astype(np.int64)
    folds = np.random.RandomState(0).permutation(len(labels)) % FOLDS
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for seed in range(seeds):
        train, test = folds != seed % FOLDS, folds == seed % FOLDS
        for name in names:
            training = Training(name, [examples.shape[1], *HIDDEN, 10], seed)
            for epoch in range(epochs):
                rate = tf.constant(LEARNING_RATE * (1 - epoch / epochs), tf.float32)
                shuffled: dict[str, Any] = {"batch_size": DIGITS_BATCH_SIZE, "epoch": epoch, "seed": seed}
                for x, y in partition.batches(examples[train], labels[train], **shuffled):
                    training.step(tf.constant(x), tf.constant(y), rate)
            training.scheme.synchronise(training.variables)
            right = tf.argmax(training.logits(examples[test]), 1).numpy() == labels[test]
            taken[name].append({"accuracy": float(right.mean())})
    return taken


def main() -> None:
    what, out, *rest = sys.argv[1:]
    numbers, names = [int(text) for text in rest if text.isdecimal()], [text for text in rest if not text.isdecimal()]
    horovod.init()
    measured = (time_schemes if what == "time" else learn)(names, *numbers)
    if horovod.rank() == 0:
        Path(out).write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
