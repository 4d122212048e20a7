"""Copying of a folder of the session to this worker, for which only files that are not here already are sent.

The session has put a list of the folder's files with their hashes into one of the worker's places. A file that is in
its place already, or in the cache of earlier runs, is used; then the contents of all others are sent as one stream, in
the order of the list. Each file gets its name once all of it has arrived and has the announced hash.
"""

import binascii
import contextlib
import errno
import json
import os
import stat

from . import digest, fields, wire
from .places import open_file, open_folder, part_name, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Tuple

MOST_FILES = 100000
LARGEST_LIST = 1 << 26  # bytes
SLICE_BYTES = 1 << 22  # bytes that are copied or hashed before the agent does other work
SLICE_FILES = 64  # files that are looked at before the agent does other work
PIECE = 1 << 20  # bytes that are read at once
CACHE_BYTES = 1 << 30  # bytes that a cache may hold by default


class Entry:
    """One file of a list, or a link, which has a ``target``."""

    def __init__(self, described: "Any") -> None:
        if type(described) is not list or len(described) not in (2, 4):
            raise ValueError("an entry of the list makes no sense")
        self.path: str = fields.relative_path(described[0])
        self.target = self.sha256 = ""
        self.size = 0
        self.mode = 0o600
        if len(described) == 2:
            self.target = fields.string(described[1])
        else:
            self.size = fields.whole(0)(described[1])
            self.mode = fields.whole(0, 0o777)(described[2]) | 0o600
            self.sha256 = fields.digest(described[3])


