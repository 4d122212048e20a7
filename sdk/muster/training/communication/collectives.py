"""How payloads get from every rank to every rank, and become one mean there, the same on all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Sequence, Tuple

import numpy as np
import tensorflow as tf

from .. import horovod
from .memory import Memory
from .scheme import State, allgather_bytes, allreduce_bytes, bytes_of

if TYPE_CHECKING:
    from .compressors import Compressor, Payload


class Exchange(NamedTuple):
    """What came out of a collective.

    Attributes:
        means: For each tensor the mean over all ranks, as far as it was sent; the same on every rank.
        rests: For each tensor what this rank has not sent of its own.
        bytes_sent: By this rank: an int, or a tensor where it depends on the values.
        kept: Memories of the collective's own with what they are to keep, if the step is taken.
    """

    means: List[tf.Tensor]
    rests: List[tf.Tensor]
    bytes_sent: Any
    kept: Sequence[Tuple[Memory, tf.Tensor]] = ()


class Collective(ABC):
    """Means of tensors over all ranks, by way of a compressor.

    Args:
        compressor: What every tensor is sent as.
        name: Begins the names of its collective operations.

    Raises:
        ValueError: Payloads of this compressor cannot go this way.
    """

    def __init__(self, compressor: Compressor, name: str) -> None:
        self.compressor = compressor
        self.name = name

    def build(self, shapes: Sequence[Sequence[int]], memory: Callable[..., Memory], state: State) -> None:  # noqa: B027
        """Make what the collective remembers from step to step, if anything, before anything is traced.

        Args:
            shapes: Of the tensors that `exchange` will be called with.
            memory: The class of memory that the scheme uses.
            state: Where variables belong, so that they are saved.
        """

    @abstractmethod
    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchange:
        """Send float32 tensors, whose shapes are known and the same on all ranks, and receive."""


class AllReduce(Collective):
    """The ranks' payloads are added up on their way around a ring: 2(N-1)/N of a payload is sent, at any N.

    Only for payloads that may be added. Everything is divided by N first, so that no sum leaves the range of its type.
    """

    def __init__(self, compressor: Compressor, name: str) -> None:
        super().__init__(compressor, name)
        if not compressor.summable:
            raise ValueError(
                f"The payloads of {type(compressor).__name__} cannot be added up, so they cannot go through AllReduce: "
                "use AllGather or TwoPhase."
            )

    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchange:
        """One allreduce for each part of each payload; Horovod fuses them."""
        means, rests, sent = [], [], 0
        for index, tensor in enumerate(tensors):
            payload = self.compressor.compress(tensor / horovod.size())
            summed = tuple(
                horovod.allreduce(part, f"{self.name}_{index}_{number}", "Sum") for number, part in enumerate(payload)
            )
            means.append(self.compressor.decompress(summed, tensor.shape))
            rests.append(tensor - horovod.size() * self.compressor.decompress(payload, tensor.shape))
            sent += sum(allreduce_bytes(bytes_of(part)) for part in payload)
        return Exchange(means, rests, sent)


class AllGather(Collective):
    """Every rank gets every payload and adds them up itself, in the order of the ranks: N-1 payloads are sent.

    All payloads of a step go in one allgather; where their sizes depend on the values another one tells them first.
    """

    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchange:
        """Compress, gather, add up."""
        payloads = [self.compressor.compress(tensor) for tensor in tensors]
        received, sent = self._gather(payloads)
        means = [
            self.compressor.total(of_ranks, tensor.shape) / horovod.size()
            for of_ranks, tensor in zip(zip(*received), tensors)
        ]
        rests = [self.compressor.rest(tensor, payload) for tensor, payload in zip(tensors, payloads)]
        return Exchange(means, rests, sent)

    def _gather(self, payloads: Sequence[Payload]) -> Tuple[List[List[Payload]], Any]:
        """The payloads of each rank, and the bytes sent."""
        mine = to_bytes(payloads)
        if not self.compressor.ragged:
            return from_bytes(horovod.allgather(mine, self.name), [payloads] * horovod.size()), allgather_bytes(
                bytes_of(mine)
            )
        lengths = tf.stack([tf.size(part) for payload in payloads for part in payload])
        every_length = tf.reshape(horovod.allgather(lengths, f"{self.name}_lengths"), [horovod.size(), -1])
        gathered = horovod.allgather(mine, self.name)
        sent = allgather_bytes(bytes_of(lengths) + tf.size(mine))
        return from_bytes(gathered, [payloads] * horovod.size(), tf.unstack(every_length)), sent


class TwoPhase(Collective):
    """CNTK's exchange for codes that cannot be added: about 2(N-1)/N of a payload is sent, at any N.

    Each tensor is cut into N stripes of columns, a column being one position of its last axis. First every rank sends
    its stripe j to rank j, which adds up what all sent. Then it compresses the sum of its stripe, with a memory of its
    own for what that leaves out, and sends it to all (Seide 2014, section 3).
    """

    def __init__(self, compressor: Compressor, name: str) -> None:
        super().__init__(compressor, name)
        if compressor.ragged:
            raise ValueError(
                f"The sizes of {type(compressor).__name__}'s payloads depend on the values, and TwoPhase must know "
                "them beforehand: use AllGather."
            )

    def build(self, shapes: Sequence[Sequence[int]], memory: Callable[..., Memory], state: State) -> None:
        """A memory for this rank's stripe of every tensor."""
        self.memories = []
        for index, shape in enumerate(shapes):
            columns = stripe_widths(shape[-1])[horovod.rank()]
            rows = int(np.prod(shape[:-1], dtype=int))
            self.memories.append(memory(state, f"stripe/{index}", (rows, columns)))

    def exchange(self, tensors: Sequence[tf.Tensor]) -> Exchange:
        """Both phases, each with one collective operation for all tensors."""
        ranks, rank, code = range(horovod.size()), horovod.rank(), self.compressor
        stripes = [striped(tensor) for tensor in tensors]  # of tensor, of rank
        payloads = [[code.compress(stripe) for stripe in of_ranks] for of_ranks in stripes]
        outgoing = [to_bytes([of_ranks[other] for of_ranks in payloads]) for other in ranks]
        incoming = horovod.alltoall(
            tf.concat(outgoing, 0), [bytes_of(part) for part in outgoing], f"{self.name}_stripes"
        )
        received = from_bytes(incoming, [[of_ranks[rank] for of_ranks in payloads]] * horovod.size())

        sums = [
            memory.compensate(code.total(of_ranks, of_tensor[rank].shape))
            for memory, of_ranks, of_tensor in zip(self.memories, zip(*received), stripes)
        ]
        summed = [code.compress(stripe) for stripe in sums]
        mine = to_bytes(summed)
        gathered = from_bytes(
            horovod.allgather(mine, f"{self.name}_sums"), [[of_ranks[r] for of_ranks in payloads] for r in ranks]
        )

        means, rests = [], []
        for index, tensor in enumerate(tensors):
            decoded = [code.decompress(gathered[r][index], stripes[index][r].shape) for r in ranks]
            means.append(tf.reshape(tf.concat(decoded, 1), tensor.shape) / horovod.size())
            left = [code.rest(stripe, payload) for stripe, payload in zip(stripes[index], payloads[index])]
            rests.append(tf.reshape(tf.concat(left, 1), tensor.shape))
        kept = [(m, code.rest(stripe, payload)) for m, stripe, payload in zip(self.memories, sums, summed)]
        to_others = sum(bytes_of(part) for other, part in enumerate(outgoing) if other != rank)
        return Exchange(means, rests, to_others + allgather_bytes(bytes_of(mine)), kept)


