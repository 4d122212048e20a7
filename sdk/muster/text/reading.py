"""Reading of what is not trusted: files, such as records and logs of runs, and what programs print.

Nothing here blocks on a pipe without a writer, reads a device without end, or fails by endless recursion.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

COMPARED = 256  # bytes by which a log is recognized
LARGEST_NUMBER = sys.float_info.max
LARGEST_JSON = 1 << 28  # bytes of a JSON file; the plan of 10,000 workers has some 20 MB
LONGEST_LINE = 1 << 24  # characters of a line of a journal


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file. Anything else, such as a pipe, a device or a link to itself, counts as missing.

    Raises:
        OSError: it cannot be opened; FileNotFoundError if there is no such file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise FileNotFoundError(errno.ENOENT, "it is a link to itself", str(path)) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "it is no regular file", str(path))
        return open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int = -1) -> bytes:
    """Return the contents of a regular file, or its first ``most`` bytes. Raise OSError as ``open_regular`` does."""
    with open_regular(path) as file:
        return file.read(most)


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raise OSError, or ValueError if it is not JSON, or too large."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > LARGEST_JSON:
            raise ValueError(f"it has more than {LARGEST_JSON} bytes")
        return parse_json(file.read(LARGEST_JSON))


class Appended:
    """Reads what is appended to a log, even if its content is moved to ``.1`` meanwhile.

    The file itself remains, and may have grown past the old position before the next look at it; so what was read last
    is compared.

    Args:
        path: the log; it may come later.
        at_most: number of bytes to read of a log that is there already; None for all.
        at_once: number of bytes that one call of ``read`` returns at most, but for what has been moved; -1 for any.
    """

    def __init__(self, path: Path, at_most: int | None = None, at_once: int = -1) -> None:
        self.path = path
        self._at_most = at_most
        self._at_once = at_once
        self._position: int | None = None
        self._last = b""  # bytes before the position

    def read(self) -> bytes:
        """Return the bytes appended since the last call. Raise OSError as ``open_regular``, unless there is no file."""
        moved = b""
        try:
            with open_regular(self.path) as file:
                if self._position is None:
                    size = file.seek(0, os.SEEK_END)
                    self._position = 0 if self._at_most is None else max(0, size - self._at_most)
                if not follows(file, self._position, self._last):
                    moved = self._moved(self._position)
                    self._position, self._last = file.seek(0), b""
                news = file.read(self._at_once)
        except FileNotFoundError:
            return b""
        self._position += len(news)
        self._last = (self._last + news)[-COMPARED:]
        return moved + news

    def _moved(self, position: int) -> bytes:
        """Return what had been appended before the content was moved, as far as it is there."""
        try:
            with open_regular(self.path.with_name(f"{self.path.name}.1")) as file:
                return file.read() if follows(file, position, self._last) else b""
        except FileNotFoundError:
            return b""


def follows(file: BinaryIO, position: int, last: bytes) -> bool:
    """Go to a position in a file, and return whether the bytes ``last`` are before it, as they were earlier."""
    file.seek(position - len(last))
    return file.read(len(last)) == last


def is_finite(value: object) -> TypeGuard[float]:
    """Return whether a value is a number that can be calculated with: JSON may have NaN, or integers of any length."""
    return isinstance(value, (int, float)) and -LARGEST_NUMBER <= value <= LARGEST_NUMBER


def parse_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON, or its lists or dicts are nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("too many lists or dicts are in one another") from error


def parse_last_line(output: str) -> dict[str, Any]:
    """Return the JSON object in the last line of a program's output. Raise ValueError if there is none."""
    answer = parse_json((output.splitlines() or [""])[-1])
    if not isinstance(answer, dict):
        raise ValueError("it is no JSON object")
    return answer
