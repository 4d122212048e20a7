"""Collectives: they exchange payloads between all ranks, and compute their mean, the same on every rank."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import tensorflow as tf

from .. import horovod
from .memory import Memory
from .scheme import State, allgather_bytes, allreduce_bytes, bytes_of

Payload = Tuple[tf.Tensor, ...]

if TYPE_CHECKING:
    from typing import Protocol

    class Compressor(Protocol):
        """The part of a compressor that a collective uses; see `compressors.Compressor`."""

        summable: bool
        columnar: bool
        ragged: bool

        def compress(self, tensor: tf.Tensor) -> Payload: ...  # noqa: D102

        def decompress(self, payload: Payload, shape: Sequence[int]) -> tf.Tensor: ...  # noqa: D102

        def left_out(self, tensor: tf.Tensor, payload: Payload) -> tf.Tensor: ...  # noqa: D102

        def mean(self, payloads: Sequence[Payload], shape: Sequence[int]) -> tf.Tensor: ...  # noqa: D102


class Exchanged(NamedTuple):
    """The result of a collective.

    Attributes:
        means: For each tensor the mean of the decoded payloads of all ranks; the same on every rank.
        left_out: For each tensor the difference between this rank's tensor and its payload, decoded.
        bytes_sent: Number of bytes that this rank sent: an int, or a tensor if it depends on the values.
    """

    means: List[tf.Tensor]
    left_out: List[tf.Tensor]
    bytes_sent: Any


class Collective(ABC):
    """A way to compute means of tensors over all ranks, which sends them compressed.

    Args:
        compressor: Encodes every tensor into the payload that is sent.
        name: Prefix of the names of its Horovod operations.

    Raises:
        ValueError: The collective cannot send payloads of this compressor.
    """

    def __init__(self, compressor: Compressor, name: str) -> None:
        self.compressor = compressor
        self.name = name

    def build(self, shapes: Sequence[Sequence[int]], memory: Callable[..., Memory], state: State) -> None:  # noqa: B027
        """Make the collective's variables, if any, before any function is traced.

        Args:
            shapes: Shapes of the tensors that `exchange` will be called with.
            memory: The class of memory that the scheme uses.
            state: The state that variables are added to, so that they are saved.
        """

    @abstractmethod
    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchanged:
        """Exchange float32 tensors, whose shapes are known and the same on all ranks, and return their means."""


class AllReduce(Collective):
    """Ring allreduce, which adds the payloads of N ranks on their way: each rank sends 2(N-1)/N of a payload.

    Only for payloads that may be added. All tensors are divided by N first, so that no sum leaves the range of its
    type; what is left out is therefore computed here, and not by the compressor.
    """

    def __init__(self, compressor: Compressor, name: str) -> None:
        super().__init__(compressor, name)
        if not compressor.summable:
            raise ValueError(
                f"The payloads of {type(compressor).__name__} cannot be added up, so they cannot go through AllReduce: "
                "use AllGather or TwoPhase."
            )

    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchanged:
        """Run one allreduce for each part of each payload; Horovod fuses them."""
        means, left_out, size = [], [], 0
        for index, tensor in enumerate(tensors):
            payload = self.compressor.compress(tensor / horovod.size())
            summed = tuple(
                horovod.allreduce(part, f"{self.name}_{index}_{number}", "Sum") for number, part in enumerate(payload)
            )
            means.append(self.compressor.decompress(summed, tensor.shape))
            left_out.append(tensor - self.compressor.decompress(payload, tensor.shape) * horovod.size())
            size += sum(allreduce_bytes(bytes_of(part)) for part in payload)
        return Exchanged(means, left_out, size)


class AllGather(Collective):
    """Allgather: every rank receives all N payloads, and adds them in the order of the ranks; each sends N-1 payloads.

    All payloads of a step go in one allgather; if their sizes depend on the values, another one exchanges these first.
    """

    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchanged:
        """Compress the tensors, gather all payloads, and average them."""
        payloads = [self.compressor.compress(tensor) for tensor in tensors]
        received, size = self._gather(payloads)
        means = [self.compressor.mean(of_ranks, tensor.shape) for of_ranks, tensor in zip(zip(*received), tensors)]
        left_out = [self.compressor.left_out(tensor, payload) for tensor, payload in zip(tensors, payloads)]
        return Exchanged(means, left_out, size)

    def _gather(self, payloads: Sequence[Payload]) -> Tuple[List[List[Payload]], Any]:
        """Return the payloads of each rank, and the number of bytes sent."""
        mine, alike = to_bytes(payloads), [payloads] * horovod.size()
        if not self.compressor.ragged:
            return from_bytes(horovod.allgather(mine, self.name), alike), allgather_bytes(bytes_of(mine))
        lengths = tf.stack([tf.size(part) for payload in payloads for part in payload])
        every_length = horovod.allgather(lengths, f"{self.name}_lengths")
        gathered = horovod.allgather(mine, self.name)
        size = bytes_of(lengths) + tf.size(mine, tf.int64)
        return from_bytes(gathered, alike, every_length), allgather_bytes(size)


class TwoPhase(Collective):
    """CNTK's exchange for payloads that cannot be added: each of N ranks sends about 2(N-1)/N of a payload.

    Each payload is cut into N stripes of columns, a column being one position of the tensor's last axis. First every
    rank sends its stripe j to rank j, which averages the N stripes. Then rank j compresses this mean, with a separate
    memory for what is left out, and sends it to all ranks (Seide 2014, section 3).
    """

    def __init__(self, compressor: Compressor, name: str) -> None:
        super().__init__(compressor, name)
        if not compressor.columnar:
            raise ValueError(
                f"The payloads of {type(compressor).__name__} cannot be cut by columns, so they cannot go through "
                "TwoPhase: use AllGather."
            )

    def build(self, shapes: Sequence[Sequence[int]], memory: Callable[..., Memory], state: State) -> None:
        """Make a memory for this rank's stripe of every tensor."""
        self.memories = [
            memory(state, f"stripe/{index}", (int(np.prod(shape[:-1])), _widths(shape[-1])[horovod.rank()]))
            for index, shape in enumerate(shapes)
        ]

    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchanged:
        """Run both phases, each with one Horovod operation for all tensors."""
        ranks, rank, code = horovod.size(), horovod.rank(), self.compressor
        payloads = [code.compress(tensor) for tensor in tensors]
        stripes = list(zip(*[_stripes(payload, tensor.shape[-1]) for payload, tensor in zip(payloads, tensors)]))
        outgoing = [to_bytes(of_rank) for of_rank in stripes]
        sizes = [bytes_of(buffer) for buffer in outgoing]
        incoming = horovod.alltoall(tf.concat(outgoing, 0), sizes, f"{self.name}_stripes")

        averages = []
        received = from_bytes(incoming, [stripes[rank]] * ranks)
        for memory, of_ranks, tensor in zip(self.memories, zip(*received), tensors):
            shape = (int(np.prod(tensor.shape[:-1])), _widths(tensor.shape[-1])[rank])
            average = memory.compensate(code.mean(of_ranks, shape))
            payload = code.compress(average)
            memory.remember(code.left_out(average, payload))
            averages.append(payload)

        mine = to_bytes(averages)
        gathered = from_bytes(horovod.allgather(mine, f"{self.name}_means"), stripes)
        means = [
            code.decompress(tuple(tf.concat(parts, -1) for parts in zip(*of_ranks)), tensor.shape)
            for of_ranks, tensor in zip(zip(*gathered), tensors)
        ]
        left_out = [code.left_out(tensor, payload) for tensor, payload in zip(tensors, payloads)]
        return Exchanged(means, left_out, sum(sizes) - sizes[rank] + allgather_bytes(sizes[rank]))


