"""Program that test_accuracy.py reads: two ranks that learn handwritten digits, with and without a memory.

    python digits_program.py FOLDER

Rank 0 writes FOLDER/accuracies.json: for each scheme the accuracy in percent.
"""

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tensorflow as tf
from muster.training import horovod, partition
from muster.training.communication import Dense, NoMemory, OneBit, Reducer, Scheme, TopK
from sklearn.datasets import load_digits

from tests.training.forked_ranks import Ranks

FOLDS, EPOCHS, BATCH = 3, 5, 32
RATE, MOMENTUM = 0.06, 0.9
WIDTHS = (64, 128, 128, 10)
SCHEMES: dict[str, Callable[[], Scheme]] = {
    "dense": Dense,
    "1 bit": lambda: Reducer(OneBit()),
    "1 bit, no memory": lambda: Reducer(OneBit(), memory=NoMemory),
    "top-k": lambda: Reducer(TopK(0.001)),
    "top-k, no memory": lambda: Reducer(TopK(0.001), memory=NoMemory),
}


class Network:
    """Dense layers, trained by SGD with momentum."""

    def __init__(self, scheme: Scheme) -> None:
        random = np.random.RandomState(0)
        shapes = list(zip(WIDTHS, WIDTHS[1:], strict=False))
        self.kernels = [
            tf.Variable(random.normal(scale=(2 / n) ** 0.5, size=(n, m)).astype("float32")) for n, m in shapes
        ]
        self.moments = [tf.Variable(tf.zeros(shape)) for shape in shapes]
        self.scheme = scheme
        scheme.build(self.kernels)
        self.step = tf.function(self._step, reduce_retracing=True)

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        for kernel in self.kernels[:-1]:
            images = tf.nn.relu(images @ kernel)
        return images @ self.kernels[-1]

    def _step(self, images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.logits(images))
            loss = tf.reduce_mean(losses)

        def apply(means: Sequence[tf.Tensor]) -> None:
            for kernel, moment, mean in zip(self.kernels, self.moments, means, strict=True):
                moment.assign(MOMENTUM * moment + mean)
                kernel.assign_sub(rate * moment)

        self.scheme.step(tape.gradient(loss, self.kernels), self.kernels, apply)


def accuracy(scheme: Scheme) -> float:
    """Percent of a third of all digits, after training on the others."""
    digits = load_digits()
    images, labels = (digits.data / 16).astype("float32"), digits.target
    test = np.random.RandomState(0).permutation(len(labels)) % FOLDS == 0
    network = Network(scheme)
    for epoch in range(EPOCHS):
        rate = tf.constant(RATE * (1 - epoch / EPOCHS), tf.float32)
        for batch in partition.batches(images[~test], labels[~test], batch_size=BATCH, epoch=epoch):
            network.step(*map(tf.constant, batch), rate)
    guesses = tf.argmax(network.logits(images[test]), 1).numpy()
    return 100 * float((guesses == labels[test]).mean())


def learn(folder: Path) -> None:
    tf.get_logger().setLevel("ERROR")  # it wonders at so many functions traced in a row
    found = {name: accuracy(scheme()) for name, scheme in SCHEMES.items()}
    if horovod.rank() == 0:
        (folder / "accuracies.json").write_text(json.dumps(found))


if __name__ == "__main__":
    with Ranks(2, functools.partial(learn, Path(sys.argv[1]))) as ranks:
        assert ranks.wait() == [0, 0]