class ProjectCopy:
    """The transfer of one folder.

    Args:
        order: the session's order.
        root: the folder to copy into.
        lists: the folder that has the list.
        cache: the cache of contents from earlier runs; None where nothing is kept.

    Raises:
        OSError, ValueError: the list is not valid, or the folder cannot be written to.

    Attributes:
        place: the name of the place.
    """

    def __init__(self, order: wire.Sync, root: str, lists: str, cache: "Cache | None") -> None:
        self.place = order.place
        self._number = order.transfer
        self._owner = "{}.{}".format(os.getpid(), order.transfer)  # other workers may write to the same folder
        self._root = root
        self._cache = cache
        self._folder: "Tuple[List[str], int] | None" = None  # the one that was last opened
        self._file = -1
        self._hash = digest.sha256()
        self._offset = 0
        self._missing_here = 0  # bytes of the present file that have not arrived
        self._contents: "Dict[str, List[Entry]]" = {}
        os.close(open_folder(root, [], make=True))
        self._links = []
        for entry in _read_list(lists, order.path):
            if entry.target:
                self._links.append(entry)
            else:
                self._contents.setdefault(entry.sha256, []).append(entry)
        self._unseen = list(self._contents)
        self._unseen.reverse()
        self._missing: "List[str]" = []
        self._total = 0

    def hash_slice(self) -> bool:
        """Copy some of the files whose contents are here already; return False once all are done."""
        done = 0
        for _ in range(SLICE_FILES):
            if not self._unseen:
                return False
            sha256 = self._unseen.pop()
            size = self._contents[sha256][0].size
            if not self._lay_out_from_here(sha256):
                self._missing.append(sha256)
                self._total += size
            done += size
            if done >= SLICE_BYTES:
                break
        return True

    def begin(self, answer: "Callable[..., object]") -> None:
        """Tell the session which contents are missing."""
        missing = set(self._missing)
        bits = bytearray((len(self._contents) + 7) // 8)
        for number, sha256 in enumerate(self._contents):
            if sha256 in missing:
                bits[number // 8] |= 1 << number % 8
        answer(wire.Lacks(self._number, bytes(bits)))
        self._missing.reverse()
        self._next_file(answer)

    def write(self, chunk: wire.Chunk, answer: "Callable[..., object]") -> None:
        """Write the next piece of the stream."""
        if chunk.offset != self._offset or self._offset + len(chunk.payload) > self._total:
            raise OSError("a piece of the stream is not the next one")
        data = memoryview(chunk.payload)
        self._offset += len(data)
        answer(wire.Have(self._number, self._offset))
        while data:
            piece = data[: self._missing_here]
            data = data[len(piece) :]
            self._missing_here -= len(piece)
            self._hash.update(piece)
            _write_all(self._file, piece)
            if not self._missing_here:
                self._finish_file()
                self._next_file(answer)

    @property
    def path(self) -> str:
        """The path of the file that arrives, or of the folder."""
        return os.path.join(self._root, self._contents[self._missing[-1]][0].path if self._missing else "")

    def close(self) -> None:
        """Close open files, and remove a file that has not arrived in full."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                folder, name = self._place_of(self._contents[self._missing[-1]][0])
                os.unlink(self._part(name), dir_fd=folder)
            os.close(self._file)
            self._file = -1
        if self._folder is not None:
            os.close(self._folder[1])
            self._folder = None

    # One file

    def _next_file(self, answer: "Callable[..., object]") -> None:
        """Open the part file of the next content; if there is none, make the links and end the transfer."""
        if not self._missing:
            self._make_links()
            kept = ""
            if self._cache is not None:
                self._cache.trim()
                kept = self._cache.known_as
            answer(wire.Synced(self._number, kept), is_over=True)
            return
        entry = self._contents[self._missing[-1]][0]
        folder, name = self._place_of(entry)
        self._file = open_file(folder, self._part(name), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self._hash = digest.sha256()
        self._missing_here = entry.size

    def _finish_file(self) -> None:
        sha256 = self._missing[-1]
        first, others = self._contents[sha256][0], self._contents[sha256][1:]
        folder, name = self._place_of(first)
        if self._hash.hexdigest() != sha256:
            raise OSError(errno.EIO, "it has changed while it was sent", first.path)
        os.fchmod(self._file, first.mode)
        os.rename(self._part(name), name, src_dir_fd=folder, dst_dir_fd=folder)
        if self._cache is not None:
            self._cache.keep(sha256, self._file, first.size)
        for entry in others:
            self._copy(self._file, entry)
        self._missing.pop()
        os.close(self._file)
        self._file = -1

    def _lay_out_from_here(self, sha256: str) -> bool:
        """Write all files with this content if it is on this worker; return whether it is."""
        entries = self._contents[sha256]
        if not entries[0].size:
            for entry in entries:
                self._copy(-1, entry)
            return True
        for entry in entries:
            source = self._open_here(entry)
            if source >= 0:
                try:
                    if _digest(source) == sha256:
                        os.fchmod(source, entry.mode)
                        for other in entries:
                            if other is not entry:
                                self._copy(source, other)
                        return True
                finally:
                    os.close(source)
        source = self._cache.open(sha256, entries[0].size) if self._cache is not None else -1
        if source < 0:
            return False
        try:
            return all(self._copy(source, entry) for entry in entries)
        finally:
            os.close(source)

    def _open_here(self, entry: Entry) -> int:
        """Return a descriptor of the existing file of an entry, if it has the entry's size; -1 otherwise."""
        folder, name = self._place_of(entry)
        try:
            found = open_file(folder, name, os.O_RDONLY)
        except OSError:
            return -1
        if os.fstat(found).st_size == entry.size:
            return found
        os.close(found)
        return -1

    def _copy(self, source: int, entry: Entry) -> bool:
        """Write a file as a copy of an open one (-1: as an empty file); return False where that has another hash."""
        folder, name = self._place_of(entry)
        part = self._part(name)
        target = open_file(folder, part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            if source >= 0 and _digest(source, target) != entry.sha256:
                os.unlink(part, dir_fd=folder)
                return False
            os.fchmod(target, entry.mode)
        except OSError as error:  # as of a full disk, which does not say of which file
            os.unlink(part, dir_fd=folder)
            raise OSError(error.errno, error.strerror, os.path.join(self._root, entry.path)) from error
        finally:
            os.close(target)
        os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)
        return True

    def _make_links(self) -> None:
        for entry in self._links:
            folder, name = self._place_of(entry)
            part = self._part(name)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(part, dir_fd=folder)
            os.symlink(entry.target, part, dir_fd=folder)
            os.rename(part, name, src_dir_fd=folder, dst_dir_fd=folder)

    def _part(self, name: str) -> str:
        return part_name(self._owner, name, "")

    def _place_of(self, entry: Entry) -> "Tuple[int, str]":
        """Return a descriptor of a file's folder, open until the next call, and the file's name in it."""
        parts = split(entry.path)
        if self._folder is None or self._folder[0] != parts[:-1]:
            opened = open_folder(self._root, parts[:-1], make=True)
            if self._folder is not None:
                os.close(self._folder[1])
            self._folder = (parts[:-1], opened)
        return self._folder[1], parts[-1]


class Cache:
    """A cache of file contents by their hashes for later runs, in a folder that only the user can access.

    Contents are checked whenever they are used. An error in the cache costs time only.

    Args:
        folder: the folder; ``~`` is the user's home.
        most: bytes that it may hold; the least recently used contents are removed first.
        known_as: its path for the user, where that is another; empty where it is not.

    Raises:
        OSError: the folder cannot be made, or belongs to another user.
    """

    def __init__(self, folder: str, most: int = CACHE_BYTES, known_as: str = "") -> None:
        self.folder = os.path.expanduser(folder)
        self.known_as = known_as or self.folder
        self._most = most
        self._has_grown = False
        os.makedirs(self.folder, 0o700, exist_ok=True)
        found = os.lstat(self.folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise OSError(errno.EPERM, "it is not this user's", self.folder)
        os.chmod(self.folder, 0o700)

    def open(self, sha256: str, size: int) -> int:
        """Return a descriptor of a content; -1 if it is not in the cache."""
        try:
            found = os.open(self._path(sha256), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return -1
        status = os.fstat(found)
        if stat.S_ISREG(status.st_mode) and status.st_size == size:  # scripts can put pipes and folders there, too
            with contextlib.suppress(OSError):
                os.utime(self._path(sha256))
            return found
        os.close(found)
        self.drop(sha256)
        return -1

    def keep(self, sha256: str, source: int, size: int) -> None:
        """Put a copy of an open file into the cache, unless it is there."""
        if size > self._most or self._has(sha256, size):  # of a worker beside this one
            return
        unique = binascii.hexlify(os.urandom(8)).decode()  # a process id would not be, between containers
        part = "{}.{}.part".format(self._path(sha256), unique)
        try:
            target = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                _digest(source, target)
            finally:
                os.close(target)
            os.rename(part, self._path(sha256))
            self._has_grown = True
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part)

    def _has(self, sha256: str, size: int) -> bool:
        found = self.open(sha256, size)
        if found < 0:
            return False
        try:
            if _digest(found) == sha256:
                return True
        finally:
            os.close(found)
        self.drop(sha256)
        return False

    def drop(self, sha256: str) -> None:
        """Remove a content from the cache."""
        with contextlib.suppress(OSError):
            os.unlink(self._path(sha256))

    def trim(self) -> None:
        """Remove the least recently used contents until the rest fits."""
        if not self._has_grown:
            return
        self._has_grown = False
        found = []
        try:
            names = os.listdir(self.folder)
        except OSError:  # another process has removed it meanwhile
            return
        for name in names:
            with contextlib.suppress(OSError):  # another worker has removed it
                status = os.lstat(os.path.join(self.folder, name))
                found.append((status.st_mtime, status.st_size, name))
        excess = sum(size for _, size, _ in found) - self._most
        for _, size, name in sorted(found):
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self.folder, name))
            excess -= size

    def _path(self, sha256: str) -> str:
        return os.path.join(self.folder, sha256)


def _read_list(lists: str, path: str) -> "List[Entry]":
    """Return the entries of a list. Raises OSError or ValueError where it is not valid."""
    parts = split(path)
    folder = open_folder(lists, parts[:-1])
    try:
        found = open_file(folder, parts[-1], os.O_RDONLY)
    finally:
        os.close(folder)
    with open(found, "rb") as file:
        data = file.read(LARGEST_LIST + 1)
    if len(data) > LARGEST_LIST:
        raise ValueError("the list is too long")
    described = json.loads(data.decode("utf-8"))
    if type(described) is not list or len(described) > MOST_FILES:
        raise ValueError("the list is none of at most {} files".format(MOST_FILES))
    return [Entry(entry) for entry in described]


def _digest(source: int, target: int = -1) -> str:
    """Return the SHA-256 of an open file, and copy the file to ``target`` meanwhile, unless that is -1."""
    found = digest.sha256()
    offset = 0
    while True:
        data = os.pread(source, PIECE, offset)
        if not data:
            return found.hexdigest()
        found.update(data)
        offset += len(data)
        if target >= 0:
            _write_all(target, memoryview(data))


def _write_all(target: int, data: "memoryview") -> None:
    while data:
        data = data[os.write(target, data) :]
