"""Advice that is the same before a run and after it has failed."""

from __future__ import annotations

HOROVOD_KERAS = (
    "in its place: from muster.training import keras as distributed, with distributed.DistributedOptimizer(...) and "
    "callbacks=distributed.callbacks()"
)
