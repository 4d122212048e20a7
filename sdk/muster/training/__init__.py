"""Modules for training scripts inside workers, independent of the rest of Muster and shipped without it.

A script imports what it needs::

    from muster.training import report, preempted             any script, any Python from 3.6
    from muster.training import partition                     this rank's share of the data; needs NumPy
    from muster.training import keras as distributed          Keras 3 on Horovod
    from muster.training.checkpoint import Checkpoint         save and resume, on any number of ranks
    from muster.training import horovod                       rank, size and collectives, also in a single process

The user's interpreter imports a copy of this folder, and may be an old one: this file and `progress` use only the
standard library and Python 3.6 syntax, `partition` and `states` NumPy besides, and the modules that need TensorFlow
are imported only by name.
"""

from importlib import import_module

from .progress import preempted, report

__all__ = ["preempted", "report"]

_MODULES = ("checkpoint", "communication", "horovod", "keras", "partition")


def __getattr__(name):  # type: ignore[no-untyped-def]  # since Python 3.7: older ones do not call it
    """Import one of the modules when it is first asked for, as in ``muster.training.partition.array(x)``."""
    if name not in _MODULES:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    return import_module("%s.%s" % (__name__, name))
