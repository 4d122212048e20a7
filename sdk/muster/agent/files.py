"""Files that the session puts into this worker's places, and gets from there, over the agent's connection.

A file comes in chunks into a part file beside its place, which is named by the content that is to come. So a transfer
that was torn goes on where it ended, and a file that is there already is not sent again. It takes its name once all
of it is there and has the hash that was announced. Memory is bounded: few chunks are under way, and large files are
hashed in pieces, between which the agent does its other work.
"""

import hashlib
import json
import os

from . import wire
from .loop import Loop
from .places import MOST_FILES, listing, open_file, open_folder, open_folder_in, part_name, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

CHUNK = 1 << 17  # bytes
WINDOW = 4 * CHUNK  # bytes that are sent before the first of them must be answered
SLICE = 1 << 22  # bytes that are hashed at once
MOST_TRANSFERS = 64  # at a time


class Files:
    """All transfers of one worker.

    Args:
        loop: the agent's event loop.
        send: sends a message to the session.
        places: the folders that files may be in, by the names that the session knows them by.
    """

    def __init__(self, loop: Loop, send: "Callable[[tuple[Any, ...]], object]", places: "dict[str, str]") -> None:
        self._loop = loop
        self._send = send
        self._places = places
        self._transfers: "dict[int, Incoming | Outgoing]" = {}

    def put(self, order: wire.Put) -> None:
        """Begin to take a file."""
        self._begin(order, lambda: Incoming(order, self._root(order.place)))

    def get(self, order: wire.Get) -> None:
        """Begin to send a file, or the listing of a folder: JSON, with the path and the size of every file in it.

        The size is null where the file is there but cannot be got.
        """
        self._begin(order, lambda: Outgoing(order, self._root(order.place)))

    def chunk(self, chunk: wire.Chunk) -> None:
        """Take a piece of a file."""
        transfer = self._transfers.get(chunk.transfer)
        if isinstance(transfer, Incoming):
            self._guarded(chunk.transfer, lambda: transfer.write(chunk, self._answer))

    def have(self, have: wire.Have) -> None:
        """Send what comes next: the session has so much of a file that is sent to it."""
        transfer = self._transfers.get(have.transfer)
        if isinstance(transfer, Outgoing):
            self._guarded(have.transfer, lambda: transfer.go_on(have.offset, self._answer))

    def missing(self, missing: wire.Missing) -> None:
        """End a transfer that the session gives up."""
        self._end(missing.transfer)

    def close(self) -> None:
        """End all transfers, as the connection is gone; what has come of each file stays for the next."""
        for number in list(self._transfers):
            self._end(number)

    def _root(self, place: str) -> str:
        if place not in self._places:
            raise OSError("this worker has no place {!r}".format(place))
        return self._places[place]

    def _begin(self, order: "wire.Put | wire.Get", make: "Callable[[], Incoming | Outgoing]") -> None:
        number = order.transfer
        if number in self._transfers:
            self._send(wire.Missing(number, "there is a transfer with this number already"))
            return
        if len(self._transfers) >= MOST_TRANSFERS:  # the oldest was torn with its connection
            self._end(next(iter(self._transfers)))

        def begin() -> None:
            self._transfers[number] = made = make()
            self._hash(number, made)

        self._guarded(number, begin)

    def _hash(self, number: int, transfer: "Incoming | Outgoing") -> None:
        """Hash what is there, a slice at a time, and then begin."""
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

    def _guarded(self, number: int, call: "Callable[[], object]") -> None:
        try:
            call()
        except (OSError, ValueError) as error:
            self._end(number)
            self._send(wire.Missing(number, str(error)[:1000], isinstance(error, FileNotFoundError)))

    def _end(self, number: int) -> None:
        transfer = self._transfers.pop(number, None)
        if transfer is not None:
            transfer.close()


