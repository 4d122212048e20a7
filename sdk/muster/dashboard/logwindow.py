"""A worker's log as a person reads it: its end as it grows and, on request, the lines before that.

An offset is the number of bytes from the beginning of the file; text that was moved to ``.1`` has negative offsets.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from muster.text.cleaning import clean
from muster.text.reading import COMPARED, follows, open_regular

MOST_BYTES = 128 * 1024  # of a message; of a log that grows faster than a page can show, only the newest are sent
MOST_COUNTED = 1 << 30  # bytes that are read at most to count lines

# Trailing bytes that may be the first part of a line end or of a character: the rest may not be written yet.
_TORN = re.compile(rb"(?:\r|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z")


class LogWindow:
    """Reads the end of the log at ``path``, and counts the lines before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._older = path.with_name(path.name + ".1")
        self._position: int | None = None
        self._lines = 0  # before the position
        self._in_line = False  # whether the position is within a line
        self._last = b""  # bytes before the position

    def read(self) -> dict[str, Any]:
        """Return the text appended since the last call.

        The dict has the ``text``; ``start``, the offset of its first byte; ``line``, the first offset from ``start`` on
        where a line begins, or None; ``before``, the number of lines before the text; and ``fresh``, which is True if
        the text does not follow the last one, since text was left out or the file has begun anew.
        """
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, 2)
                fresh = self._position is None or not follows(file, self._position, self._last)
                if self._position is None or fresh:
                    self._position, self._lines, self._in_line, self._last = 0, _lines_of(self._older), False, b""
                if size - self._position > MOST_BYTES:
                    fresh = True
                    self._skip(file, size - MOST_BYTES)
                file.seek(self._position)
                data = file.read(MOST_BYTES)
        except FileNotFoundError:
            return {"text": "", "start": 0, "line": 0, "before": 0, "fresh": True}
        whole = _TORN.sub(b"", data) if len(data) < MOST_BYTES else data
        first = whole.find(b"\n") + 1 if self._in_line else 0
        told = {
            "text": _text_of(whole),
            "start": self._position,
            "line": self._position + first if first or not self._in_line else None,
            "before": self._lines,
            "fresh": fresh,
        }
        self._position += len(whole)
        self._last = (self._last + whole)[-COMPARED:]
        if whole:
            self._in_line = not whole.endswith(b"\n")
        self._lines += _count(whole)
        return told

    def older(self, start: int) -> dict[str, Any]:
        """Return the lines before the offset ``start``.

        The dict has the ``text``, empty at the beginning of the log, and the offsets of its ``start`` and its ``end``.
        """
        path, end, base = self.path, start, 0
        try:
            if start <= 0:
                path, base = self._older, -self._older.stat().st_size
                end = start - base
            with open_regular(path) as file:
                begin = max(0, end - MOST_BYTES)
                file.seek(begin)
                data = file.read(max(0, end - begin))
        except OSError:
            return {"text": "", "start": start, "end": start}
        if begin:
            torn = data.find(b"\n") + 1
            begin, data = begin + torn, data[torn:]
        return {"text": _text_of(data), "start": begin + base, "end": start}

    def _skip(self, file: Any, wanted: int) -> None:
        """Move the position to the first line that begins after the offset ``wanted``, or there if none does."""
        file.seek(self._position)
        left = wanted - (self._position or 0)
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            self._lines += _count(data)
            left -= len(data)
        rest = file.read(MOST_BYTES)
        torn = rest.find(b"\n") + 1
        self._lines += _count(rest[:torn])
        self._position = wanted + torn
        begin = file.seek(max(0, self._position - COMPARED))
        self._last = file.read(self._position - begin)
        self._in_line = not self._last.endswith(b"\n")


def _text_of(data: bytes) -> str:
    text = data.decode("utf-8", errors="replace")
    return "\r".join(map(clean, text.replace("\r\n", "\n").split("\r")))  # the page handles carriage returns


def _count(data: bytes) -> int:
    return data.count(b"\n")


def _lines_of(path: Path) -> int:
    count = 0
    try:
        with open_regular(path) as file:
            while file.tell() < MOST_COUNTED and (data := file.read(1 << 20)):
                count += _count(data)
    except OSError:
        return 0
    return count
