"""LeNet on MNIST, data-parallel with Horovod and Keras 3: every rank trains on its share and averages its gradients.

run_cluster(n_workers=2, strategy="horovod", worker_script="worker_scripts/mnist_horovod.py")
horovodrun -np 2 -H localhost:2 python mnist_horovod.py
python mnist_horovod.py                                          alone, in one process
"""

import argparse
import math
import os

import keras
import mnist_data
import tensorflow as tf
from muster.training import horovod, partition, report
from muster.training import keras as distributed

LEARNING_RATE = 0.001  # for one rank; n ranks take n times as many examples in a step


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=6, help="times that the data is gone through (default: 6)")
    parser.add_argument("--batch-size", type=int, default=32, help="examples in one step of one rank (default: 32)")
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="rank 0 saves the model here after each epoch (.keras or .weights.h5)"
    )
    parser.add_argument(
        "--tensorboard", metavar="FOLDER", default=os.environ.get("MUSTER_TENSORBOARD"),
        help="rank 0 writes event files for TensorBoard here (default: where the dashboard looks for them)",
    )  # fmt: skip
    mnist_data.add_arguments(parser)
    return parser.parse_args()


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


def use_own_devices() -> None:
    """Share the host with the ranks beside this one: a GPU each, and an equal share of the cores if none is set."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[horovod.local_rank() % len(gpus)], "GPU")
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0))
        tf.config.threading.set_intra_op_parallelism_threads(max(1, cores // horovod.local_size()))


def main() -> None:
    arguments = parse_arguments()
    horovod.init()
    use_own_devices()
    (x_train, y_train), (x_test, y_test) = mnist_data.load(arguments.data, arguments.limit_train)

    x_share, y_share = partition.array(x_train, y_train, uneven="trim")  # of one length, so that ranks take equal steps
    callbacks = distributed.callbacks(arguments.checkpoint, batch_size=arguments.batch_size)
    if horovod.rank() == 0 and arguments.tensorboard:
        callbacks.append(keras.callbacks.TensorBoard(arguments.tensorboard, write_graph=False))
    model = lenet()
    # The rate falls to nothing: with as high a one to the end, the last few steps would decide how good the result is.
    steps = arguments.epochs * math.ceil(len(x_share) / arguments.batch_size)
    rate = keras.optimizers.schedules.CosineDecay(LEARNING_RATE * horovod.size(), steps)
    model.compile(
        optimizer=distributed.DistributedOptimizer(keras.optimizers.Adam(rate)),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,  # XLA cannot compile Horovod's collectives
    )
    model.fit(
        x_share,
        y_share,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=partition.array(x_test, y_test),
        callbacks=callbacks,
        verbose=2 if horovod.rank() == 0 else 0,
    )

    if horovod.rank() == 0:
        loss, accuracy = model.evaluate(x_test, y_test, batch_size=500, verbose=0)
        report(test_loss=loss, test_accuracy=accuracy)
        print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
