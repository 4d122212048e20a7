"""Line breaks between words, where a terminal would break lines anywhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TextIO

import click

MARKS_OF_TRACEBACKS = set(" ~^|")  # a line of them points at the one above, which a second line does not


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
    lines = [line for line in text.split("\n") if len(line) <= width or not set(line) <= MARKS_OF_TRACEBACKS]
    return "\n".join(_fill(line, width, taken if number == 0 else 0) for number, line in enumerate(lines))


class HelpFormatter(click.HelpFormatter):
    """Formatter of help that breaks lines of examples and tables, too, and has options above narrow descriptions."""

    def write_text(self, text: str) -> None:
        """Write paragraphs; those whose lines click leaves as they are fit as well."""
        width = self.width - self.current_indent
        lines = click.formatting.wrap_text(text, width, preserve_paragraphs=True).split("\n")
        indent = " " * self.current_indent
        self.write("".join(f"{_fill(indent + line, self.width, 0) if line else ''}\n" for line in lines))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands with what they are, in no less than half of the width."""
        super().write_dl(rows, min(col_max, self.width // 3), col_spacing)


class HelpContext(click.Context):
    """The context of a command whose help is written so."""

    formatter_class = HelpFormatter


def _fill(line: str, width: int, taken: int) -> str:
    """Break a line between words; what is broken off is indented as the line is, and two further where that is."""
    if len(line) + taken <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    layout = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    layout.initial_indent = "x" * taken + indent
    layout.subsequent_indent = f"{indent}  " if indent else ""
    return layout.fill(line.lstrip())[taken:]
