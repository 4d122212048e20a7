"""Communication among ranks while they train: schemes that send less than every full gradient.

The optimizer is given the scheme:

>>> import keras
>>> from muster.training.communication import TopK
>>> from muster.training.keras import DistributedOptimizer
>>> optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), compression=TopK(0.01))

`compression` is None for plain Horovod (`Dense`), a compressor, or a scheme::

    compressors       FP16, TopK, Threshold, OneBit, KBit; a custom one implements two methods of `Compressor`
    for gradients     Dense; Reducer, which combines a compressor, a memory and a collective
    for parameters    PartialSynchronisation, ModelAveraging, BlockMomentum
    around others     WarmStart, LocalAggregation

In each step, the memory of a `Reducer` adds to a gradient what it has kept, the compressor encodes the sum, the
collective averages it over the ranks, the optimizer applies the mean, and the memory keeps what was left out. All of it
works in `model.fit`, inside and outside `tf.function`, and in a single process. This package needs TensorFlow 2.5; only
`DistributedOptimizer` needs Keras.
"""

from ..extras import extra

with extra("tensorflow"):
    from .averaging import BlockMomentum, ModelAveraging, PartialSynchronisation
    from .collectives import AllGather, AllReduce, Collective, Exchanged, TwoPhase
    from .compressors import FP16, Compressor, Sparse, Threshold, TopK
    from .memory import ErrorFeedback, Memory, NoMemory
    from .pacing import LocalAggregation, WarmStart
    from .quantization import KBit, OneBit
    from .reducer import Compression, Reducer, as_scheme
    from .scheme import Dense, Gradient, Scheme, State

__all__ = [
    "FP16",
    "AllGather",
    "AllReduce",
    "BlockMomentum",
    "Collective",
    "Compression",
    "Compressor",
    "Dense",
    "ErrorFeedback",
    "Exchanged",
    "Gradient",
    "KBit",
    "LocalAggregation",
    "Memory",
    "ModelAveraging",
    "NoMemory",
    "OneBit",
    "PartialSynchronisation",
    "Reducer",
    "Scheme",
    "Sparse",
    "State",
    "Threshold",
    "TopK",
    "TwoPhase",
    "WarmStart",
    "as_scheme",
]
