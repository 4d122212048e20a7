"""Parsing of hosts and their slots, from ``hosts=`` or a hostfile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from muster.errors import JobError

# A host as ssh knows it, perhaps with a user: nothing that ssh could take for an option, or a shell for its syntax.
NAME = r"(?:\w[\w.-]*@)?(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.%\w]+\])"
HOST = re.compile(rf"(?P<name>{NAME})(?::(?P<slots>\d+))?")
# What may follow a host in a hostfile. Open MPI knows several words for the same; MPICH has ``user`` and ``binding``.
SETTING = re.compile(r"([\w-]+)\s*=\s*(\"[^\"]*\"|[^\s\"=]*)(?!\S)\s*")
MEANINGS = {
    "slots": re.compile("slots|cpu|count"),
    "most": re.compile("(?:slots|cpu|count)[_-]max|max[_-](?:slots|cpu|count)"),
    "user": re.compile("user(?:[_-]?name)?"),
}
OF_HOSTFILES = "slots=, max_slots= and user= of a host; what each worker needs, such as cores, is said of the run"
COMMENT = re.compile(r"(?:#|//).*")
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
        JobError: it cannot be read, names no hosts, has a line that is no host, or says of one what is not for Muster.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()  # editors of Windows begin files with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise JobError(f"The hostfile {path} cannot be read: {error}.") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        words = COMMENT.sub("", line).split(maxsplit=1)
        if words:
            where = f"{path}, line {number},"
            _add(found, _with_settings(words[0], "".join(words[1:]).strip(), where), where)
    if not found:
        raise JobError(f"The hostfile {path} names no hosts.", advice="a line for each host, such as gpu1 slots=2")
    return found


def _with_settings(host: str, text: str, where: str) -> str:
    """Return a host with the slots and the user that a hostfile says of it. Raises JobError for anything else."""
    said: dict[str, str] = {}
    while text:
        setting = SETTING.match(text)
        if not setting:
            raise JobError(
                f"{where} has {text!r} after the host {host}, which says nothing of it.",
                advice="a line for each host, such as gpu1 slots=2",
            )
        name, value = setting[1], setting[2].strip('"')
        meaning = next((meaning for meaning, words in MEANINGS.items() if words.fullmatch(name)), None)
        if meaning is None:
            in_ssh = f"a line `Port {value}` for this host in ~/.ssh/config"
            raise JobError(
                f"{where} says {name}={value} of {host}, which Muster does not take.",
                advice=in_ssh if name == "port" else OF_HOSTFILES,
            )
        if meaning in said:
            raise JobError(f"{where} says twice, of {host}, what {name}= says.", advice="one of them")
        if meaning != "user" and not value.isdecimal():
            raise JobError(f"{where} says {name}={value} of {host}, which is no number.", advice="such as slots=2")
        said[meaning] = value
        text = text[setting.end() :]
    slots, most = said.get("slots"), said.get("most")
    if most is not None and int(slots or 1) > int(most):
        raise JobError(f"{where} has more slots of {host} than max_slots={most}.", advice="as many, or fewer")
    if "user" in said:  # which counts even where the host has one before it, as with Open MPI
        host = f"{said['user']}@{host.rpartition('@')[2]}"
    return host if slots is None else f"{host}:{slots}"


def _add(found: dict[str, int], word: str, where: str) -> None:
    match = HOST.fullmatch(word)
    slots = int(match["slots"] or 1) if match else 0
    if not match or not 0 < slots <= MOST_SLOTS:
        raise JobError(
            f"{where} has {word!r}, which is no host.",
            advice="host:slots as ssh knows the host, such as gpu1:2 or me@gpu1:2; ports belong into ~/.ssh/config",
        )
    found[match["name"]] = found.get(match["name"], 0) + slots
