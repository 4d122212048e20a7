"""Transfers of files over the agents' connections, for workers that share no files with the session.

The agent's side is in :mod:`muster.agent.files`. A transfer that is interrupted by the end of its connection is resumed
where it ended once the worker is connected again. Workers are not trusted: no path that one names leads out of the
target folder, and none can send more than it has announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import itertools
import json
import os
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

from muster.agent import wire
from muster.agent.fields import optional, relative_path, whole
from muster.agent.files import CHUNK, WINDOW
from muster.agent.parts import SLICE, PartFile
from muster.agent.places import DEEPEST, MOST_FILES, matcher, split
from muster.errors import PlatformError
from muster.runtime.background import answer_of, in_thread
from muster.text.reading import open_regular
from muster.text.system_errors import FULL_DISK, NO_ROOM

MOST_WAITING = 2 * WINDOW // CHUNK  # received messages of one transfer that may be queued
AT_ONCE = 8  # transfers of one worker at a time
ANSWER_SECONDS = 60.0  # how long a worker may take to go on with a transfer
MOST_LISTINGS = 100  # of one folder
LONGEST_FILE_NAME = 255  # bytes
# Errors of one file here: of its path, or because it is too large for what is left of the disk.
OF_ONE_FILE = {errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP, errno.ENAMETOOLONG, *NO_ROOM}
NOT_ITS_OWN = "only another worker may give it"
GONE = "it was gone when it was asked for"
LISTING_BYTES = 8 << 20  # largest listing


Files = list[tuple[str, int | None]]  # relative paths and sizes; the size is None for a file that cannot be got


class TransferFailed(PlatformError):
    """A file could not be put onto a worker, or not be got from it."""


class FileFailed(TransferFailed):
    """A transfer failed for a reason that concerns only this file: other files may still be transferred.

    Attributes:
        is_absent: whether there is no such file or folder.
    """

    is_absent = False


class _Torn(Exception):
    """The connection of a transfer has ended."""


async def _within(answer: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Await an answer for at most ``seconds``. Raises TimeoutError."""
    task = asyncio.ensure_future(answer)
    try:
        return await answer_of(task, seconds)
    finally:
        task.cancel()


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await all calls, and return their results. If one fails, the others are cancelled before its error is raised."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Transfers:
    """All transfers of a run. To be used on the background loop only.

    Args:
        send: sends a message to a worker's agent; False if it is not connected.
        lease_seconds: how long to wait for a worker that has lost its connection.
    """

    def __init__(self, send: Callable[[str, tuple[Any, ...]], bool], lease_seconds: float = 0.0) -> None:
        self._send = send
        self._lease_seconds = lease_seconds
        self._numbers = itertools.count(1)
        self._inboxes: dict[tuple[str, int], asyncio.Queue[Any]] = {}
        self._connected: dict[str, asyncio.Event] = {}
        self._gone: set[str] = set()
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._getting: weakref.WeakValueDictionary[tuple[str, str], asyncio.Lock] = weakref.WeakValueDictionary()

    # -- from the endpoint --------------------------------------------------------------------------------------------

    def on_message(self, worker: str, message: Any) -> None:
        """Handle a message about a transfer; ignored if the transfer has ended."""
        inbox = self._inboxes.get((worker, message.transfer))
        if inbox is not None:
            with contextlib.suppress(asyncio.QueueFull):  # more than was asked for: the gap makes the transfer fail
                inbox.put_nowait(message)

    def on_connected(self, worker: str) -> None:
        """Handle a worker's connection, perhaps a new one: the end of the one before may not have been noticed."""
        self._gone.discard(worker)
        self._link(worker).set()
        self._tear(worker)

    def on_cut(self, worker: str) -> None:
        """Handle the end of a worker's connection, which may come back."""
        self._link(worker).clear()
        self._tear(worker)

    def on_lost(self, worker: str) -> None:
        """Handle the end of a worker's connection and lease: whatever waits for it fails."""
        self._gone.add(worker)
        self._link(worker).set()
        self._tear(worker)

    def _tear(self, worker: str) -> None:
        for (name, _), inbox in self._inboxes.items():
            if name == worker:
                while not inbox.empty():
                    inbox.get_nowait()
                inbox.put_nowait(_Torn())

    # -- transfers ----------------------------------------------------------------------------------------------------

    async def put(self, worker: str, place: str, path: str, source: Path) -> None:
        """Put a file onto a worker, with its permissions. When this returns, the worker has all of it.

        Raises:
            TransferFailed: the worker cannot take it, or is gone.
            OSError: the file cannot be read.
        """
        size, digest, mode = await in_thread(_describe, source)
        order = wire.Put(0, place, path, size, digest, mode)

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            self.tell(worker, order._replace(transfer=number))
            with open_regular(source) as file:
                sent = acknowledged = -1
                while acknowledged < size:
                    answer = await self.next_message(worker, inbox, wire.Have)
                    acknowledged = answer.offset
                    if sent < 0:
                        sent = acknowledged
                        file.seek(sent)
                    while sent < min(size, acknowledged + WINDOW):
                        data = await in_thread(file.read, min(CHUNK, size - sent))
                        if not data:
                            raise TransferFailed(f"{source} has become shorter while it was sent to {worker}.")
                        self.tell(worker, wire.Chunk(number, sent, data))
                        sent += len(data)

        await self.repeated(worker, attempt)

    async def put_folder(self, worker: str, place: str, source: Path, to: str = "") -> None:
        """Put every file of a folder, and of the folders in it, into a worker's folder. Raises as ``put`` does."""
        prefix = f"{to}/" if to else ""
        files = await in_thread(lambda: [path for path in sorted(source.rglob("*")) if path.is_file()])
        await gather_or_cancel(
            self.put(worker, place, prefix + path.relative_to(source).as_posix(), path) for path in files
        )

    async def get(self, worker: str, place: str, path: str, target: Path, limit: int | None = None) -> None:
        """Get a file from a worker into the folder ``target``, where it has the same relative path.

        Args:
            limit: largest size in bytes; None for any.

        Raises:
            TransferFailed: the worker does not have it, cannot send it, or is gone; it is larger; or something else has
                its name here.
            OSError: it cannot be written.
        """
        parts = split(path)

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            self.tell(worker, wire.Get(number, place, path))
            found = await self.next_message(worker, inbox, wire.Found)
            if limit is not None and found.size > limit:
                self.tell(worker, wire.Missing(number, "it is too large"))
                raise FileFailed(f"{path} of {worker} is too large: {found.size} bytes.", worker=worker)
            part = PartFile(str(target), parts, found.size, found.sha256, worker)
            try:
                await in_thread(_open, part)
                self.tell(worker, wire.Have(number, part.offset))
                while part.offset < found.size:
                    chunk = await self.next_message(worker, inbox, wire.Chunk)
                    await in_thread(part.write, chunk.offset, chunk.payload)
                    self.tell(worker, wire.Have(number, part.offset))
                await in_thread(part.finish)
            except ValueError as error:
                raise FileFailed(f"{path} of {worker} did not come as announced: {error}.", worker=worker) from None
            except OSError as error:
                if error.errno not in OF_ONE_FILE:
                    raise
                self.tell(worker, wire.Missing(number, "it has no place"))
                told = f"{path} of {worker} has no place here, in {target}: {error.strerror}."
                raise FileFailed(told, worker=worker) from error
            finally:
                part.close()

        lock = self._getting.setdefault((worker, str(target / path)), asyncio.Lock())
        async with lock:  # the second of two calls for a file finds it there
            await self.repeated(worker, attempt)

    async def get_folder(
        self,
        worker: str,
        place: str,
        path: str,
        target: Path,
        limit: int,
        is_anothers: Callable[[str], bool] = lambda name: False,
    ) -> dict[str, str]:
        """Get every file in a worker's folder into ``target``; no file where there is no such folder.

        A file that is gone when it is requested may have been renamed: then the folder is listed once more.

        Args:
            limit: most bytes of all files together; a file that does not fit is left out.
            is_anothers: returns, for a path in the folder, whether only another worker may provide that file.

        Returns:
            The reasons why files were left out, by their paths relative to the folder.

        Raises:
            TransferFailed, OSError: as ``get``, except for errors that concern one file alone.
        """
        return await _until_none_goes(lambda: self._get_folder(worker, place, path, target, limit, is_anothers))

    async def _get_folder(
        self, worker: str, place: str, path: str, target: Path, limit: int, is_anothers: Callable[[str], bool]
    ) -> dict[str, str]:
        left_out: dict[str, str] = {}
        after: str | None = None
        for _ in range(MOST_LISTINGS):
            listed = await self._listing(worker, wire.Get(0, place, path, after))
            refused = {name: NOT_ITS_OWN for name, _ in listed if is_anothers(name)}
            chosen = [(name, size) for name, size in listed if name not in refused]
            skipped = await self._get_listed(worker, place, chosen, target, limit, f"{path}/")
            left_out.update({**refused, **skipped})
            limit -= sum(size for name, size in chosen if size is not None and name not in skipped)
            if len(listed) < MOST_FILES:
                return left_out
            after = max((name for name, _ in listed), key=lambda name: name.split("/"))
            if len(left_out) >= MOST_FILES:  # bounds the memory that their names take
                left_out[f"what comes after {after}"] = f"more than {MOST_FILES} files cannot be got"
                return left_out
        left_out[f"what comes after {after}"] = f"more than {MOST_LISTINGS * MOST_FILES} files"
        return left_out

    async def get_matching(self, worker: str, place: str, pattern: str, target: Path, limit: int) -> dict[str, str]:
        """Get the files in a place of a worker that match a pattern (``places.find``), otherwise as ``get_folder``."""

        async def get() -> dict[str, str]:
            listed = await self.find(worker, place, pattern)
            return await self._get_listed(worker, place, listed, target, limit)

        return await _until_none_goes(get)

    async def _get_listed(
        self, worker: str, place: str, listed: Files, target: Path, limit: int, folder: str = ""
    ) -> dict[str, str]:
        left_out: dict[str, str] = {}

        async def get(name: str, size: int) -> None:
            try:
                await self.get(worker, place, folder + name, target, limit=size + CHUNK)
            except FileFailed as error:  # it may be gone, or be written to at the moment
                left_out[name] = GONE if error.is_absent else str(error)

        chosen: list[tuple[str, int]] = []
        for name, size in listed:
            if size is None:
                left_out[name] = "its name is not UTF-8, or it cannot be read"
            elif name.count("/") > DEEPEST or any(len(part.encode()) > LONGEST_FILE_NAME for part in name.split("/")):
                left_out[name] = "its name is too long, or it is in too many folders"
            elif size > limit:
                left_out[name] = "too large"
            else:
                limit -= size
                chosen.append((name, size))
        # Small ones first: a large one may find no room.
        await gather_or_cancel(get(name, size) for name, size in sorted(chosen, key=itemgetter(1)))
        return left_out

    async def find(self, worker: str, place: str, pattern: str) -> Files:
        """List the files in a place of a worker that match a pattern, with their sizes (None: it cannot be got).

        Raises:
            TransferFailed: as ``get``; or the worker lists other files, which could overwrite any file here.
        """
        listed = await self._listing(worker, wire.Find(0, place, pattern))
        matches = matcher(pattern)
        for name, _ in listed:
            if not matches.match(name):
                raise TransferFailed(f"{worker} offers {name!r}, which {pattern} does not match.", worker=worker)
        return listed

    async def _listing(self, worker: str, order: wire.Get | wire.Find) -> Files:
        """Return the files in a worker's folder; none where there is no such folder."""
        path = order.path if isinstance(order, wire.Get) else order.pattern
        received = bytearray()

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            received.clear()
            self.tell(worker, order._replace(transfer=number))
            found = await self.next_message(worker, inbox, wire.Found)
            if found.size > LISTING_BYTES:
                raise TransferFailed(f"The listing of {path} of {worker} is too large.", worker=worker)
            self.tell(worker, wire.Have(number, 0))
            while len(received) < found.size:
                chunk = await self.next_message(worker, inbox, wire.Chunk)
                if chunk.offset != len(received) or len(received) + len(chunk.payload) > found.size:
                    raise TransferFailed(f"The listing of {path} of {worker} did not come as announced.", worker=worker)
                received.extend(chunk.payload)
                self.tell(worker, wire.Have(number, len(received)))

        try:
            await self.repeated(worker, attempt)
            return _read_listing(bytes(received))
        except FileFailed as error:
            if error.is_absent:
                return []
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise TransferFailed(f"{worker} has sent no listing of {path}: {error}.", worker=worker) from None

    # -- one transfer -------------------------------------------------------------------------------------------------

    async def repeated(
        self, worker: str, attempt: Callable[[int, asyncio.Queue[Any]], Any], most_waiting: int = MOST_WAITING
    ) -> None:
        """Make a transfer, and resume it whenever its connection has ended and comes back."""
        async with self._turns.setdefault(worker, asyncio.Semaphore(AT_ONCE)):
            while True:
                await self._await_connection(worker)
                number = next(self._numbers)
                inbox: asyncio.Queue[Any] = asyncio.Queue(most_waiting)
                self._inboxes[worker, number] = inbox
                try:
                    await attempt(number, inbox)
                    return
                except _Torn:
                    continue
                finally:
                    del self._inboxes[worker, number]

    async def _await_connection(self, worker: str) -> None:
        link = self._link(worker)
        if not link.is_set() and worker not in self._gone:
            with contextlib.suppress(TimeoutError):
                await _within(link.wait(), self._lease_seconds)
        if not link.is_set() or worker in self._gone:
            raise TransferFailed(
                f"The connection of {worker} ended while files went over it, or before, and has not come back.",
                worker=worker,
            )

    async def next_message(self, worker: str, inbox: asyncio.Queue[Any], kind: type) -> Any:
        """Return the next message of a transfer, which must be of this kind. Raises TransferFailed otherwise."""
        try:
            message = await _within(inbox.get(), ANSWER_SECONDS)
        except TimeoutError:
            raise TransferFailed(
                f"{worker} does not go on with a file for {ANSWER_SECONDS:g} s.", worker=worker
            ) from None
        if isinstance(message, _Torn):
            raise message
        if isinstance(message, wire.Missing):
            error = FileFailed(
                f"{worker} cannot do what it should with a file: {message.text}.",
                worker=worker,
                advice=f"make room on that disk of {worker}" if FULL_DISK.search(message.text) else None,
            )
            error.is_absent = message.is_absent
            raise error
        if not isinstance(message, kind):
            raise TransferFailed(f"{worker} has lost its place in a transfer.", worker=worker)
        return message

    def tell(self, worker: str, message: tuple[Any, ...]) -> None:
        """Send a message of a transfer; where the connection has ended, ``repeated`` resumes the transfer later."""
        if not self._send(worker, message):
            self._link(worker).clear()
            raise _Torn

    def _link(self, worker: str) -> asyncio.Event:
        return self._connected.setdefault(worker, asyncio.Event())


