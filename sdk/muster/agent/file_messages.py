"""Messages about files, in both directions.

Whoever gets one says how much of it is there already, and what comes after that is sent. At most a few chunks are under
way at a time, each answered by a ``Have``. What is done with them is in ``files.py`` and ``project.py``.
"""

from .fields import digest, name, optional, relative_path, text, whole, yes_or_no
from .kinds import FROM_AGENT, FROM_SESSION, message, offset, payload, transfer
from .tuples import NamedTuple


@message(
    "put", FROM_SESSION, transfer=transfer, place=name, path=relative_path, size=whole(0), sha256=digest,
    mode=whole(0, 0o777),
)  # fmt: skip
class Put(NamedTuple):
    """Order to write a file; answered by ``Have``, or by ``Missing`` where it cannot be written."""

    transfer: int
    place: str
    path: str
    size: int
    sha256: str
    mode: int = 0o600


@message("sync", FROM_SESSION, transfer=transfer, place=name, list_place=name, path=relative_path, is_kept=yes_or_no)
class Sync(NamedTuple):
    """Order to lay out a folder by a list of its files, which was put before (``project.py``); answered by ``Lacks``.

    ``is_kept``: whether the contents may be kept for later runs.
    Then ``Chunk``s of the missing contents follow, all in one stream, each answered by ``Have``; and last ``Synced``.
    """

    transfer: int
    place: str
    list_place: str
    path: str
    is_kept: bool = True


@message("lacks", FROM_AGENT, transfer=transfer, payload=payload)
class Lacks(NamedTuple):
    """The contents that the worker lacks: a bit for each content, in the order of the list, the lowest bit first."""

    transfer: int
    payload: bytes = b""


@message("synced", FROM_AGENT, transfer=transfer, cache=text(4096))
class Synced(NamedTuple):
    """The folder has been laid out; ``cache`` says where contents are kept for later runs, and is empty if nowhere."""

    transfer: int
    cache: str = ""


@message("find", FROM_SESSION, transfer=transfer, place=name, pattern=text(4096))
class Find(NamedTuple):
    """A request for a list of the files that match a pattern (``places.py``); answered like ``Get`` of a folder."""

    transfer: int
    place: str
    pattern: str


@message("get", FROM_SESSION, transfer=transfer, place=name, path=relative_path, after=optional(relative_path))
class Get(NamedTuple):
    """A request for a file, or for the list of a folder after a file; answered by ``Found`` or ``Missing``."""

    transfer: int
    place: str
    path: str
    after: "str | None" = None


@message("found", FROM_AGENT, transfer=transfer, size=whole(0), sha256=digest)
class Found(NamedTuple):
    """The size and hash of a requested file; its chunks follow once ``Have`` says where to begin."""

    transfer: int
    size: int
    sha256: str


@message("have", FROM_AGENT, FROM_SESSION, transfer=transfer, offset=offset)
class Have(NamedTuple):
    """The first ``offset`` bytes have arrived; if that is the file's size, the file is complete and its hash right."""

    transfer: int
    offset: int


@message("missing", FROM_AGENT, FROM_SESSION, transfer=transfer, text=text(4000), is_absent=yes_or_no)
class Missing(NamedTuple):
    """The transfer cannot begin or go on: the reason, and whether there is no such file or folder."""

    transfer: int
    text: str
    is_absent: bool = False


@message("chunk", FROM_AGENT, FROM_SESSION, transfer=transfer, offset=offset, payload=payload)
class Chunk(NamedTuple):
    """A piece of a file that begins at ``offset``."""

    transfer: int
    offset: int
    payload: bytes = b""
