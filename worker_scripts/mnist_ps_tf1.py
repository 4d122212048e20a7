"""LeNet on MNIST with parameter servers, in TensorFlow 1's style (runs on TensorFlow 1.15 and 2).

    run_cluster(n_workers=2, n_ps=1, worker_script="worker_scripts/mnist_ps_tf1.py")
    python mnist_ps_tf1.py                                           alone, in one process

Muster calls `run(cluster, server, task_index)` in every worker; the variables live on the parameter servers. Workers
train asynchronously, each with its own share of the data and without waiting for the others, or with --sync in step:
gradients of all workers are averaged before they are applied (SyncReplicasOptimizer). Worker 0 is the chief: it
initialises the variables, and tests the model at the end.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any, Dict, Iterator, NamedTuple, Tuple

import mnist_data
import numpy as np
import tensorflow.compat.v1 as tf
from muster.training import report

# A stale gradient is applied as it is: the rate must suit several asynchronous workers, and Adam bounds every step.
LEARNING_RATE = 0.001


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sync", action="store_true", help="average the gradients of all workers in every step")
    parser.add_argument(
        "--epochs", type=int, default=10, help="times that the workers together go through the data (default: 10)"
    )
    parser.add_argument(
        "--steps", type=int, help="global steps instead: updates of the variables, by all workers together"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="examples in one step of one worker (default: 32)")
    parser.add_argument("--checkpoint", metavar="FILE", help="at the end the chief saves the variables here (.npz)")
    mnist_data.add_arguments(parser)
    return parser.parse_args()


class Graph(NamedTuple):
    """The tensors and operations that training runs."""

    images: Any  # float32 (batch, 28, 28, 1)
    labels: Any  # int64 (batch,)
    loss: Any
    accuracy: Any
    global_step: Any
    train: Any
    hooks: list
    model: list  # the variables that make up the trained model, from the first layer to the last


def run(cluster: tf.train.ClusterSpec, server: tf.train.Server, task_index: int) -> None:
    """Train as worker `task_index` of the cluster.

    Args:
        cluster: With the job "worker" and, unless this worker is alone, "ps".
        server: This worker's own, started.
        task_index: From 0, the chief.
    """
    arguments = parse_arguments()
    n_workers, is_chief = cluster.num_tasks("worker"), task_index == 0
    (x_train, y_train), test = mnist_data.load(arguments.data, arguments.limit_train)
    batches_per_step = n_workers if arguments.sync else 1
    steps = arguments.steps or max(1, arguments.epochs * len(x_train) // (arguments.batch_size * batches_per_step))

    # Workers wait for none but the parameter servers and themselves: one that comes late or is lost stops no other.
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:{}".format(task_index)])
    with tf.Graph().as_default():
        placement = tf.train.replica_device_setter(
            cluster=cluster, worker_device="/job:worker/task:{}".format(task_index)
        )
        with tf.device(placement):
            graph = build(n_workers, arguments.sync, is_chief)
        if not is_chief:
            wait_for_chief(server.target, config)
        with tf.train.MonitoredTrainingSession(
            server.target,
            is_chief,
            hooks=graph.hooks,
            config=config,
            log_step_count_steps=None,
            stop_grace_period_secs=1,  # the chief's thread for --sync waits for gradients that no longer come
        ) as session:
            shares = x_train[task_index::n_workers], y_train[task_index::n_workers]
            train(session, graph, batches(shares, arguments.batch_size, seed=task_index), steps)
            if is_chief:
                # Fetched once: another worker's last gradient may still change the variables.
                arrays = session.run({variable.op.name: variable for variable in graph.model})
                if arguments.checkpoint:
                    save(arrays, arguments.checkpoint)
                loss, accuracy = evaluate(arrays, test)
                report(test_loss=loss, test_accuracy=accuracy)
                print("test accuracy {:.4f}".format(accuracy), flush=True)


def build(n_workers: int, sync: bool, is_chief: bool) -> Graph:
    """Build the network and its training, on the devices that the caller has set."""
    images, labels, loss, accuracy = forward()
    global_step = tf.train.get_or_create_global_step()
    optimizer, hooks = tf.train.AdamOptimizer(LEARNING_RATE), []
    if sync:
        optimizer = tf.train.SyncReplicasOptimizer(
            optimizer, replicas_to_aggregate=n_workers, total_num_replicas=n_workers
        )
        hooks = [optimizer.make_session_run_hook(is_chief)]
    train = optimizer.minimize(loss, global_step)
    if sync:
        # At the end the chief's thread still waits for gradients, and is cancelled: no reason for a traceback.
        optimizer.get_chief_queue_runner()._queue_closed_exception_types = (tf.errors.CancelledError,)
    return Graph(images, labels, loss, accuracy, global_step, train, hooks, tf.trainable_variables())


def forward() -> Tuple[Any, Any, Any, Any]:
    """Build placeholders for images and labels, and the network's loss and accuracy on them."""
    images = tf.placeholder(tf.float32, [None, 28, 28, 1], "images")
    labels = tf.placeholder(tf.int64, [None], "labels")
    logits = lenet(images)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), labels), tf.float32))
    return images, labels, loss, accuracy


