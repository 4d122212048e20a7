"""Parsing of hosts and their slots, from ``hosts=`` or a hostfile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from muster.errors import JobError

# A host as ssh knows it, perhaps with a user: nothing that ssh could take for an option, or a shell for its syntax.
NAME = r"(?:\w[\w.-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.%\w]+\])"
HOST = re.compile(rf"(?P<name>{NAME})(?::(?P<slots>\d+))?")
# Open MPI knows several words for the same; not max_slots or slots-max.
SLOTS = re.compile(r"(?<![\w-])(?:slots|cpu|count)\s*=\s*(\S*)")
USER = re.compile(r"(?<![\w-])user[-_]?name\s*=\s*\"?([^\s\"]*)")
MOST_SLOTS = 4096


def parse_hosts(given: str | Path | Iterable[str]) -> dict[str, int]:
    """Return the number of slots by host, in the order given; those of a host that is given twice are added up.

    Args:
        given: hosts as a list, or as text with commas, each ``host`` or ``host:slots``; or the path of a hostfile.

    Raises:
        JobError: a word or line is no host, or the hostfile cannot be read or names none.
    """
    if isinstance(given, Path):
        return read_hostfile(given)
    texts = [given] if isinstance(given, str) else [str(text) for text in given]
    if len(texts) == 1 and is_path(texts[0].strip()):
        return read_hostfile(Path(texts[0].strip()).expanduser())
    words = [word for text in texts for word in re.split(r"[,\s]+", text) if word]
    found: dict[str, int] = {}
    for word in words:
        _add(found, word, "hosts")
    return found


def is_path(text: str) -> bool:
    """Return whether a text is the path of a hostfile rather than hosts."""
    return "/" in text or text.startswith("~") or (HOST.fullmatch(text) is not None and Path(text).is_file())


def read_hostfile(path: Path) -> dict[str, int]:
    """Return the slots by host from a hostfile of Open MPI, Horovod (``host slots=2``) or MPICH (``host:2``).

    Raises:
        JobError: it cannot be read, names no hosts, or has a line that is no host.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"The hostfile {path} cannot be read: {error}.") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split(maxsplit=1)
        if not words:
            continue
        slots, user = (word.search(words[1]) if len(words) > 1 else None for word in (SLOTS, USER))
        # As with Open MPI, this user counts even where the host has one before it.
        host = f"{user[1]}@{words[0].rpartition('@')[2]}" if user else words[0]
        _add(found, f"{host}:{slots[1]}" if slots else host, f"{path}, line {number},")
    if not found:
        raise JobError(f"The hostfile {path} names no hosts.", advice="a line for each host, such as gpu1 slots=2")
    return found


def _add(found: dict[str, int], word: str, where: str) -> None:
    match = HOST.fullmatch(word)
    slots = int(match["slots"] or 1) if match else 0
    if not match or not 0 < slots <= MOST_SLOTS:
        raise JobError(
            f"{where} has {word!r}, which is no host.",
            advice="host:slots as ssh knows the host, such as gpu1:2 or me@gpu1:2; ports belong into ~/.ssh/config",
        )
    found[match["name"]] = found.get(match["name"], 0) + slots