def _read_listing(data: bytes) -> list[tuple[str, int | None]]:
    """Check a worker's listing of a folder. Raises ValueError, TypeError or RecursionError for nonsense."""
    entries = json.loads(data)
    if type(entries) is not list or len(entries) > MOST_FILES:
        raise ValueError(f"it is no list of at most {MOST_FILES} files")
    check = optional(whole(0))
    files = [(relative_path(name), check(size)) for name, size in entries]
    if len(dict(files)) < len(files):
        raise ValueError("a file is in it twice")
    return files


async def _until_none_goes(get: Callable[[], Awaitable[dict[str, str]]]) -> dict[str, str]:
    """Get all listed files, once more if one of them disappeared meanwhile; return why files were left out."""
    left_out = await get()
    if GONE in left_out.values():
        left_out = await get()
    return {name: why for name, why in left_out.items() if why != GONE}


def _open(part: PartFile) -> None:
    """Open what has been received of a file before, and hash all of it."""
    part.open()
    while part.hash_slice():
        pass


def _describe(source: Path) -> tuple[int, str, int]:
    """Return size, SHA-256 and permissions of a regular file. Raises OSError."""
    with open_regular(source) as file:
        digest = hashlib.sha256()
        while data := file.read(SLICE):
            digest.update(data)
        status = os.fstat(file.fileno())
        return file.tell(), digest.hexdigest(), status.st_mode & 0o777