def lenet(images: tf.Tensor) -> tf.Tensor:
    """Build logits (batch, 10). The dense layer has 128 units, not 512: each step sends it twice over the network."""
    with tf.variable_scope("lenet"):
        features = convolution("conv1", images, filters=32)
        features = convolution("conv2", features, filters=64)
        flat = tf.reshape(features, [-1, int(np.prod(features.shape.as_list()[1:]))])
        hidden = tf.nn.relu(dense("hidden", flat, units=128))
        return dense("logits", hidden, units=10)


def convolution(name: str, images: tf.Tensor, filters: int) -> tf.Tensor:
    """Build a 3x3 convolution, ReLU, and max pooling to half the side."""
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, images.shape.as_list()[-1], filters], tf.float32, INITIALIZER)
        bias = tf.get_variable("bias", [filters], tf.float32, tf.zeros_initializer())
        features = tf.nn.relu(tf.nn.conv2d(images, kernel, [1, 1, 1, 1], "SAME") + bias)
        return tf.nn.max_pool(features, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")


def dense(name: str, inputs: tf.Tensor, units: int) -> tf.Tensor:
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [inputs.shape.as_list()[-1], units], tf.float32, INITIALIZER)
        bias = tf.get_variable("bias", [units], tf.float32, tf.zeros_initializer())
        return tf.matmul(inputs, kernel) + bias


INITIALIZER = tf.glorot_uniform_initializer()


def wait_for_chief(target: str, config: tf.ConfigProto) -> None:
    """Wait until the chief has initialised the variables; MonitoredTrainingSession checks only every 30 seconds."""
    uninitialized = tf.report_uninitialized_variables(tf.global_variables())
    with tf.Session(target, config=config) as session:
        while len(session.run(uninitialized)):
            time.sleep(0.2)


def batches(share: mnist_data.Split, size: int, seed: int) -> Iterator[mnist_data.Split]:
    """Yield batches of a share of the data without end, each pass in another order."""
    images, labels = share
    random = np.random.RandomState(seed)
    while True:
        order = random.permutation(len(labels))
        for start in range(0, len(labels), size):
            indices = order[start : start + size]
            yield images[indices], labels[indices]


def train(session: Any, graph: Graph, share: Iterator[mnist_data.Split], steps: int) -> None:
    """Take steps until all workers together have taken `steps`."""
    examples = step = 0
    while step < steps:
        x, y = next(share)
        _, loss, accuracy, step = session.run(
            [graph.train, graph.loss, graph.accuracy, graph.global_step], {graph.images: x, graph.labels: y}
        )
        examples += len(y)
        report(min(step, steps), steps=steps, examples=examples, loss=loss, accuracy=accuracy)


def save(arrays: Dict[str, np.ndarray], path: str) -> None:
    """Write the values of the model's variables, by name."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)


def evaluate(arrays: Dict[str, np.ndarray], test: mnist_data.Split, size: int = 500) -> Tuple[float, float]:
    """Return the loss and accuracy of the network with these values on all test images, in parts to save memory."""

    def constant(getter: Any, name: str, *args: Any, **kwargs: Any) -> tf.Tensor:
        """Return the constant that the network gets in place of a variable."""
        return tf.constant(arrays[name])

    test_images, test_labels = test
    totals = np.zeros(2)
    with tf.Graph().as_default(), tf.variable_scope("", custom_getter=constant), tf.Session() as session:
        images, labels, loss, accuracy = forward()
        for start in range(0, len(test_labels), size):
            x, y = test_images[start : start + size], test_labels[start : start + size]
            totals += len(y) * np.array(session.run([loss, accuracy], {images: x, labels: y}))
    mean_loss, mean_accuracy = totals / len(test_labels)
    return float(mean_loss), float(mean_accuracy)


if __name__ == "__main__":
    alone = tf.train.ClusterSpec({"worker": ["localhost:0"]})
    run(alone, tf.train.Server(alone, job_name="worker", task_index=0), 0)
