"""A training loop with a typo that only rank 1 gets to: the others lose their peer in the middle of an average.

python typo.py                                                       alone, in one process
"""

import time

import tensorflow as tf
from muster.training import horovod, report

STEPS = 20


def main() -> None:
    horovod.init()
    weights = tf.Variable(tf.ones(10))
    for step in range(1, STEPS + 1):
        time.sleep(0.1)  # the work of a step
        gradient = horovod.allreduce(0.1 * weights, name="gradient")
        weights.assign_sub(gradient)
        report(step, steps=STEPS, loss=tf.norm(weights))
        if horovod.rank() == 1 and step == 10:
            print("norm of the weights:", tf.norm(wieghts))  # noqa: F821 - the typo


if __name__ == "__main__":
    main()
