"""A training loop whose rank 1 is killed from outside, as a system that runs out of memory does it: by signal 9.

python killed.py                                                 alone, in one process, where nobody is killed
"""

import os
import signal
import time

import tensorflow as tf
from muster.training import horovod, report

STEPS = 20


def main() -> None:
    horovod.init()
    for step in range(1, STEPS + 1):
        time.sleep(0.1)  # the work of a step
        loss = horovod.allreduce(tf.random.uniform([]), name="loss")
        report(step, steps=STEPS, loss=loss)
        if horovod.rank() == 1 and step == 10:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
