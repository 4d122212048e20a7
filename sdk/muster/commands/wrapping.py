"""Texts and tables as commands print them: with line breaks between words, as a terminal would break lines anywhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import click

from muster.runtime.outlet import takes_escapes

if TYPE_CHECKING:
    from rich.console import RenderableType

MARKS_OF_TRACEBACKS = set(" ~^|")  # a line of these points into the line above, unless that is wrapped


def columns(otherwise: int = 80) -> int:
    """Return the width of the terminal, or what ``COLUMNS`` says; ``otherwise`` if there is none, or it is unknown."""
    return shutil.get_terminal_size((otherwise, 24)).columns or otherwise  # Python 3.10 returns a terminal's 0


def wrapped(text: str, stream: TextIO | None = None, taken: int = 0) -> str:
    """Return ``text`` in lines that fit the terminal of ``stream``; unchanged where that is no terminal.

    Words that are longer than a line, such as paths, stay whole. The first line is shorter by ``taken`` characters.
    """
    stream = stream or sys.stdout
    if not stream.isatty():
        return text
    width = columns()
    lines = [line for line in text.split("\n") if len(line) <= width or not set(line) <= MARKS_OF_TRACEBACKS]
    return "\n".join(_fill(line, width, taken if number == 0 else 0) for number, line in enumerate(lines))


def say(text: str, *, err: bool = False) -> None:
    """Print ``text``, wrapped, to standard output, or to standard error."""
    click.echo(wrapped(text, sys.stderr if err else sys.stdout), err=err)


def print_rich(shown: RenderableType, *, width: int | None = None) -> None:
    """Print an object of Rich. Raises OSError where nobody reads the output any more, unlike Rich's own print."""
    from rich.console import Console

    console = Console(width=width, color_system="auto" if takes_escapes(sys.stdout) else None)
    with console.capture() as capture:
        console.print(shown)
    lines = capture.get().split("\n")
    click.echo("\n".join(lines if console.is_terminal else map(str.rstrip, lines)), nl=False)


class HelpFormatter(click.HelpFormatter):
    """Formatter of help that also wraps examples and tables, and puts long options above their descriptions."""

    def write_text(self, text: str) -> None:
        """Write paragraphs, and wrap also those whose lines click does not wrap."""
        width = self.width - self.current_indent
        lines = click.formatting.wrap_text(text, width, preserve_paragraphs=True).split("\n")
        indent = " " * self.current_indent
        self.write("".join(f"{_fill(indent + line, self.width, 0) if line else ''}\n" for line in lines))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands with their descriptions, which get at least half of the width."""
        super().write_dl(rows, min(col_max, self.width // 3), col_spacing)


class HelpContext(click.Context):
    """The context of a command whose help is written by ``HelpFormatter``."""

    formatter_class = HelpFormatter


def _fill(line: str, width: int, taken: int) -> str:
    """Wrap a line between words; if it is indented, further lines are indented by two columns more."""
    if len(line) + taken <= width:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    layout = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False, drop_whitespace=True)
    layout.initial_indent = "x" * taken + indent
    layout.subsequent_indent = f"{indent}  " if indent else ""
    return layout.fill(line.lstrip())[taken:]
