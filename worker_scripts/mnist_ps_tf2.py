"""LeNet on MNIST with parameter servers, in TensorFlow 2's style: ParameterServerStrategy and a ClusterCoordinator.

    run_cluster(n_workers=2, n_ps=1, worker_script="worker_scripts/mnist_ps_tf2.py")
    python mnist_ps_tf2.py                                           alone, in one process

This script runs on the chief only, with the cluster in TF_CONFIG; workers and parameter servers are bare TensorFlow
servers, which Muster starts. The variables live on the parameter servers, and the chief hands steps to whichever worker
is free: training is asynchronous. The loop is written out, because Keras 3's `model.fit` refuses this strategy.
"""

import argparse
import os
from typing import Any, Callable, Tuple

import keras
import mnist_data
import tensorflow as tf
from muster.training import report

# A stale gradient is applied as it is: the rate must suit several asynchronous workers, and Adam bounds every step.
LEARNING_RATE = 0.001
STEPS_AT_ONCE = 10  # handed out before the chief waits for all of them, to look at the loss


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--epochs", type=int, default=10, help="times that the workers together go through the data (default: 10)"
    )
    parser.add_argument("--steps", type=int, help="steps of all workers together, instead of epochs")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in one step (default: 32)")
    mnist_data.add_arguments(parser)
    return parser.parse_args()


class OneProcess:
    """A stand-in for a ClusterCoordinator that carries out its calls in this process, at once."""

    def create_per_worker_dataset(self, make: Callable[[], tf.data.Dataset]) -> tf.data.Dataset:
        return make()

    def schedule(self, function: Callable[..., Any], args: Tuple[Any, ...]) -> Any:
        return function(*args)

    def join(self) -> None:
        pass

    def fetch(self, values: Any) -> Any:
        return values


def main() -> None:
    arguments = parse_arguments()
    train, (x_test, y_test) = mnist_data.load(arguments.data, arguments.limit_train)
    steps = arguments.steps or max(1, arguments.epochs * len(train[1]) // arguments.batch_size)

    coordinator: Any
    if "TF_CONFIG" in os.environ:
        cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        strategy = tf.distribute.experimental.ParameterServerStrategy(cluster)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    else:
        strategy, coordinator = tf.distribute.get_strategy(), OneProcess()

    with strategy.scope():
        model = lenet()
        optimizer = keras.optimizers.Adam(LEARNING_RATE)
        optimizer.build(model.trainable_variables)  # variables can be made here, but not in a step
    shares = coordinator.create_per_worker_dataset(lambda: batches(train, arguments.batch_size))
    step = training_step(strategy, model, optimizer)
    fit(coordinator, step, iter(shares), steps, arguments.batch_size, optimizer.learning_rate)

    loss, accuracy = evaluate(model, x_test, y_test)
    report(test_loss=loss, test_accuracy=accuracy)
    print(f"test accuracy {accuracy:.4f}", flush=True)


def lenet() -> keras.Model:
    """Return LeNet. Its dense layer has 128 units, not 512: every step sends it over the network, twice."""
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
    """Return endless batches, in an order of each worker's own.

    The images travel to the workers inside the graph: as bytes, a quarter of their size as floats.
    """
    images, labels = train
    examples = tf.data.Dataset.from_tensor_slices(((images * 255).round().astype("uint8"), labels))
    shuffled = examples.shuffle(len(labels)).repeat().batch(size)
    return shuffled.map(lambda x, y: (tf.cast(x, tf.float32) / 255, y)).prefetch(2)


def training_step(strategy: tf.distribute.Strategy, model: keras.Model, optimizer: keras.optimizers.Optimizer) -> Any:
    """Return the step of a worker on its next batch; the step returns its loss and accuracy."""

    def step(images: tf.Tensor, labels: tf.Tensor) -> Tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = mean_loss(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss, mean_accuracy(labels, logits)

    return tf.function(lambda share: strategy.run(step, args=next(share)))


def mean_loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def mean_accuracy(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    return tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1), labels), tf.float32))


def fit(coordinator: Any, step: Any, share: Any, steps: int, batch_size: int, learning_rate: tf.Variable) -> None:
    """Distribute the steps to the workers, and report their progress.

    The learning rate falls to a tenth: gradients of asynchronous workers are of weights that have changed since, and
    the last ones of a slow worker would otherwise make the result a matter of luck.
    """
    for start in range(0, steps, STEPS_AT_ONCE):
        learning_rate.assign(LEARNING_RATE * (1 - 0.9 * start / steps))
        done = min(start + STEPS_AT_ONCE, steps)
        results = [coordinator.schedule(step, args=(share,)) for _ in range(start, done)]
        coordinator.join()
        loss, accuracy = coordinator.fetch(results[-1])
        report(done, steps=steps, examples=done * batch_size, loss=loss, accuracy=accuracy)


def evaluate(model: keras.Model, images: Any, labels: Any, size: int = 500) -> Tuple[float, float]:
    """Return the loss and accuracy over all test images, on the chief, in parts to save memory."""
    total_loss = total_accuracy = 0.0
    for start in range(0, len(labels), size):
        part = labels[start : start + size]
        logits = model(images[start : start + size])
        total_loss += len(part) * float(mean_loss(part, logits))
        total_accuracy += len(part) * float(mean_accuracy(part, logits))
    return total_loss / len(labels), total_accuracy / len(labels)


if __name__ == "__main__":
    main()