class Incoming:
    """An incoming file. Raises OSError where it cannot be written."""

    def __init__(self, order: wire.Put, root: str) -> None:
        parts = split(order.path)
        self._order = order
        self._name = parts[-1]
        self._part = part_name("", self._name, order.sha256)
        self._folder = open_folder(root, parts[:-1], make=True)
        self._file = -1
        self._hash = hashlib.sha256()
        self._offset = 0
        try:
            self._is_there = self._open_finished()
            if not self._is_there:
                self._open_part()
        except OSError:
            self.close()
            raise

    def hash_slice(self) -> bool:
        """Hash some of what is there already; False once that is done."""
        data = os.pread(self._file, SLICE, self._offset)
        self._hash.update(data)
        self._offset += len(data)
        if data:
            return True
        if self._is_there and self._hash.hexdigest() != self._order.sha256:  # another file of that name and size
            self._is_there = False
            os.close(self._file)
            self._open_part()
            return True
        return False

    def begin(self, answer: "Callable[..., object]") -> None:
        """Tell the session how much is there."""
        if self._is_there:
            os.fchmod(self._file, self._order.mode)
            answer(wire.Have(self._order.transfer, self._order.size), is_over=True)
        elif self._offset >= self._order.size:
            self._finish(answer)
        else:
            answer(wire.Have(self._order.transfer, self._offset))

    def write(self, chunk: wire.Chunk, answer: "Callable[..., object]") -> None:
        """Take the next piece; one that is not the next is answered by where that begins."""
        if chunk.offset == self._offset:
            if self._offset + len(chunk.payload) > self._order.size:
                raise OSError("more came than was announced")
            data = memoryview(chunk.payload)
            while data:
                written = os.pwrite(self._file, data, self._offset)
                self._hash.update(data[:written])
                self._offset += written
                data = data[written:]
        if self._offset == self._order.size:
            self._finish(answer)
        else:
            answer(wire.Have(self._order.transfer, self._offset))

    def close(self) -> None:
        """Close the file."""
        for descriptor in (self._file, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder = -1

    def _open_finished(self) -> bool:
        """Open the finished file; return whether there is one of that name and size, which may be the very one."""
        try:
            self._file = open_file(self._folder, self._name, os.O_RDONLY)
        except OSError:
            return False
        if os.fstat(self._file).st_size == self._order.size:
            return True
        os.close(self._file)
        return False

    def _open_part(self) -> None:
        self._hash, self._offset = hashlib.sha256(), 0
        self._file = -1
        self._file = open_file(self._folder, self._part, os.O_RDWR | os.O_CREAT)
        if os.fstat(self._file).st_nlink != 1:
            raise OSError("its part file has another link")
        if os.fstat(self._file).st_size > self._order.size:
            os.ftruncate(self._file, 0)

    def _finish(self, answer: "Callable[..., object]") -> None:
        if self._hash.hexdigest() != self._order.sha256:
            os.unlink(self._part, dir_fd=self._folder)
            raise OSError("what came is not what was announced")
        os.fchmod(self._file, self._order.mode)
        os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        answer(wire.Have(self._order.transfer, self._order.size), is_over=True)


class Outgoing:
    """A file that is sent, as long as it was when it was asked for; or a listing. Raises OSError where it cannot."""

    def __init__(self, order: wire.Get, root: str) -> None:
        self._number = order.transfer
        self._hash = hashlib.sha256()
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
                self._listing = self._list(folder, parts[-1])
                self._size = len(self._listing)
        finally:
            os.close(folder)

    @staticmethod
    def _list(around: int, name: str) -> bytes:
        folder = open_folder_in(around, name)
        try:
            found = []
            for entry in listing(folder):
                found.append(entry)
                if len(found) > MOST_FILES:
                    raise OSError("there are more than {} files in it".format(MOST_FILES))
        finally:
            os.close(folder)
        return json.dumps(found).encode("ascii")

    def hash_slice(self) -> bool:
        """Hash some of it; False once that is done."""
        data = self._read(self._hashed, min(SLICE, self._size - self._hashed))
        self._hash.update(data)
        self._hashed += len(data)
        return bool(data)

    def begin(self, answer: "Callable[..., object]") -> None:
        """Tell the session what there is to send."""
        answer(wire.Found(self._number, self._size, self._hash.hexdigest()))

    def go_on(self, offset: int, answer: "Callable[..., object]") -> None:
        """Send what comes after the first ``offset`` bytes, as far as the window reaches."""
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
