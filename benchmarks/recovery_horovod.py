"""The script that ``recovery`` trains with Horovod: it kills rank 1 once, and records the time of each step.

recovery_horovod.py FOLDER              goes on from a checkpoint in FOLDER when it is started again
recovery_horovod.py FOLDER --elastic    uses Horovod's elastic mode, which keeps the state in memory
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import elastic
from recovery_steps import STEPS, kill_once, note

folder, is_elastic = Path(sys.argv[1]), "--elastic" in sys.argv
BEGINNING = np.zeros(1000, np.float32)


def after_step(weight: Any, step: int) -> Any:
    """Take a step, and return the weights that all ranks have after it; rank 1 is killed before one step, once."""
    if hvd.rank() == 1:
        kill_once(folder, step)
    gradient = hvd.allreduce(tf.constant(weight - step), name=f"gradient-{step}")
    note(folder, hvd.rank(), step)
    return weight - 0.1 * gradient.numpy()


def train_elastic(state: Any) -> None:
    while state.step < STEPS:
        state.weight = after_step(state.weight, state.step)
        state.step += 1
        state.commit()


def train() -> None:
    checkpoint = folder / "checkpoint.npz"
    weight, first = BEGINNING, 0
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            weight, first = saved["weight"], int(saved["step"])
    for step in range(first, STEPS):
        weight = after_step(weight, step)
        if hvd.rank() == 0:
            np.savez(folder / "new.npz", weight=weight, step=step + 1)
            os.replace(folder / "new.npz", checkpoint)


hvd.init()
if is_elastic:
    # Not TensorFlowState: in its constructor a new rank waits for the others, which have made theirs already.
    elastic.run(train_elastic)(elastic.ObjectState(hvd.broadcast_object, hvd.rank, weight=BEGINNING, step=0))
else:
    train()
