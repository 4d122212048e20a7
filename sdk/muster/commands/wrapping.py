"""Line breaks between words, where a terminal would break lines anywhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TextIO


def columns(otherwise: int = 80) -> int:
    """Return how wide the terminal is, or ``COLUMNS`` says; ``otherwise`` where there is none, or it does not know."""
    return shutil.get_terminal_size((otherwise, 24)).columns or otherwise  # Python 3.10 hands on its 0


def wrapped(text: str, stream: TextIO | None = None, taken: int = 0) -> str:
    """Return ``text`` in lines that fit the terminal that it is written to; as it is where that is no terminal.

    Words that are longer than a line, such as paths, stay whole. Of the first line ``taken`` characters are used.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        return text
    width = columns()
    return "\n".join(_fill(line, width, taken if number == 0 else 0) for number, line in enumerate(text.split("\n")))


def _fill(line: str, width: int, taken: int) -> str:
    """Break a line between words; what is broken off is indented as the line is, and two further where that is."""
    if len(line) + taken <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    layout = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    layout.initial_indent = "x" * taken + indent
    layout.subsequent_indent = f"{indent}  " if indent else ""
    return layout.fill(line.lstrip())[taken:]
