"""A worker's log as a person looks at it: its end as it grows, and on request what came before, in whole lines.

An offset is the number of bytes from the beginning of the file; what has been moved to ``.1`` has offsets below 0.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from muster.text.cleaning import clean
from muster.text.reading import open_regular

MOST_BYTES = 128 * 1024  # of a message: of a log that grows faster than a page can show it, the newest
MOST_COUNTED = 1 << 30  # bytes that are looked through to count lines

# Bytes that more bytes may turn into another line end, or another character.
_TORN = re.compile(rb"(?:\r|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z")


class LogWindow:
    """The end of the log at ``path``, and how much is before it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._older = path.with_name(path.name + ".1")
        self._position: int | None = None
        self._lines = 0  # before the position
        self._in_line = False  # what was read last has not ended its line

    def read(self) -> dict[str, Any]:
        """Return the text appended since the last call.

        ``text``; ``start``, the offset of its first byte; ``line``, the first offset from there where a line begins, or
        None; ``before``, how many lines are before the text; and ``fresh``: whether it does not follow what was read
        before, since that was left out, or the file has begun anew.
        """
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, 2)
                fresh = self._position is None or size < self._position
                if self._position is None or size < self._position:
                    self._position, self._lines, self._in_line = 0, _lines_of(self._older), False
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
            "text": _shown(whole),
            "start": self._position,
            "line": self._position + first if first or not self._in_line else None,
            "before": self._lines,
            "fresh": fresh,
        }
        self._position += len(whole)
        if whole:
            self._in_line = not whole.endswith(b"\n")
        self._lines += _count(whole)
        return told

    def older(self, start: int) -> dict[str, Any]:
        """The lines up to the offset ``start``, as ``end``: ``text``, and its ``start``; none at the beginning."""
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
        return {"text": _shown(data), "start": begin + base, "end": start}

    def _skip(self, file: Any, wanted: int) -> None:
        """Go on at the first line that begins after ``wanted``."""
        file.seek(self._position)
        left = wanted - (self._position or 0)
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            self._lines += _count(data)
            left -= len(data)
        rest = file.read(MOST_BYTES)
        torn = rest.find(b"\n") + 1
        self._lines += _count(rest[:torn])
        self._position, self._in_line = wanted + torn, False


def _shown(data: bytes) -> str:
    text = data.decode("utf-8", errors="replace")
    return "\r".join(map(clean, text.replace("\r\n", "\n").split("\r")))  # the page has lines overwritten


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
