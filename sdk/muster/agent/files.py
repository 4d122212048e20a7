"""Files that the session puts into this worker's places, and gets from them, over the agent's connection.

A file arrives in chunks in a part file beside its final place, whose name depends on the expected content. So an
interrupted transfer is resumed where it ended, and a file that is there already is not sent again. The file gets its
name once all of it has arrived and has the announced hash. Memory is bounded: few chunks are under way, and large files
are hashed in pieces, between which the agent does its other work.
"""

import itertools
import json
import os

from . import digest, wire
from .loop import Loop
from .parts import SLICE, PartFile
from .places import MOST_FILES, find, listing, open_file, open_folder, open_folder_in, split
from .project import Cache, ProjectCopy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Union

    Transfer = Union["Incoming", "Outgoing", ProjectCopy]

CHUNK = 1 << 17  # bytes
WINDOW = 4 * CHUNK  # bytes that may be sent and not yet acknowledged
MOST_TRANSFERS = 64  # at a time


class Files:
    """All transfers of one worker.

    Args:
        loop: the agent's event loop.
        send: sends a message to the session.
        places: the folders that files may be in, by the names that the session knows them by.
        cache: arguments of the ``Cache`` for later runs; None for no cache.
    """

    def __init__(
        self,
        loop: Loop,
        send: "Callable[[tuple[Any, ...]], object]",
        places: "dict[str, str]",
        cache: "dict[str, Any] | None" = None,
    ) -> None:
        self._loop = loop
        self._send = send
        self._places = places
        self._cache = cache
        self._transfers: "dict[int, Transfer]" = {}

    def put(self, order: wire.Put) -> None:
        """Begin to receive a file."""
        self._begin(order, lambda: Incoming(order, self._root(order.place)))

    def get(self, order: wire.Get) -> None:
        """Begin to send a file, or the listing of a folder: JSON, with the path and the size of each file in it.

        A listing has the next ``MOST_FILES`` files after the one that the order names, sorted by name. The size is null
        where the file is there but cannot be got.
        """
        self._begin(order, lambda: Outgoing(order, self._root(order.place)))

    def find(self, order: wire.Find) -> None:
        """Begin to send the listing of all files that match a pattern."""
        self._begin(order, lambda: Matches(order, self._root(order.place)))

    def sync(self, order: wire.Sync) -> None:
        """Begin to receive a folder."""
        for number, transfer in list(self._transfers.items()):  # an interrupted transfer, which begins again
            if isinstance(transfer, ProjectCopy) and transfer.place == order.place:
                self._end(number)
        self._begin(
            order,
            lambda: ProjectCopy(order, self._root(order.place), self._root(order.list_place), self._open_cache(order)),
        )

    def _open_cache(self, order: wire.Sync) -> "Cache | None":
        try:
            return Cache(**self._cache) if self._cache and order.is_kept else None
        except OSError:  # it would only have saved time
            return None

    def chunk(self, chunk: wire.Chunk) -> None:
        """Write a piece of a file."""
        transfer = self._transfers.get(chunk.transfer)
        if isinstance(transfer, (Incoming, ProjectCopy)):
            self._guarded(chunk.transfer, lambda: transfer.write(chunk, self._answer), transfer.path)

    def have(self, have: wire.Have) -> None:
        """Send the next chunks of a file, as the session acknowledges how much it has."""
        transfer = self._transfers.get(have.transfer)
        if isinstance(transfer, Outgoing):
            self._guarded(have.transfer, lambda: transfer.go_on(have.offset, self._answer))

    def missing(self, missing: wire.Missing) -> None:
        """End a transfer that the session gives up."""
        self._end(missing.transfer)

    def close(self) -> None:
        """End all transfers, as the connection has ended; part files stay, so that transfers can be resumed."""
        for number in list(self._transfers):
            self._end(number)

    def _root(self, place: str) -> str:
        if place not in self._places:
            raise OSError("this worker has no place {!r}".format(place))
        return self._places[place]

    def _begin(self, order: "wire.Put | wire.Get | wire.Find | wire.Sync", make: "Callable[[], Transfer]") -> None:
        number = order.transfer
        if number in self._transfers:
            self._send(wire.Missing(number, "there is a transfer with this number already"))
            return
        if len(self._transfers) >= MOST_TRANSFERS:  # the oldest must have ended with its connection
            self._end(next(iter(self._transfers)))

        def begin() -> None:
            self._transfers[number] = made = make()
            self._hash(number, made)

        self._guarded(number, begin)

    def _hash(self, number: int, transfer: "Transfer") -> None:
        """Hash the content that is there, a slice at a time, and then begin the transfer."""
        if self._transfers.get(number) is not transfer:
            return
        if transfer.hash_slice():
            self._loop.call_later(0, lambda: self._guarded(number, lambda: self._hash(number, transfer)))
        else:
            transfer.begin(self._answer)

    def _answer(self, message: "tuple[Any, ...]", is_over: bool = False) -> None:
        self._send(message)
        if is_over:
            self._end(message[0])

    def _guarded(self, number: int, call: "Callable[[], object]", path: str = "") -> None:
        """Call a function; where it fails, end the transfer, and say why and, where the error does not, at which path.

        Those of a disk that is full do not, as they come of writing to an open file.
        """
        try:
            call()
        except (OSError, ValueError) as error:
            is_absent = isinstance(error, FileNotFoundError)
            if path and isinstance(error, OSError) and error.errno and not error.filename:
                error = OSError(error.errno, error.strerror, path)
            self._end(number)
            self._send(wire.Missing(number, str(error)[:1000], is_absent))

    def _end(self, number: int) -> None:
        transfer = self._transfers.pop(number, None)
        if transfer is not None:
            transfer.close()


