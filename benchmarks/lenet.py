"""The script that ``first_step``, ``throughput`` and ``warm_throughput`` train, with Muster and with a bare horovodrun.

It trains LeNet on random digits, so that nothing has to be loaded, and is otherwise like
``worker_scripts/mnist_horovod.py``. Rank 0 writes JSON to a file: ``first_step`` and ``last_step`` (when the first and
the last optimizer step ended, in seconds since the epoch); and over all epochs but the first ``steps_per_second``, and
``cpu_per_step``, the seconds of CPU of all threads of its process.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from muster.training import horovod
from muster.training import keras as distributed

BATCH_SIZE = 32


class Clock(keras.callbacks.Callback):
    """Notes when the first step has ended, and when each epoch begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.first_step: float | None = None
        self.last_step: float | None = None
        self.epochs: list[float] = []  # seconds
        self.cpu: list[float] = []  # the same, of CPU

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._began, self._cpu_began = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.last_step = time.time()
        self.first_step = self.first_step or self.last_step

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append(time.perf_counter() - self._began)
        self.cpu.append(time.process_time() - self._cpu_began)


def lenet() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(512, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )


def random_digits(seed: int, steps: int) -> tf.data.Dataset:
    """Return batches for one epoch, from a pipeline that TensorFlow does not tune.

    One that it tunes, as it makes of arrays, may stand still for up to three seconds when an epoch begins: until the
    tuning's thread wakes up, which waits twice as long each time.
    """
    random = np.random.default_rng(seed)
    examples = random.random((steps * BATCH_SIZE, 28, 28, 1), np.float32)
    labels = random.integers(10, size=len(examples))
    options = tf.data.Options()
    options.autotune.enabled = False
    return tf.data.Dataset.from_tensor_slices((examples, labels)).batch(BATCH_SIZE).with_options(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="file that rank 0 writes to")
    parser.add_argument("--steps", type=int, default=1, help="in an epoch")
    parser.add_argument("--epochs", type=int, default=1)
    arguments = parser.parse_args()

    horovod.init()
    batches = random_digits(horovod.rank(), arguments.steps)
    model = lenet()
    optimizer = distributed.DistributedOptimizer(keras.optimizers.Adam(0.001 * horovod.size()))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"], jit_compile=False)
    clock = Clock()
    callbacks = [*distributed.callbacks(batch_size=BATCH_SIZE), clock]
    model.fit(batches, epochs=arguments.epochs, verbose=0, callbacks=callbacks)

    if horovod.rank() == 0:
        measured = {"first_step": clock.first_step, "last_step": clock.last_step}
        if arguments.epochs > 1:
            steps = arguments.steps * (arguments.epochs - 1)
            measured["steps_per_second"] = steps / sum(clock.epochs[1:])
            measured["cpu_per_step"] = sum(clock.cpu[1:]) / steps
        arguments.out.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
