"""Reader of the end of a log file, and of the text that is appended to it."""

from __future__ import annotations

import codecs
from pathlib import Path

from muster.text.cleaning import clean
from muster.text.reading import Appended

FIRST_BYTES = 256 * 1024  # of a log that exists already; more than a person scrolls through in a cell


class LogTail:
    """Reads a log, or its last ``at_most`` bytes, and then the appended text, also after its rotation to ``.1``."""

    def __init__(self, path: Path, at_most: int | None = FIRST_BYTES, at_once: int = -1) -> None:
        self._appended = Appended(path, at_most, at_once)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def read(self) -> str:
        """Return the text appended since the last call, safe to be shown; carriage returns are line ends."""
        data = self._appended.read()
        return clean(self._decoder.decode(data).replace("\r\n", "\n").replace("\r", "\n"))
