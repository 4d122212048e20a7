"""Reader of the end of a log file, and of the text that is appended to it."""

from __future__ import annotations

import codecs
from pathlib import Path

from muster.text.cleaning import clean
from muster.text.reading import open_regular

FIRST_BYTES = 256 * 1024  # of a log that exists already; more than a person scrolls through in a cell


class LogTail:
    """Reads a log, or its last ``at_most`` bytes, and then the appended text, also after its rotation to ``.1``."""

    def __init__(self, path: Path, at_most: int | None = FIRST_BYTES) -> None:
        self.path = path
        self._at_most = at_most
        self._position: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """Return the text appended since the last call, safe to be shown; carriage returns are line ends."""
        try:
            with open_regular(self.path) as file:
                size = file.seek(0, 2)
                if self._position is None:
                    self._position = max(0, size - self._at_most) if self._at_most else 0
                elif size < self._position:
                    self._position = 0
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return ""
        self._position += len(data)
        return clean(self._decoder.decode(data).replace("\r\n", "\n").replace("\r", "\n"))
