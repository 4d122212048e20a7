"""Places: folders of a worker into which files are put and from which they are got, and which no path can leave.

Every part of a path is opened relative to the folder before it, and must not be a link: so neither ``..`` nor a link
that is there, or is made at this very moment, leads out of the folder.
"""

import contextlib
import errno
import itertools
import os
import re
import stat

from . import digest
from .fields import clean, relative_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, Mapping

MOST_FILES = 10000  # in one listing
MOST_SEEN = 200000  # files that are looked at for one pattern
MAGIC = r"[*?\[]"
DEEPEST = 32  # folders in one another
PART = r"\.muster-[0-9a-f]{32}\.part\Z"  # the name of a file that has not arrived in full


def part_name(worker: str, name: str, sha256: str) -> str:
    """Return the name for a file until it has arrived in full; its length does not depend on the final name."""
    text = "\0".join((worker, name, sha256))
    return ".muster-{}.part".format(digest.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32])


def symbol(place: str) -> str:
    """Return the text that stands for a place's path in a plan. No argument or variable of a user can contain it."""
    return "\0{}\0".format(place)


def is_symbolic(text: str) -> bool:
    """Return whether a text names places by symbols."""
    return "\0" in text


def resolve(text: str, places: "Mapping[str, str]") -> str:
    """Return the text with the symbols of places replaced by their paths."""
    if is_symbolic(text):
        for place, path in places.items():
            text = text.replace(symbol(place), path)
    return text


def settle(config: "dict[str, Any]", around: str) -> "dict[str, Any]":
    """Return an agent's config with a path for every place; missing places are made in the scratch folder.

    Args:
        config: the agent's config.
        around: the folder in which a scratch folder is made, if there is none; it is removed with the worker.

    Raises:
        OSError: the folder cannot be made.
    """
    if not is_symbolic(config["scratch"] + config["log"] + config["cwd"]):
        return config
    places = dict(config["places"])
    if "scratch" not in places:
        places["scratch"] = os.path.join(around, os.urandom(4).hex())  # short, as are the paths of sockets in it
        os.mkdir(places["scratch"], 0o700)
    for place in ("library", "run", "project"):
        places.setdefault(place, os.path.join(places["scratch"], place))
        os.makedirs(places[place], 0o700, exist_ok=True)
    settled = {name: resolve(config[name], places) for name in ("scratch", "log", "cwd")}
    return dict(config, places=places, **settled)


def split(path: str) -> "list[str]":
    """Return the parts of a relative path. Raises OSError for a path that would leave its folder."""
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise OSError(errno.EPERM, "it is no path within its folder", path)
    return parts


def open_folder(root: str, parts: "list[str]", make: bool = False) -> int:
    """Open a folder inside ``root`` and return its descriptor, which the caller closes.

    Args:
        root: the folder around it.
        parts: names of the folders on the way.
        make: whether to make those that are missing, for their owner only.

    Raises:
        OSError: there is no such folder, a part of the path is a link, or it cannot be opened.
    """
    if make:
        os.makedirs(root, 0o700, exist_ok=True)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folder)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def open_file(folder: int, name: str, flags: int) -> int:
    """Open a regular file in ``folder`` and return its descriptor. Raises OSError for a link, a pipe and so on."""
    found = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(found).st_mode):
        os.close(found)
        raise OSError(errno.EINVAL, "it is no regular file", name)
    return found


def write_private(folder: str, path: str, text: str) -> None:
    """Write a file in ``folder`` that only its owner can read; executable for the owner if it is a program.

    Raises:
        OSError: the path leads out of the folder, or it cannot be written.
    """
    *parents, name = split(path)
    inner = open_folder(folder, parents, make=True)
    try:
        mode = 0o700 if text.startswith("#!") else 0o600
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, mode, dir_fd=inner), "w", encoding="utf-8") as file:
            file.write(text)
    finally:
        os.close(inner)