def stripe_widths(columns: int) -> List[int]:
    """How many columns each rank's stripe has: as equal as can be, some none where there are fewer than ranks."""
    return [columns // horovod.size() + (rank < columns % horovod.size()) for rank in range(horovod.size())]


def striped(tensor: tf.Tensor) -> List[tf.Tensor]:
    """A tensor as a matrix of its columns, cut into the ranks' stripes."""
    return tf.split(tf.reshape(tensor, [-1, tensor.shape[-1]]), stripe_widths(tensor.shape[-1]), axis=1)


def to_bytes(payloads: Sequence[Payload]) -> tf.Tensor:
    """All parts of all payloads, one behind the other, as they are in memory."""
    parts = [tf.reshape(tf.bitcast(part, tf.uint8), [-1]) for payload in payloads for part in payload]
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def from_bytes(
    buffer: tf.Tensor, like: Sequence[Sequence[Payload]], lengths: Sequence[tf.Tensor] = ()
) -> List[List[Payload]]:
    """What `to_bytes` made a buffer of, for several ranks one behind the other.

    Args:
        buffer: The bytes.
        like: For each rank, payloads of the same types and shapes.
        lengths: For each rank a vector of how many elements each part has, where the shapes do not tell.
    """
    ranks, begin = [], 0
    for number, payloads in enumerate(like):
        of_rank, position = [], 0
        for payload in payloads:
            parts = []
            for part in payload:
                elements = lengths[number][position] if len(lengths) else part.shape.num_elements()
                end = begin + elements * part.dtype.size
                flat = _typed(buffer[begin:end], part.dtype)
                parts.append(flat if len(lengths) else tf.reshape(flat, part.shape))
                begin, position = end, position + 1
            of_rank.append(tuple(parts))
        ranks.append(of_rank)
    return ranks


def _typed(data: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.bitcast(data if dtype.size == 1 else tf.reshape(data, [-1, dtype.size]), dtype)
