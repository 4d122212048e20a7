"""Partition of data among processes: each takes its share, and together they take all of it.

>>> import numpy as np
>>> from muster.training import partition
>>> x, y = np.arange(4.0), np.arange(4)
>>> for x_batch, y_batch in partition.batches(x, y, batch_size=2, epoch=0, shuffle=False):
...     print(x_batch, y_batch)
[0. 1.] [0 1]
[2. 3.] [2 3]
>>> x_test, y_test = partition.array(x, y, partition_index=1, num_data_partitions=2, shuffle=False)
>>> x_test
array([1., 3.])
>>> partition.files(["b.tfrecord", "a.tfrecord"], shuffle=False)
['a.tfrecord', 'b.tfrecord']

For `model.fit` there is `partition.epochs(x, y, batch_size=32)`, with `steps_per_epoch=partition.steps(len(x), 32)`,
and for `tf.data` `partition.dataset(examples, shuffle_buffer=1000)`.

In every epoch the shares are disjoint, cover the data, and differ in length by at most one example. They come from one
permutation that every process computes from `seed` and `epoch`: example i of the permutation goes to process i modulo
the number of processes. So after k batches of each process the first `k * processes * batch_size` examples of the
permutation have been taken, and training can go on from there with another number of processes.

Every rank must take the same number of steps, or those that have one more wait for ever. `batches` and `epochs` ensure
that; other shares are made equal by `uneven`::

    "keep"    every example once; shares may differ by one example (for evaluation, and for loops that count steps)
    "trim"    equal shares; fewer examples than there are processes are left out, others in the next epoch
    "pad"     equal shares; fewer examples than there are processes come a second time

The process's number, and the number of processes, come from its launcher: Horovod, Muster, Open MPI, MPICH, or a
TensorFlow cluster (`TF_CONFIG`). A process that none of them started is alone. `partition_index` (from 0) and
`num_data_partitions` override them.

Needs NumPy, and TensorFlow only for the functions that make a `tf.data.Dataset`. Python 3.6 syntax.
"""

import itertools
import json
import os
from typing import Any, Iterator, List, Optional, Sequence, Tuple, Union

from .extras import extra

with extra():
    import numpy as np