def listing(folder: int, prefix: str = "", depth: int = 0) -> "Iterator[tuple[str, int | None]]":
    """Yield the relative path and the size of every regular file in ``folder`` and below; links are skipped.

    The size is None for a file or a folder that cannot be got: its name is not UTF-8, or it cannot be read.

    Raises:
        OSError: the folders lie too deep in one another.
    """
    if depth > DEEPEST:
        raise OSError(errno.ELOOP, "too many folders lie in one another", prefix)
    for name in sorted(os.listdir(folder)):
        path = prefix + name
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode) and not re.match(PART, name):
                yield (path, found.st_size) if _can_travel(path) else (clean(path), None)
            elif stat.S_ISDIR(found.st_mode):
                inner = open_folder_in(folder, name)
                try:
                    for entry in listing(inner, path + "/", depth + 1):
                        yield entry
                finally:
                    os.close(inner)
        except FileNotFoundError:  # it has gone meanwhile
            continue
        except OSError:
            yield clean(path), None


def find(root: str, pattern: str) -> "Iterator[tuple[str, int | None]]":
    """Yield the relative path and the size, as ``listing`` does, of every file in ``root`` that matches a pattern.

    In a pattern ``*`` and ``?`` stand for characters of one name, ``[...]`` for one of several characters, and ``**``
    for any number of folders. A pattern that matches a folder matches everything in it.

    Raises:
        OSError: the pattern leads out of ``root``; or there are too many files in it.
    """
    parts, matches = _parts(pattern), matcher(pattern)
    plain = list(itertools.takewhile(lambda part: not re.search(MAGIC, part), parts[:-1]))
    try:
        folder = open_folder(root, plain)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        for seen, (path, size) in enumerate(listing(folder, "".join(part + "/" for part in plain))):
            if seen >= MOST_SEEN:
                raise OSError(errno.E2BIG, "there are more than {} files in it".format(MOST_SEEN), "/".join(plain))
            if matches.match(path):
                yield path, size
    finally:
        os.close(folder)


def matcher(pattern: str) -> "re.Pattern[str]":
    """Return a regular expression for the relative paths that match a pattern of ``find``. Raises as ``find``."""
    try:
        return _translated(_parts(pattern))
    except re.error as error:
        raise OSError(errno.EINVAL, "it is no pattern: {}".format(error), pattern) from error


def _parts(pattern: str) -> "list[str]":
    parts = [part for part in pattern.split("/") if part != "."]
    if pattern.endswith("/"):
        parts.pop()
    return split("/".join(parts))


def _translated(parts: "list[str]") -> "re.Pattern[str]":
    """Return the regular expression for a pattern, given its parts."""
    found = ""
    for part in parts[:-1]:
        found += "(?:.*/)?" if part == "**" else _translated_name(part) + "/"
    last = ".*" if parts[-1] == "**" else _translated_name(parts[-1]) + "(?:/.*)?"
    return re.compile("(?s:" + found + last + r")\Z")


def _translated_name(part: str) -> str:
    pieces = re.split(r"(\*+|\?|\[[!^]?\]?[^\]]*\])", part)
    for number, piece in enumerate(pieces):
        if piece[:1] == "*":
            pieces[number] = "[^/]*"
        elif piece == "?":
            pieces[number] = "[^/]"
        elif piece[:1] == "[" and piece[-1:] == "]" and len(piece) > 2:
            inner = re.sub(r"([\\\[&~|])", r"\\\1", piece[1:-1])
            pieces[number] = "[^" + inner[1:] + "]" if inner[0] in "!^" else "[" + inner + "]"
        else:
            pieces[number] = re.escape(piece)
    return "".join(pieces)


def _can_travel(path: str) -> bool:
    try:
        return bool(relative_path(path))
    except ValueError:
        return False


def open_folder_in(folder: int, name: str) -> int:
    """Open a folder in ``folder`` and return its descriptor. Raises OSError for anything else."""
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
