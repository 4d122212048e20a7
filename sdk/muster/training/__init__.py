"""Modules for training scripts inside workers. They need nothing of the rest of Muster and can be shipped alone.

A script imports what it needs::

    from muster.training import report, preempted             any script, any Python from 3.6
    from muster.training import partition                     every rank's share of the data; NumPy
    from muster.training import keras as distributed          Keras 3 on Horovod
    from muster.training.checkpoint import Checkpoint         save and resume, on any number of ranks
    from muster.training import horovod                       rank, size and collectives, also for a process alone

The folder is copied into the user's interpreter, which may be an old one: this file and `progress` stay within the
standard library and Python 3.6 syntax, `partition` and `states` within NumPy besides, and the modules that need
TensorFlow are imported by name only.
"""

from .progress import preempted, report

__all__ = ["preempted", "report"]