def _widths(columns: int) -> List[int]:
    """Return the number of columns in each rank's stripe, as equal as possible; 0 for some if there are too few."""
    return [columns // horovod.size() + (rank < columns % horovod.size()) for rank in range(horovod.size())]


def restriped(stripes: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return this rank's stripe of a matrix, given the stripes of a possibly different number of ranks."""
    matrix = np.concatenate(stripes, axis=1)
    ends = np.cumsum(_widths(matrix.shape[1]))
    return np.split(matrix, ends[:-1], axis=1)[horovod.rank()]


def _stripes(payload: Payload, columns: int) -> List[Payload]:
    """Cut a payload by columns into one for each rank."""
    return list(zip(*[tf.split(part, _widths(columns), axis=-1) for part in payload]))


def to_bytes(payloads: Sequence[Payload]) -> tf.Tensor:
    """Return the bytes of all parts of all payloads, concatenated as they are in memory."""
    parts = [tf.reshape(tf.bitcast(part, tf.uint8), [-1]) for payload in payloads for part in payload]
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def from_bytes(
    buffer: tf.Tensor, like: Sequence[Sequence[Payload]], lengths: Optional[tf.Tensor] = None
) -> List[List[Payload]]:
    """Return the payloads in a buffer: the concatenated results of `to_bytes` on several ranks.

    Args:
        buffer: The bytes.
        like: For each rank, payloads of the same types and shapes.
        lengths: Number of elements of every part, rank by rank, if the shapes do not tell.
    """
    every = [part for payloads in like for payload in payloads for part in payload]
    if lengths is None:
        pieces = tf.split(buffer, [bytes_of(part) for part in every])
        parts = [_typed(piece, part.dtype, part.shape) for piece, part in zip(pieces, every)]
    else:
        pieces = tf.split(buffer, lengths * [part.dtype.size for part in every], num=len(every))
        parts = [_typed(piece, part.dtype, [-1]) for piece, part in zip(pieces, every)]
    remaining = iter(parts)
    return [[tuple(next(remaining) for _ in payload) for payload in payloads] for payloads in like]


def _typed(data: tf.Tensor, dtype: tf.DType, shape: Sequence[int]) -> tf.Tensor:
    """Return bytes as a tensor of the given type and shape."""
    return tf.bitcast(tf.reshape(data, [*shape, dtype.size] if dtype.size > 1 else shape), dtype)
