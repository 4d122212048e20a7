"""Messages about streams: a command that is run on the worker, or a connection to a port of it.

Each side may send as much as the other has given it credit for, and has ``WINDOW`` to begin with; a piece costs its
size and ``OVERHEAD``. What is done with them is in ``streams.py``.
"""

from .fields import items, optional, port, string, strings, text, whole
from .kinds import FROM_AGENT, FROM_SESSION, message, payload
from .tuples import NamedTuple

WINDOW = 1 << 17  # bytes
OVERHEAD = 64  # bytes
stream = whole(1)
_length = whole(0, 10000)
_channel = whole(0, 2)


def cost(data: bytes) -> int:
    """Return the credit that a piece of a stream needs."""
    return len(data) + OVERHEAD


@message(
    "execute", FROM_SESSION, stream=stream, argv=items(string, 1 << 16), env=strings, cwd=optional(string),
    rows=_length, columns=_length,
)  # fmt: skip
class Execute(NamedTuple):
    """Order to run a command, or a shell; answered by ``Opened`` or ``Closed``. ``rows``: of its terminal, if any."""

    stream: int
    argv: "tuple[str, ...]"
    env: "dict[str, str]"
    cwd: "str | None" = None
    rows: int = 0
    columns: int = 0


@message("dial", FROM_SESSION, stream=stream, port=port, host=optional(string))
class Dial(NamedTuple):
    """Order to connect to a port of the worker, or of ``host``; answered by ``Opened`` or ``Closed``."""

    stream: int
    port: int
    host: "str | None" = None


@message("opened", FROM_AGENT, stream=stream, source=optional(port))
class Opened(NamedTuple):
    """The command has been started, or the connection has been made; ``source``: from which port of the loopback."""

    stream: int
    source: "int | None" = None


@message("data", FROM_AGENT, FROM_SESSION, stream=stream, channel=_channel, payload=payload)
class Data(NamedTuple):
    """A piece of a stream; ``channel``: 0 to the worker, 1 and 2 from there (2: standard error)."""

    stream: int
    channel: int = 0
    payload: bytes = b""


@message("credit", FROM_AGENT, FROM_SESSION, stream=stream, size=whole(1, WINDOW))
class Credit(NamedTuple):
    """Grant of credit: the other side may send ``size`` more."""

    stream: int
    size: int


@message("eof", FROM_AGENT, FROM_SESSION, stream=stream, channel=_channel)
class Eof(NamedTuple):
    """The end of a channel: no more data follows on it."""

    stream: int
    channel: int = 0


@message("resize", FROM_SESSION, stream=stream, rows=_length, columns=_length)
class Resize(NamedTuple):
    """The terminal of a command has another size."""

    stream: int
    rows: int
    columns: int


@message("close", FROM_SESSION, stream=stream)
class Close(NamedTuple):
    """Order to end a stream, with its command or connection."""

    stream: int


@message(
    "closed", FROM_AGENT, stream=stream, exit_code=optional(whole(0, 255)), signal=optional(whole(1, 127)),
    text=text(4000),
)  # fmt: skip
class Closed(NamedTuple):
    """The stream has ended: the exit status or signal of its command, or why there was no stream."""

    stream: int
    exit_code: "int | None" = None
    signal: "int | None" = None
    text: str = ""
