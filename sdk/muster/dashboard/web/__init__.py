"""Code of the live view for the browser: one JavaScript module and one style sheet, from the files of this folder."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

FOLDER = Path(__file__).parent
MODULES = (
    "format.js",
    "store.js",
    "charts.js",
    "table.js",
    "log.js",
    "hearing.js",
    "buttons.js",
    "stacks.js",
    "head.js",
    "widget.js",
    "attach.js",
    "covers.js",
    "exports.js",
)  # each uses those before it


@lru_cache(maxsize=1)
def script() -> str:
    """Return the module, whose default export has ``initialize`` and ``render`` as anywidget calls them."""
    return "\n".join(map(read, MODULES))


@lru_cache(maxsize=1)
def style() -> str:
    """Return the style sheet."""
    return read("widget.css")


def read(name: str) -> str:
    """Return the text of one of the files of this folder."""
    return (FOLDER / name).read_text(encoding="utf-8")
