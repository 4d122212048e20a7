"""Errors as a notebook shows them: the line of the user's that led to one, and its message."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from pathlib import Path

PACKAGE = str(Path(__file__).parent.parent)
FOREIGN = tuple({PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))})


def shown_in_notebooks(error: BaseException) -> list[str]:
    """The lines of users' own files and cells that the error passed, and the error, as IPython displays them."""
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if not frame.filename.startswith((*FOREIGN, "<frozen")):
            lines += [f"{_place(frame.filename)}, line {frame.lineno}", f"----> {frame.line or ''}", ""]
    return [*lines, f"{type(error).__name__}: {error}"]


def _place(filename: str) -> str:
    """Return IPython's name of a cell; the path of any other file."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    name = shell.compile.format_code_name(filename) if shell is not None else None
    return " ".join(name) if name else f"File {filename}"
