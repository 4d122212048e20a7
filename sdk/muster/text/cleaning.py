"""Cleaning of untrusted text, so that it is safe to show, and checks of names that become parts of paths."""

from __future__ import annotations

import re

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]P^_X][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, ...: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")
_FILE_NAME = re.compile(r"(?!\.)[^/\x00-\x1f]{1,200}")
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def clean(text: object) -> str:
    """Return ``text`` without terminal control sequences and characters that reorder text; newlines and tabs stay."""
    text = str(text)
    if text.isprintable():  # as most lines are, and that is ten times as fast
        return text
    escaped = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    return _SURROGATES.sub("\ufffd", _UNSAFE.sub("", escaped))


def overwritten(text: str) -> str:
    """Return ``text`` as a terminal leaves it: text after a carriage return replaces the text before it in the line.

    >>> overwritten("10 %\\r50 %\\r100 %\\r\\nnext")
    '100 %\\nnext'
    """
    return "\n".join(next(filter(None, reversed(line.split("\r"))), "") for line in text.split("\n"))


def is_file_name(name: object) -> bool:
    """Return whether a name, such as a worker's, is safe as the name of a file in a folder, and safe to show.

    >>> [is_file_name(name) for name in ("worker-1", "../worker-1", "a/b", "..", "", "a\\0b", "a\u202eb")]
    [True, False, False, False, False, False, False]
    """
    return isinstance(name, str) and _FILE_NAME.fullmatch(name) is not None and clean(name) == name
