"""LeNet on MNIST with MultiWorkerMirroredStrategy: every worker trains on its share, and TensorFlow adds the gradients.

    run_cluster(n_workers=2, strategy="multi_worker", worker_script="worker_scripts/mnist_multi_worker.py")
    python mnist_multi_worker.py                                     alone, in one process

This script runs on every worker, with the cluster in TF_CONFIG. The loop is written out, because Keras 3's `model.fit`
fails under this strategy as soon as there is a second worker.
"""

import argparse
import hashlib
from typing import Any

import keras
import mnist_data
import numpy as np
import tensorflow as tf
from muster.training import report

LEARNING_RATE = 0.001  # for one replica; n replicas take n times as many examples in a step


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="times that the data is gone through (default: 6)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in one step of one worker (default: 32)")
    mnist_data.add_arguments(parser)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()  # first of all: this starts the server of this worker
    train, (x_test, y_test) = mnist_data.load(arguments.data, arguments.limit_train)
    replicas = strategy.num_replicas_in_sync
    batch_size = replicas * arguments.batch_size
    steps = len(train[1]) // batch_size
    if not steps:
        raise SystemExit(f"{len(train[1])} examples are fewer than one batch for each of {replicas} replicas.")

    with strategy.scope():
        model = lenet()
        optimizer = keras.optimizers.Adam(LEARNING_RATE * replicas)
        optimizer.build(model.trainable_variables)  # variables can be made here, but not in a step
    step = training_step(strategy, model, optimizer, batch_size)
    shares = iter(strategy.experimental_distribute_dataset(batches(train, batch_size)))
    for epoch in range(1, arguments.epochs + 1):
        for number in range(1, steps + 1):
            loss = step(*next(shares))
            examples = ((epoch - 1) * steps + number) * arguments.batch_size
            report(number, steps=steps, epoch=epoch, epochs=arguments.epochs, examples=examples, loss=loss)

    accuracy = float(np.mean(np.argmax(model(x_test), axis=1) == y_test))
    report(test_accuracy=accuracy)
    print(f"weights {digest(model)}", flush=True)  # the same on every worker
    if strategy.cluster_resolver.task_id in (None, 0):
        print(f"test accuracy {accuracy:.4f}", flush=True)


def lenet() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def batches(train: mnist_data.Split, size: int) -> tf.data.Dataset:
    """Return endless batches for all workers together, the same on each; TensorFlow takes each worker's part."""
    examples = tf.data.Dataset.from_tensor_slices(train).shuffle(len(train[1]), seed=0)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return examples.batch(size, drop_remainder=True).repeat().with_options(options)


def training_step(
    strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.optimizers.Optimizer, batch_size: int
) -> Any:
    """Return the step of every worker on its part of the next batch; the step returns the loss of the whole batch."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            loss = tf.reduce_sum(losses) / batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))  # adds them up over all workers first
        return loss

    return tf.function(
        lambda images, labels: strategy.reduce("SUM", strategy.run(step, args=(images, labels)), axis=None)
    )


def digest(model: keras.Model) -> str:
    """Return a short hash of a model's weights, which two models share only if all their weights are the same."""
    return hashlib.sha256(b"".join(weight.tobytes() for weight in model.get_weights())).hexdigest()[:12]


if __name__ == "__main__":
    main()
