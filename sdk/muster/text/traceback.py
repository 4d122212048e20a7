"""Errors as a notebook shows them: the line of the user's that led to one, and its message."""

from __future__ import annotations

import linecache
import re
import sys
import sysconfig
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parent.parent)
CELL_FRAME = re.compile(
    r'^  File "(?P<file>[^"\n]*/ipykernel_\d+/\d+\.py)", line (?P<line>\d+), in (?P<function>[^\n]+)$(?!\n    )',
    re.MULTILINE,
)
FOREIGN = tuple({PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))})


def shown_in_notebooks(error: BaseException) -> list[str]:
    """The lines of users' own files and cells that the error passed, and the error, as IPython displays them."""
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith((*FOREIGN, "<frozen")):
            lines += [f"{_place(frame.filename)}, line {frame.lineno}", f"----> {frame.line or ''}", ""]
    return [*lines, CELL_FRAME.sub(_with_source, f"{type(error).__name__}: {error}")]


def _with_source(frame: re.Match[str]) -> str:
    """A frame of a worker's in a cell of this notebook, with its line: only this session has the cell."""
    line = linecache.getline(frame["file"], int(frame["line"])).strip()
    place = f"  {_place(frame['file'])}, line {frame['line']}, in {frame['function']}"
    return f"{place}\n    {line}" if line else frame[0]


def _place(filename: str) -> str:
    """Return IPython's name of a cell; the path of any other file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name = shell.compile.format_code_name(filename) if shell is not None else None
    return " ".join(name) if name else f"File {filename}"
