"""Framing of messages: each is one line of JSON with its kind under ``type``, and perhaps raw bytes after it.

A line with ``"payload": N`` is followed by N raw bytes, such as a piece of a file. The messages are defined in
:mod:`~muster.agent.wire`; the agent's guard and its ssh logins use such lines as well.
"""

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

_decode = json.JSONDecoder().raw_decode  # json.loads looks at more than there is to see, for each message,
_encode = json.JSONEncoder(separators=(",", ":")).encode  # and json.dumps makes an encoder for each
MAX_LINE = 1 << 20  # bytes; a longer line ends the connection
MAX_PAYLOAD = 1 << 18  # bytes behind a line; the same


class ProtocolError(Exception):
    """The other side does not speak this protocol."""


def encode(kind: str, **fields: object) -> bytes:
    """Return one message as it is sent; bytes under ``payload`` follow the line."""
    fields["type"] = kind
    payload = fields.get("payload", b"")
    if isinstance(payload, bytes) and payload:
        fields["payload"] = len(payload)
    else:
        payload = b""
        fields.pop("payload", None)
    return _encode(fields).encode("ascii") + b"\n" + payload


class Decoder:
    """Splits a stream of bytes into messages, in linear time, however few bytes arrive at once.

    Args:
        limit: longest line in bytes; None for any, where the other side is trusted.
        payload_limit: most bytes that may follow a line.

    Attributes:
        limit, payload_limit: the arguments of these names; they may be changed between two messages.
    """

    def __init__(self, limit: "int | None" = MAX_LINE, payload_limit: int = MAX_PAYLOAD) -> None:
        self.limit = limit
        self.payload_limit = payload_limit
        self._bytes = bytearray()
        self._searched = 0  # bytes of it that are known to hold no end of a line
        self._waiting: "dict[str, Any] | None" = None  # the message whose payload has not come yet
        self._missing = 0  # bytes of that payload

    def feed(self, data: bytes) -> "Iterator[dict[str, Any]]":
        """Yield the messages that are complete with ``data``, with the bytes after each line under ``payload``.

        The iterator must be exhausted before the next call.

        Raises:
            ProtocolError: the bytes are not a message.
        """
        if self._is_one(data):
            only = _parse(data)
            if "payload" in only:
                self._expect_payload(only)
            else:
                yield only
            return
        self._bytes += data
        while True:
            message = self._next()
            if message is None:
                return
            yield message

    def _is_one(self, data: bytes) -> bool:
        """Return whether this is one message, neither more nor less, as it nearly always is."""
        if self._bytes or self._waiting is not None or (self.limit is not None and len(data) > self.limit):
            return False
        return 1 < len(data) == data.find(b"\n") + 1

    def _next(self) -> "dict[str, Any] | None":
        while self._waiting is None:
            end = self._bytes.find(b"\n", self._searched)
            self._searched = len(self._bytes) if end < 0 else 0
            if self.limit is not None and (len(self._bytes) if end < 0 else end) > self.limit:
                raise ProtocolError("a message is longer than {} bytes".format(self.limit))
            if end < 0:
                return None
            line = bytes(self._bytes[:end])
            del self._bytes[: end + 1]
            if line:
                message = _parse(line)
                if "payload" not in message:
                    return message
                self._expect_payload(message)
        if len(self._bytes) < self._missing:
            return None
        message, self._waiting = self._waiting, None
        message["payload"] = bytes(self._bytes[: self._missing])
        del self._bytes[: self._missing]
        return message

    def _expect_payload(self, message: "dict[str, Any]") -> None:
        size = message["payload"]
        if type(size) is not int or not 0 < size <= self.payload_limit:
            raise ProtocolError("a message may carry up to {} bytes".format(self.payload_limit))
        self._waiting, self._missing = message, size


def _parse(line: bytes) -> "dict[str, Any]":
    try:
        text = line.decode("utf-8").strip()
        message, end = _decode(text)
        if end < len(text):
            raise ValueError("there is more than one value")
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a message is not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ProtocolError("a message has no type")
    return message