class Incoming:
    """An incoming file. Raises OSError where it cannot be written, ValueError where other content arrives.

    Attributes:
        path: its path.
    """

    def __init__(self, order: wire.Put, root: str) -> None:
        self._order = order
        self.path = os.path.join(root, order.path)
        self._part = PartFile(root, split(order.path), order.size, order.sha256)
        try:
            self._part.open()
        except OSError:
            self._part.close()
            raise

    def hash_slice(self) -> bool:
        """Hash some of the content that is there already; return False once all of it is hashed."""
        return self._part.hash_slice()

    def begin(self, answer: "Callable[..., object]") -> None:
        """Tell the session how much of the file is there."""
        self._answer(answer)

    def write(self, chunk: wire.Chunk, answer: "Callable[..., object]") -> None:
        """Write the next piece; a piece with another offset is only answered with the right one."""
        if chunk.offset == self._part.offset:
            self._part.write(chunk.offset, chunk.payload)
        self._answer(answer)

    def close(self) -> None:
        """Close the file."""
        self._part.close()

    def _answer(self, answer: "Callable[..., object]") -> None:
        is_over = self._part.offset >= self._order.size
        if is_over:
            self._part.finish(self._order.mode)
        answer(wire.Have(self._order.transfer, self._part.offset), is_over=is_over)


class Outgoing:
    """An outgoing file, up to its size when it was requested; or a listing. Raises OSError where it cannot be read."""

    def __init__(self, order: wire.Get, root: str) -> None:
        self._number = order.transfer
        self._hash = digest.sha256()
        self._hashed = 0
        self._sent = 0
        self._has_begun = False
        self._listing = b""
        self._file = -1
        parts = split(order.path)
        folder = open_folder(root, parts[:-1])
        try:
            try:
                self._file = open_file(folder, parts[-1], os.O_RDONLY)
                self._size = os.fstat(self._file).st_size
            except OSError:
                self._listing = self._list(folder, parts[-1], order.after)
                self._size = len(self._listing)
        finally:
            os.close(folder)

    @staticmethod
    def _list(around: int, name: str, after: "str | None") -> bytes:
        last = after.split("/") if after else []
        folder = open_folder_in(around, name)
        try:
            rest = (entry for entry in listing(folder) if entry[0].split("/") > last)
            return json.dumps(list(itertools.islice(rest, MOST_FILES))).encode("ascii")
        finally:
            os.close(folder)

    def hash_slice(self) -> bool:
        """Hash some of the content; return False once all of it is hashed."""
        data = self._read(self._hashed, min(SLICE, self._size - self._hashed))
        self._hash.update(data)
        self._hashed += len(data)
        return bool(data)

    def begin(self, answer: "Callable[..., object]") -> None:
        """Tell the session size and hash."""
        answer(wire.Found(self._number, self._size, self._hash.hexdigest()))

    def go_on(self, offset: int, answer: "Callable[..., object]") -> None:
        """Send the bytes from ``offset`` on, as far as the window reaches."""
        if offset >= self._size:
            answer(wire.Have(self._number, self._size), is_over=True)
            return
        if not self._has_begun:
            self._has_begun, self._sent = True, offset
        while self._sent < min(self._size, offset + WINDOW):
            data = self._read(self._sent, min(CHUNK, self._size - self._sent))
            if not data:
                raise OSError("the file has become shorter")
            answer(wire.Chunk(self._number, self._sent, data))
            self._sent += len(data)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self, offset: int, size: int) -> bytes:
        return os.pread(self._file, size, offset) if self._file >= 0 else self._listing[offset : offset + size]


class Matches(Outgoing):
    """The listing of all files that match a pattern. Raises OSError where it cannot be made."""

    def __init__(self, order: wire.Find, root: str) -> None:
        self._number = order.transfer
        self._hash = digest.sha256()
        self._hashed = self._sent = 0
        self._has_begun = False
        self._file = -1
        found = list(itertools.islice(find(root, order.pattern), MOST_FILES + 1))
        if len(found) > MOST_FILES:
            raise OSError("more than {} files match {}".format(MOST_FILES, order.pattern))
        self._listing = json.dumps(found).encode("ascii")
        self._size = len(self._listing)
