"""A file that arrives in pieces, in a part file beside its final place until all of it is there.

The name of the part file depends on the announced content. So an interrupted transfer is resumed where it ended, and a
file that is there already is not sent again. Methods raise OSError where it cannot be written, and ValueError where
other content arrives than was announced. One thread may close it while another uses it, which then gets ValueError.
"""

import contextlib
import os

from . import digest
from .places import open_file, open_folder, part_name

SLICE = 1 << 22  # bytes that are hashed at once


class PartFile:
    """A file that arrives in pieces. Nothing is opened before ``open`` is called.

    Args:
        root: the folder that the file's path may not leave.
        parts: the parts of its path in that folder.
        size, sha256: the announced size and hash.
        sender: name of the sender, so that two senders of files with one name and content do not share a part file.

    Attributes:
        offset: how many bytes have arrived, and are hashed.
        is_finished: whether the whole file is there, under its final name.
    """

    def __init__(self, root: str, parts: "list[str]", size: int, sha256: str, sender: str = "") -> None:
        import threading  # only here, as every launch waits for a guard's imports

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
        """Open the finished file or the part file, which is made if there is none."""
        with self._lock:
            self._check_open()
            self._folder = open_folder(self._root, self._parts[:-1], make=True)
            self.is_finished = self._open_finished()
            if not self.is_finished:
                self._open_part()

    def hash_slice(self) -> bool:
        """Hash some of the present content; return False once all is hashed: only then ``offset`` is final."""
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
        """Write the next piece."""
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
        """Give the file its final name, if it has the announced content."""
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
        """Close the file; a part file stays for the next attempt."""
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
        """Open the finished file; return whether there is one of that name and size, whose hash is yet unknown."""
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
