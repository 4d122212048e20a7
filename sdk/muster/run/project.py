"""Sending of the project's files to workers that share none with the session.

Each worker gets a list of all files with their hashes (:mod:`muster.agent.project`), answers which of them it lacks,
and gets those as one stream. So many files cost little, and files kept from an earlier run are not sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import field
from io import FileIO
from pathlib import Path
from typing import Any

from muster.agent import wire
from muster.agent.places import open_file, open_folder, split
from muster.checks.project import Project
from muster.run.files import TransferFailed, Transfers
from muster.runtime.background import in_thread
from muster.text.frozen import frozen

PIECE = 1 << 17  # bytes in one message
WINDOW = 1 << 22  # bytes that may be sent and not yet acknowledged
READ = 1 << 20  # bytes that are read at once
MOST_WAITING = 2 * WINDOW // PIECE
AT_ONCE = 16  # workers that are sent files at a time

Progress = Callable[[str, int, int], None]


@frozen
class Contents:
    """The files of a folder, as they were when they were listed.

    Attributes:
        listing: path, size, mode and SHA-256 of each file; path and target of each link.
        sources: a file with each different content, with its size, in the order of the list.
        root: the folder.
    """

    listing: Sequence[Sequence[Any]] = field(default=(), repr=False)
    sources: Sequence[tuple[str, int]] = field(default=(), repr=False)
    root: Path = Path()


def read_contents(project: Project) -> Contents:
    """List the contents of a project's files. Raises OSError where one cannot be read."""
    listing: list[Sequence[Any]] = []
    sources: dict[str, tuple[str, int]] = {}
    for name, _ in project.files or ():
        path = project.root / name
        try:
            found = os.lstat(path)
        except FileNotFoundError:  # it has gone meanwhile
            continue
        if stat.S_ISLNK(found.st_mode):
            listing.append((name, os.readlink(path)))
            continue
        size, sha256 = _size_and_hash(project.root, name)
        listing.append((name, size, stat.S_IMODE(found.st_mode) & 0o777, sha256))
        sources.setdefault(sha256, (name, size))
    return Contents(listing, tuple(sources.values()), project.root)


def _open(root: Path, name: str) -> FileIO:
    """Open a regular file of a folder for reading, without following links.

    Raises:
        OSError: it is not a regular file any more, or cannot be read.
    """
    *parents, last = split(name)
    folder = open_folder(str(root), parents)
    try:
        return FileIO(open_file(folder, last, os.O_RDONLY))
    finally:
        os.close(folder)


def _size_and_hash(root: Path, name: str) -> tuple[int, str]:
    found, size = hashlib.sha256(), 0
    with _open(root, name) as file:
        while data := file.read(READ):
            found.update(data)
            size += len(data)
    return size, found.hexdigest()


def write_list(contents: Contents, path: Path) -> None:
    """Write the list as it is sent to workers. Raises OSError, or ValueError for a name that is not UTF-8."""
    path.write_bytes(json.dumps(contents.listing, ensure_ascii=False).encode("utf-8"))


class ProjectSync:
    """Sends the files of a project to workers.

    Args:
        transfers: the run's transfers.
        contents: the files.
        list_file: the file that has the list.
        on_progress: called with a worker's name, the bytes that have arrived there, and all bytes to send; or None.
    """

    def __init__(
        self,
        transfers: Transfers,
        contents: Contents,
        list_file: Path,
        on_progress: Progress | None = None,
    ) -> None:
        self._transfers = transfers
        self._contents = contents
        self._list_file = list_file
        self._on_progress = on_progress or (lambda worker, done, total: None)
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def send_to(self, worker: str, place: str, *, is_kept: bool) -> str:
        """Send all files to a place of a worker; return the folder there that keeps them for later, empty if none.

        Args:
            worker: name of the worker.
            place: name of the place.
            is_kept: whether the worker may keep them for later runs.

        Raises:
            TransferFailed: the worker cannot take them, or is gone.
            OSError: one of them cannot be read.
        """
        kept = ""
        name = f"{place}.list"

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            nonlocal kept
            self._transfers.tell(worker, wire.Sync(number, place, "scratch", name, is_kept))
            lacks = await self._transfers.next_message(worker, inbox, wire.Lacks)
            bundle = _Bundle(self._contents.root, self._missing(worker, lacks.payload))
            self._on_progress(worker, 0, bundle.size)
            sent = acknowledged = 0
            while acknowledged < bundle.size:
                while sent < min(bundle.size, acknowledged + WINDOW):
                    data = await in_thread(bundle.read, READ)
                    for start in range(0, len(data), PIECE):
                        self._transfers.tell(worker, wire.Chunk(number, sent, data[start : start + PIECE]))
                        sent += len(data[start : start + PIECE])
                answer = await self._transfers.next_message(worker, inbox, wire.Have)
                if not acknowledged < answer.offset <= sent:
                    raise TransferFailed(f"{worker} has lost its place in a transfer.", worker=worker)
                acknowledged = answer.offset
                self._on_progress(worker, acknowledged, bundle.size)
            kept = (await self._transfers.next_message(worker, inbox, wire.Synced)).cache

        async with self._turns:
            await self._transfers.put(worker, "scratch", name, self._list_file)
            await self._transfers.repeated(worker, attempt, MOST_WAITING)
        return kept

    def _missing(self, worker: str, bits: bytes) -> list[tuple[str, int]]:
        sources = self._contents.sources
        if len(bits) != (len(sources) + 7) // 8:
            raise TransferFailed(f"{worker} has not understood the list of files.", worker=worker)
        return [source for number, source in enumerate(sources) if bits[number // 8] >> number % 8 & 1]


class _Bundle:
    """The contents of several files as one stream: of each file as many bytes as it had when it was listed."""

    def __init__(self, root: Path, sources: Sequence[tuple[str, int]]) -> None:
        self._root = root
        self.size = sum(size for _, size in sources)
        self._rest = list(reversed(sources))
        self._offset = 0  # in the file that comes next

    def read(self, most: int) -> bytes:
        """Return the next bytes. Raises OSError, or TransferFailed where a file has become shorter."""
        found = bytearray()
        while self._rest and len(found) < most:
            name, size = self._rest[-1]
            with _open(self._root, name) as file:
                file.seek(self._offset)
                while self._offset < size and len(found) < most:
                    data = file.read(min(size - self._offset, most - len(found)))
                    if not data:
                        raise TransferFailed(f"{self._root / name} has become shorter while it was sent.")
                    found += data
                    self._offset += len(data)
            if self._offset == size:
                self._rest.pop()
                self._offset = 0
        return bytes(found)
