"""A training loop that keeps what it should forget: rank 1 stores every batch, until its worker's memory is used up.

python out_of_memory.py                                          alone, in one process, where nothing fails
"""

import tensorflow as tf
from muster.training import horovod, report

STEPS = 20
MEGABYTE = 2**20


def main() -> None:
    horovod.init()
    history = []
    for step in range(1, STEPS + 1):
        batch = tf.random.stateless_uniform([64 * MEGABYTE // 4], seed=(horovod.rank(), step))
        loss = horovod.allreduce(tf.reduce_mean(batch), name="loss")
        report(step, steps=STEPS, loss=loss)
        if horovod.rank() == 1:
            history.append(batch)  # "just to look at later"


if __name__ == "__main__":
    main()
