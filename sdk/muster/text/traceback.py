"""Display of errors in a notebook: the lines of the user's code that led to one, and its message."""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parent.parent)
CELL_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]*/ipykernel_\d+/\d+\.py)", line (?P<line>\d+)(?P<where>,? in [^\n]+)$', re.MULTILINE
)


def shown_in_notebooks(error: BaseException) -> list[str]:
    """The lines of users' own files and cells that the error passed, and the error, as IPython displays them."""
    import sysconfig

    foreign = PACKAGE, "<frozen", *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith(foreign):
            lines += [f"{_file_name(frame.filename)}, line {frame.lineno}", f"----> {frame.line or ''}", ""]
    return [*lines, f"{type(error).__name__}: {error}"]


def with_cells(text: str) -> str:
    """A traceback or stacks of a worker's, with the names of this notebook's cells in place of those of their files.

    And in a traceback with their lines, which only this session has.
    """
    return CELL_FRAME.sub(_of_cell, text)


def _of_cell(frame: re.Match[str]) -> str:
    cell = cell_name(frame["file"])
    if not cell:
        return frame[0]
    line = linecache.getline(frame["file"], int(frame["line"])).strip()
    is_traceback = frame["where"].startswith(",") and not frame.string.startswith("\n    ", frame.end())
    line_name = f"  {cell}, line {frame['line']}{frame['where']}"
    return f"{line_name}\n    {line}" if line and is_traceback else line_name


def _file_name(filename: str) -> str:
    """Return IPython's name of a cell; the path of any other file."""
    return cell_name(filename) or f"File {filename}"


def cell_name(filename: str) -> str:
    """Return IPython's name of a cell; empty for any other file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name = shell.compile.format_code_name(filename) if shell is not None else None
    return " ".join(name) if name else ""
