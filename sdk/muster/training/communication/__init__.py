"""Communication among ranks while they train: schemes that send less than every gradient to everybody.

The optimizer is told which::

    optimizer = DistributedOptimizer(keras.optimizers.SGD(0.1), compression=TopK(0.01))

`compression` is None for plain Horovod (`Dense`), a compressor, or a scheme::

    compressors       FP16, TopK, Threshold, OneBit, KBit; one of one's own is two methods of `Compressor`
    for gradients     Dense; Reducer, which puts together a compressor, a memory and a collective
    for parameters    PartialSynchronisation, ModelAveraging, BlockMomentum
    around others     WarmStart, LocalAggregation

A `Reducer` asks its memory what to send in place of a gradient, has the collective send it as what the compressor makes
of it, lets the optimizer apply the mean, and has the memory keep what was left out. All of it works in `model.fit`, in
`tf.function` and outside, and on a process alone. This package needs TensorFlow 2.5, and Keras only through
`DistributedOptimizer`.
"""

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