LAUNCHERS = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("MUSTER_RANK", "MUSTER_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
UNEVEN = ("keep", "trim", "pad")


def index_and_count() -> Tuple[int, int]:
    """Return this process's number among those that train, from 0, and the number of those processes."""
    for rank, size in LAUNCHERS:
        if rank in os.environ and size in os.environ:
            return int(os.environ[rank]), int(os.environ[size])
    config = json.loads(os.environ.get("TF_CONFIG") or "{}")
    cluster, task = config.get("cluster", {}), config.get("task", {})
    # With parameter servers a chief does not train: it coordinates the workers, and hands the data out by itself.
    trainers = ("worker",) if "ps" in cluster else ("chief", "master", "worker")
    members = [(kind, index) for kind in trainers for index in range(len(cluster.get(kind, ())))]
    me = task.get("type"), int(task.get("index", 0))
    return (members.index(me), len(members)) if me in members else (0, 1)


def indices(
    n: int,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    uneven: str = "keep",
    partition_index: Optional[int] = None,
    num_data_partitions: Optional[int] = None,
) -> "np.ndarray[Any, Any]":
    """Return the indices of this process's examples among `n`, in the order in which to take them.

    Args:
        n: Number of examples in all.
        epoch: Number of the epoch; each has another permutation.
        seed: The same on every process; 0 to 2**32 - 1.
        shuffle: False leaves the examples in their order, in every epoch.
        uneven: "keep", "trim" or "pad", for an `n` that is no multiple of the number of shares (see above).
        partition_index: Number of the share, from 0; default: this process's rank.
        num_data_partitions: Number of shares; default: the number of processes.

    Raises:
        ValueError: An argument is out of its range, or shares of equal length would be empty.
    """
    index, count = _partition(partition_index, num_data_partitions)
    _check(uneven, n, count)
    # RandomState, because its permutations are the same in every version of NumPy, and so on every host.
    order = np.random.RandomState([seed, epoch]).permutation(n) if shuffle else np.arange(n)
    if uneven == "pad":
        order = np.resize(order, n + -n % count)  # goes on from its beginning
    elif uneven == "trim":
        order = order[: n - n % count]
    return order[index::count]


def array(*arrays: Any, **options: Any) -> Any:
    """Return this process's examples of one array, or of several of the same length; `options` as for `indices`.

    Raises:
        ValueError: The arrays differ in length, or as for `indices`.
    """
    arrays = tuple(np.asarray(values) for values in arrays)
    mine = indices(_common_length(arrays), **options)
    shares = tuple(values[mine] for values in arrays)
    return shares if len(shares) > 1 else shares[0]


def files(paths: Sequence[Union[str, "os.PathLike[str]"]], **options: Any) -> List[str]:
    """Return this process's files; `options` as for `indices`. `paths` may be in any order: they are sorted first."""
    names = sorted(os.fspath(path) for path in paths)
    return [names[index] for index in indices(len(names), **options)]


def dataset(
    examples: Any,
    *,
    epoch: Any = 0,
    seed: int = 0,
    shuffle_buffer: int = 0,
    uneven: str = "keep",
    partition_index: Optional[int] = None,
    num_data_partitions: Optional[int] = None,
) -> Any:
    """Return this process's share of a `tf.data.Dataset` of single examples, for one epoch.

    A process keeps the same share in all epochs, since a stream cannot be shuffled as a whole; the order within the
    share changes with each epoch. For an endless dataset, as `model.fit(..., steps_per_epoch=...)` takes it:

    >>> import tensorflow as tf
    >>> from muster.training import partition
    >>> examples = tf.data.Dataset.range(4)
    >>> epochs = tf.data.Dataset.counter().flat_map(lambda epoch: partition.dataset(examples, epoch=epoch))
    >>> [int(example) for example in epochs.take(6)]
    [0, 1, 2, 3, 0, 1]

    Args:
        examples: The dataset: the same examples, in the same order, on every process.
        epoch: A number, or a tensor of type int64.
        seed: Seed of the order.
        shuffle_buffer: Number of examples among which the next one is drawn; 0 leaves them in their order.
        uneven: As for `indices`; "trim" and "pad" need a dataset of known length.
        partition_index: As for `indices`.
        num_data_partitions: As for `indices`.

    Raises:
        ValueError: As for `indices`, or the length is needed and not known.
    """
    with extra("tensorflow"):
        import tensorflow as tf

    index, count = _partition(partition_index, num_data_partitions)
    if uneven != "keep":
        with tf.init_scope():  # flat_map calls this in a graph, where the length would be a symbolic tensor
            n = int(examples.cardinality().numpy())
        if n < 0:
            raise ValueError("uneven={!r} needs a dataset that knows how long it is.".format(uneven))
        _check(uneven, n, count)
        examples = examples.take(n - n % count) if uneven == "trim" else examples.repeat().take(n + -n % count)
    share = examples.shard(count, index)
    if not shuffle_buffer:
        return share
    # One number, because shuffle() takes one; different for every epoch of every seed.
    mixed = tf.cast(seed, tf.int64) * 1000003 + tf.cast(epoch, tf.int64)
    return share.shuffle(shuffle_buffer, seed=mixed, reshuffle_each_iteration=False)


def steps(n: int, batch_size: int, num_data_partitions: Optional[int] = None) -> int:
    """Return the number of batches that every process can take of its share of `n` examples; the last may be smaller.

    Raises:
        ValueError: There are fewer examples than processes, or `batch_size` is less than 1.
    """
    count = num_data_partitions or index_and_count()[1]
    if batch_size < 1 or n < count:
        raise ValueError(
            "{} examples in batches of {} are not one batch for each of {} processes.".format(n, batch_size, count)
        )
    return -(-(n // count) // batch_size)


def batches(*arrays: Any, batch_size: int, first: int = 0, **options: Any) -> Iterator[Tuple[Any, ...]]:
    """Yield this process's batches of arrays for one epoch: equally many on every process, so that none waits for ever.

    Batches of the last step may be smaller, and fewer examples than there are processes are left out of the epoch.

    Args:
        arrays: Arrays of the same length, such as inputs and labels; the same on every process.
        batch_size: Examples of one process in one step.
        first: The step to begin with, to go on in the middle of an epoch.
        options: As for `indices`, without `uneven`.

    Yields:
        A tuple with a part of each array.
    """
    arrays = tuple(np.asarray(values) for values in arrays)
    mine = indices(_common_length(arrays), uneven="trim", **options)
    for start in range(first * batch_size, len(mine), batch_size):
        yield tuple(values[mine[start : start + batch_size]] for values in arrays)


def epochs(*arrays: Any, batch_size: int, first: int = 0, **options: Any) -> Any:
    """Return the `batches` of one epoch after the other, as an endless `tf.data.Dataset` for `model.fit`.

    Their content depends only on the seed and the epoch, so that training can go on where it was interrupted.

    Args:
        arrays: As for `batches`.
        batch_size: As for `batches`; give `model.fit` `steps_per_epoch=partition.steps(n, batch_size)`.
        first: The epoch to begin with: the `initial_epoch` of `model.fit`.
        options: As for `batches`.
    """
    with extra("tensorflow"):
        import tensorflow as tf

    arrays = tuple(np.asarray(values) for values in arrays)

    def generate() -> Iterator[Tuple[Any, ...]]:
        for epoch in itertools.count(first):
            yield from batches(*arrays, batch_size=batch_size, epoch=epoch, **options)

    signature = tuple(tf.TensorSpec((None,) + values.shape[1:], values.dtype) for values in arrays)
    endless = tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
    return tf.data.Dataset.from_generator(generate, output_signature=signature).apply(endless).prefetch(2)


def _partition(partition_index: Optional[int], num_data_partitions: Optional[int]) -> Tuple[int, int]:
    """Return the two numbers as given, or as `index_and_count` finds them if neither is."""
    if (partition_index is None) != (num_data_partitions is None):
        raise ValueError("partition_index and num_data_partitions belong together: give both or neither.")
    if partition_index is None or num_data_partitions is None:
        return index_and_count()
    if not 0 <= partition_index < num_data_partitions:
        raise ValueError("partition_index={} is not one of {}.".format(partition_index, num_data_partitions))
    return partition_index, num_data_partitions


def _check(uneven: str, n: int, count: int) -> None:
    if uneven not in UNEVEN:
        raise ValueError("uneven={!r}: it is one of {}.".format(uneven, ", ".join(UNEVEN)))
    if uneven == "trim" and n < count:
        raise ValueError("{} examples are fewer than one for each of {} processes.".format(n, count))


def _common_length(arrays: Sequence[Any]) -> int:
    lengths = {len(values) for values in arrays}
    if len(lengths) != 1:
        raise ValueError("Arrays that belong together are of one length, and these have {}.".format(sorted(lengths)))
    return lengths.pop()
