"""A training loop that hangs: rank 1 waits for a batch that never comes, the others wait for rank 1.

python hang.py                                                   alone, in one process, where nothing hangs
"""

import queue
import time

import tensorflow as tf
from muster.training import horovod, report

STEPS = 20


def main() -> None:
    horovod.init()
    batches: "queue.Queue[tf.Tensor]" = queue.Queue()
    for _ in range(STEPS if horovod.rank() != 1 else STEPS // 2):  # what fills the queue of rank 1 gives up half way
        batches.put(tf.random.uniform([32]))
    for step in range(1, STEPS + 1):
        batch = next_batch(batches)
        time.sleep(0.1)  # the work of a step
        loss = horovod.allreduce(tf.reduce_mean(batch), name="loss")
        report(step, steps=STEPS, loss=loss)


def next_batch(batches: "queue.Queue[tf.Tensor]") -> tf.Tensor:
    return batches.get()  # without a timeout


if __name__ == "__main__":
    main()
