"""Messages that must arrive exactly once, even if the connection is cut. Both sides have an outbox and an inbox.

The sender numbers messages and keeps each until the other side has acknowledged it; after a cut it sends those again
that the other side does not have. The receiver accepts each number once, and in order.
"""

import collections

from . import frames, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Deque, Tuple

MOST_KEPT = 1 << 24  # bytes


class Outbox:
    """The messages that this side has sent, which are numbered, and kept until they have arrived.

    Attributes:
        size: bytes of the messages that are kept.
    """

    def __init__(self) -> None:
        self.size = 0
        self._last = 0
        self._kept: "Deque[Tuple[int, bytes]]" = collections.deque()

    def add(self, message: "tuple[Any, ...]") -> bytes:
        """Keep a message until it is acknowledged, and return it encoded.

        Raises:
            frames.ProtocolError: the other side acknowledges nothing, and there is no room for more.
        """
        if self.size > MOST_KEPT:
            raise frames.ProtocolError("more than {} bytes wait for the other side to take them".format(MOST_KEPT))
        self._last += 1
        data = wire.encode(message, self._last)
        self._kept.append((self._last, data))
        self.size += len(data)
        return data

    def has(self, number: int) -> None:
        """Drop all messages up to this number, as the other side has acknowledged them.

        Raises:
            frames.ProtocolError: no such message was sent, or a later one was acknowledged before.
        """
        if not (self._kept[0][0] if self._kept else self._last + 1) - 1 <= number <= self._last:
            raise frames.ProtocolError("what has arrived is not what was sent")
        while self._kept and self._kept[0][0] <= number:
            self.size -= len(self._kept.popleft()[1])

    def rest(self) -> bytes:
        """Return the encoded messages that the other side has not acknowledged, to be sent again."""
        return b"".join(data for _, data in self._kept)


class Inbox:
    """The messages that this side has received: tells new ones from repeated ones.

    Attributes:
        received: number of the last message received.
        is_told: whether that number has been acknowledged.
    """

    def __init__(self) -> None:
        self.received = 0
        self.is_told = True

    def is_new(self, fields: "dict[str, Any]") -> bool:
        """Return whether a message is new: it has the next number, or none.

        Raises:
            frames.ProtocolError: a message before this one is missing.
        """
        number = fields.get("n")
        if number is None:
            return True
        if type(number) is not int or number > self.received + 1:
            raise frames.ProtocolError("messages are missing")
        self.is_told = False
        if number <= self.received:
            return False
        self.received = number
        return True

    def acknowledgement(self) -> "wire.Ack | None":
        """Return the acknowledgement to send now; None if there is nothing new to acknowledge."""
        if self.is_told:
            return None
        self.is_told = True
        return wire.Ack(self.received)
