"""A file that comes in pieces: beside its place until all of it is there, and under its own name from then on.

It is named by the content that is to come. So what was torn goes on where it ended, and a file that is there already
need not come again. Raises OSError where it cannot be written, and ValueError where what comes is not what was
announced. One thread may close it while another is at work on it, which then ends.
"""

import contextlib
import os
import threading

from . import digest
from .places import open_file, open_folder, part_name

SLICE = 1 << 22  # bytes that are hashed at once


class PartFile:
    """A file that comes. Nothing is opened before ``open`` is called.

    Args:
        root: the folder that it may not leave.
        parts: its path in there, in parts.
        size, sha256: what was announced.
        sender: who sends it: two that send files of one name and content do not get into each other's way.

    Attributes:
        offset: how much of it is there.
        is_finished: whether all of it is, under its own name.
    """

    def __init__(self, root: str, parts: "list[str]", size: int, sha256: str, sender: str = "") -> None:
        self.offset = 0
        self.is_finished = False
        self._root, self._parts = root, parts
        self._size, self._sha256 = size, sha256
        self._part = part_name(sender, parts[-1], sha256)
        self._hash = digest.sha256()
        self._file = -1
        self._folder = -1
        self._is_closed = False
        self._lock = threading.Lock()

    def open(self) -> None:
        """Open what is there of it."""
        with self._lock:
            self._check_open()
            self._folder = open_folder(self._root, self._parts[:-1], make=True)
            self.is_finished = self._open_finished()
            if not self.is_finished:
                self._open_part()

    def hash_slice(self) -> bool:
        """Hash some of what is there; False once that is done, and only then is it known how much that is."""
        with self._lock:
            self._check_open()
            data = os.pread(self._file, SLICE, self.offset)
            self._hash.update(data)
            self.offset += len(data)
            if data:
                return True
            if self.is_finished and self._hash.hexdigest() != self._sha256:  # another file of that name and size
                self.is_finished = False
                os.close(self._file)
                self._open_part()
                return True
            return False

    def write(self, offset: int, payload: bytes) -> None:
        """Take the next piece."""
        with self._lock:
            self._check_open()
            if offset != self.offset or self.offset + len(payload) > self._size:
                raise ValueError("a piece is not the next one, or more came than was announced")
            data = memoryview(payload)
            while data:
                try:
                    written = os.pwrite(self._file, data, self.offset)
                except OSError:  # as of a full disk, which is not to stay full of half a file
                    with contextlib.suppress(OSError):
                        os.unlink(self._part, dir_fd=self._folder)
                    raise
                self._hash.update(data[:written])
                self.offset += written
                data = data[written:]

    def finish(self, mode: "int | None" = None) -> None:
        """Give it its name, if all of it is there and is what was announced."""
        with self._lock:
            self._check_open()
            if not self.is_finished and self._hash.hexdigest() != self._sha256:
                os.unlink(self._part, dir_fd=self._folder)
                raise ValueError("its content is another one than was announced")
            if mode is not None:
                os.fchmod(self._file, mode)
            if not self.is_finished:
                os.rename(self._part, self._parts[-1], src_dir_fd=self._folder, dst_dir_fd=self._folder)
            self.is_finished = True

    def close(self) -> None:
        """Close it; what has come stays for the next attempt."""
        with self._lock:
            self._is_closed = True
            for descriptor in (self._file, self._folder):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._folder = -1

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("it has been given up")

    def _open_finished(self) -> bool:
        """Open the finished file; return whether there is one of that name and size, which may be the very one."""
        try:
            self._file = open_file(self._folder, self._parts[-1], os.O_RDONLY)
        except OSError:
            return False
        if os.fstat(self._file).st_size == self._size:
            return True
        os.close(self._file)
        self._file = -1
        return False

    def _open_part(self) -> None:
        self._hash, self.offset = digest.sha256(), 0
        self._file = -1
        self._file = open_file(self._folder, self._part, os.O_RDWR | os.O_CREAT)
        found = os.fstat(self._file)
        if found.st_nlink != 1:
            raise OSError("its part file has another link")
        if found.st_size > self._size:
            os.ftruncate(self._file, 0)
