"""Rank, size and collectives of Horovod for data-parallel training, also for a process that runs alone.

Such a process is rank 0 of 1, and its collectives return their argument, so that the same script works in one process
and in many, and Horovod need not be installed to try it. Whether `horovodrun` or `mpirun` started the process is read
from its environment variables at each call.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Optional, Sequence

if TYPE_CHECKING:
    import tensorflow as tf

RANK_VARIABLE, SIZE_VARIABLE = "HOROVOD_RANK", "HOROVOD_SIZE"
MPI_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


def is_distributed() -> bool:
    """Return whether this process is one of several that `horovodrun` or `mpirun` started."""
    return _launcher() is not None and os.environ.get(SIZE_VARIABLE) != "1"


def init() -> None:
    """Join the other ranks. Call it first, before TensorFlow uses a device; calling it again does nothing.

    Raises:
        ImportError: The process is one of several, but its interpreter has no Horovod for TensorFlow.
        RuntimeError: MPI started it, but its Horovod was built without MPI, so that each rank would train by itself.
    """
    launcher = _launcher()
    if launcher is None:
        return
    if launcher == "MPI" and not _library().mpi_built():
        raise RuntimeError(
            "MPI started this process as one of several, but its Horovod was built without MPI, so that each would "
            'train by itself. Launch it with horovodrun (strategy="horovod"), or install Horovod again with '
            "HOROVOD_WITH_MPI=1."
        )
    _library().init()


def rank() -> int:
    """Return this process's rank, from 0."""
    return _library().rank() if is_distributed() else 0


def size() -> int:
    """Return the number of ranks."""
    return _library().size() if is_distributed() else 1


def local_rank() -> int:
    """Return this process's number among the ranks on its host, from 0: the number of the GPU that it should use."""
    return _library().local_rank() if is_distributed() else 0


def local_size() -> int:
    """Return the number of ranks on this host."""
    return _library().local_size() if is_distributed() else 1


def allreduce(tensor: tf.Tensor, name: str, op: str = "Average") -> tf.Tensor:
    """Return the mean, or another reduction, of a dense tensor over all ranks, bit for bit the same on each.

    Args:
        tensor: Same shape and type on every rank.
        name: Name of the operation: the same on every rank, and unlike that of any other collective under way.
        op: One of Horovod's reductions: "Average", "Sum" or "Adasum".
    """
    return _library().allreduce(tensor, op=getattr(_library(), op), name=name) if is_distributed() else tensor


def allgather(tensor: tf.Tensor, name: str) -> tf.Tensor:
    """Return the tensors of all ranks, concatenated along their first dimension in the order of the ranks.

    Only the lengths along that dimension may differ. `name` as for `allreduce`.
    """
    return _library().allgather(tensor, name=name) if is_distributed() else tensor


def alltoall(tensor: tf.Tensor, splits: Sequence[int], name: str) -> tf.Tensor:
    """Return the parts that all ranks send to this one, along the first dimension, in the order of the ranks.

    Args:
        tensor: The parts that this rank sends: first the one for rank 0, then the one for rank 1, and so on.
        splits: Length of each rank's part along the first dimension.
        name: As for `allreduce`.
    """
    return _library().alltoall(tensor, splits=splits, name=name)[0] if is_distributed() else tensor


def has_adasum() -> bool:
    """Return whether Adasum can be used: this process is one of several, and Horovod was built with MPI."""
    return is_distributed() and bool(_library().mpi_built())


def broadcast(tensor: tf.Tensor, root_rank: int, name: str) -> tf.Tensor:
    """Return the tensor of rank `root_rank`, on every rank; `name` as for `allreduce`."""
    return _library().broadcast(tensor, root_rank, name=name) if is_distributed() else tensor


def differing(numbers: Sequence[int], name: str) -> List[int]:
    """Return the indices at which the ranks' numbers differ; the same on all ranks, so that all can raise alike.

    Args:
        numbers: Whole numbers, equally many on every rank.
        name: As for `allreduce`.
    """
    if not is_distributed():
        return []
    import tensorflow as tf

    mine = tf.constant(numbers, tf.int64)
    differs = tf.cast(allreduce(mine, name, "Sum") != mine * size(), tf.int64)
    found: List[int] = tf.where(allreduce(differs, f"{name}_differ", "Sum") > 0)[:, 0].numpy().tolist()
    return found


def _launcher() -> Optional[str]:
    """Return the launcher that started this process as a rank; None if there is none, or MPI started only one rank."""
    if RANK_VARIABLE in os.environ:
        return "horovodrun"
    return "MPI" if any(os.environ.get(name, "1") != "1" for name in MPI_SIZES) else None


def _library() -> Any:
    try:
        import horovod.tensorflow
    except ImportError as error:
        rank = f" as rank {os.environ[RANK_VARIABLE]}" if RANK_VARIABLE in os.environ else ""
        raise ImportError(
            f"{_launcher()} started this process{rank}, but its interpreter cannot import Horovod for TensorFlow "
            f"({error}). Install Horovod there, built with HOROVOD_WITH_TENSORFLOW=1, or start the script by itself to "
            "train in one process."
        ) from error
    return horovod.tensorflow
