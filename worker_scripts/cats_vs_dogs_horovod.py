"""A small convolutional network tells cats from dogs, data-parallel with Horovod and Keras 3.

    run_cluster(n_workers=2, strategy="horovod", worker_script="worker_scripts/cats_vs_dogs_horovod.py")
    horovodrun -np 2 -H localhost:2 python cats_vs_dogs_horovod.py
    python cats_vs_dogs_horovod.py                                   alone, in one process

Every rank trains on its share of the pictures and averages its gradients with the others'. The steps of an epoch are
per rank, so n ranks see n times as many pictures in about the same time; the learning rate grows with them.
Photographs, where there are any on this machine; otherwise drawn pictures (see --drawn): `python cats_vs_dogs_data.py`
says which, and downloads photographs if asked to.
"""

import argparse
import os

import cats_vs_dogs_data
import keras
import tensorflow as tf
from muster.training import horovod, report
from muster.training import keras as distributed

LEARNING_RATE = 0.001  # for one rank; n ranks take n times as many pictures in a step


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8, help="how often to test and save the model (default: 8)")
    parser.add_argument("--steps", type=int, default=50, help="steps of every rank in an epoch (default: 50)")
    parser.add_argument("--batch-size", type=int, default=32, help="pictures in one step of one rank (default: 32)")
    parser.add_argument(
        "--checkpoint", metavar="FILE", help="rank 0 saves the model here after each epoch (.keras or .weights.h5)"
    )
    cats_vs_dogs_data.add_arguments(parser)
    return parser.parse_args()


def network() -> keras.Model:
    """Return a network from the bytes of a picture to the probability that it shows a dog."""
    return keras.Sequential(
        [
            keras.Input((cats_vs_dogs_data.SIDE, cats_vs_dogs_data.SIDE, 3), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(1, activation="sigmoid"),
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
    pictures = cats_vs_dogs_data.find(arguments.images, arguments.drawn)
    rank, size = horovod.rank(), horovod.size()
    keras.utils.set_random_seed(rank)  # the same training each time, but for the order of sums

    # Endless, with a fixed number of steps an epoch: all ranks must take as many, however many pictures each has.
    train = pictures.train(rank, size).shuffle(1000, seed=rank).repeat().batch(arguments.batch_size)

    model = network()
    model.compile(
        optimizer=distributed.DistributedOptimizer(keras.optimizers.Adam(LEARNING_RATE * size)),
        loss="binary_crossentropy",
        metrics=["accuracy"],
        jit_compile=False,  # XLA cannot compile Horovod's collectives
    )
    model.fit(
        train.prefetch(2),
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps,
        validation_data=pictures.test(rank, size).batch(100),
        callbacks=distributed.callbacks(arguments.checkpoint, batch_size=arguments.batch_size),
        verbose=2 if rank == 0 else 0,
    )

    if rank == 0:
        loss, accuracy = model.evaluate(pictures.test().batch(100), verbose=0)
        report(test_loss=loss, test_accuracy=accuracy)
        print(f"test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
