"""Files that pass between the session and its workers over the agents' connections, for workers that share none.

The agent's side is in :mod:`muster.agent.files`. A transfer that is torn with its connection begins again once the
worker is connected again, and goes on where it ended. What a worker says is not trusted: no path of its leads out of
the folder that its files are to come into, and it can send no more than it has announced.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from muster.agent import wire
from muster.agent.fields import optional, relative_path, whole
from muster.agent.files import CHUNK, WINDOW
from muster.agent.places import MOST_FILES, open_file, open_folder, part_name, split
from muster.errors import PlatformError
from muster.runtime.background import answer_of, in_thread

SLICE = 1 << 22  # bytes that are hashed at once
MOST_WAITING = 2 * WINDOW // CHUNK  # messages of one transfer that may wait to be taken
AT_ONCE = 8  # transfers of one worker
ANSWER_SECONDS = 60.0  # how long a worker may take to go on with a transfer
LISTING_BYTES = 8 << 20  # largest listing


class TransferFailed(PlatformError):
    """A file could not be put onto a worker, or not be got from it."""


class FileFailed(TransferFailed):
    """The same, and it concerns this file alone: others may pass.

    Attributes:
        is_absent: whether there is no such file or folder.
    """

    is_absent = False


class _Torn(Exception):
    """The connection has ended."""


async def _within(answer: Coroutine[Any, Any, Any], seconds: float) -> Any:
    """Await an answer for so many seconds, and no longer. Raises TimeoutError."""
    task = asyncio.ensure_future(answer)
    try:
        return await answer_of(task, seconds)
    finally:
        task.cancel()


async def all_of(calls: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Await all calls, and return what they return. The first that fails ends the others before it is raised."""
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
        lease_seconds: how long a worker that has lost its connection is waited for.
    """

    def __init__(self, send: Callable[[str, tuple[Any, ...]], bool], lease_seconds: float = 0.0) -> None:
        self._send = send
        self._lease_seconds = lease_seconds
        self._numbers = itertools.count(1)
        self._inboxes: dict[tuple[str, int], asyncio.Queue[Any]] = {}
        self._connected: dict[str, asyncio.Event] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}

    # -- from the endpoint --------------------------------------------------------------------------------------------

    def on_message(self, worker: str, message: wire.Found | wire.Have | wire.Missing | wire.Chunk) -> None:
        """Handle a message about a transfer; ignored if nobody waits for it any more."""
        inbox = self._inboxes.get((worker, message.transfer))
        if inbox is not None:
            with contextlib.suppress(asyncio.QueueFull):  # more than was asked for: the rest will not fit together
                inbox.put_nowait(message)

    def on_connected(self, worker: str) -> None:
        """Called when a worker is connected, perhaps again: and perhaps with no word of the end of the one before."""
        self._link(worker).set()
        self._tear(worker)

    def on_lost(self, worker: str) -> None:
        """Called when a worker's connection has ended."""
        self._link(worker).clear()
        self._tear(worker)

    def _tear(self, worker: str) -> None:
        for (name, _), inbox in self._inboxes.items():
            if name == worker:
                while not inbox.empty():
                    inbox.get_nowait()
                inbox.put_nowait(_Torn())

    # -- transfers ----------------------------------------------------------------------------------------------------

    async def put(self, worker: str, place: str, path: str, source: Path) -> None:
        """Put a file onto a worker, which has it in full when this returns. Its permissions go with it.

        Raises:
            TransferFailed: the worker cannot take it, or is gone.
            OSError: it cannot be read.
        """
        size, digest, mode = await in_thread(_describe, source)
        order = wire.Put(0, place, path, size, digest, mode)

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            self._tell(worker, order._replace(transfer=number))
            with source.open("rb") as file:
                sent = acknowledged = -1
                while acknowledged < size:
                    answer = await self._next(worker, inbox, wire.Have)
                    acknowledged = answer.offset
                    if sent < 0:
                        sent = acknowledged
                        file.seek(sent)
                    while sent < min(size, acknowledged + WINDOW):
                        data = await in_thread(file.read, min(CHUNK, size - sent))
                        if not data:
                            raise TransferFailed(f"{source} has become shorter while it was sent to {worker}.")
                        self._tell(worker, wire.Chunk(number, sent, data))
                        sent += len(data)

        await self._repeated(worker, attempt)

    async def put_folder(self, worker: str, place: str, source: Path) -> None:
        """Put every file of a folder onto a worker, and those of the folders in it. Raises as ``put`` does."""
        files = await in_thread(lambda: [path for path in sorted(source.rglob("*")) if path.is_file()])
        await all_of(self.put(worker, place, path.relative_to(source).as_posix(), path) for path in files)

    async def get(self, worker: str, place: str, path: str, target: Path, limit: int | None = None) -> None:
        """Get a file from a worker into the folder ``target``, where it has the same relative path.

        Args:
            limit: largest size in bytes; None for any.

        Raises:
            TransferFailed: the worker does not have it, cannot send it, or is gone; or it is larger.
            OSError: it cannot be written.
        """
        parts = split(path)

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            self._tell(worker, wire.Get(number, place, path))
            found = await self._next(worker, inbox, wire.Found)
            if limit is not None and found.size > limit:
                self._tell(worker, wire.Missing(number, "it is too large"))
                raise FileFailed(f"{path} of {worker} is too large: {found.size} bytes.", worker=worker)
            if await in_thread(_is_there, target / path, found):
                self._tell(worker, wire.Have(number, found.size))
                return
            part = await in_thread(_Part, target, parts, found, worker)
            try:
                self._tell(worker, wire.Have(number, part.offset))
                while part.offset < found.size:
                    chunk = await self._next(worker, inbox, wire.Chunk)
                    await in_thread(part.write, chunk)
                    self._tell(worker, wire.Have(number, part.offset))
                await in_thread(part.finish)
            except ValueError as error:
                raise FileFailed(f"{path} of {worker} did not come as announced: {error}.", worker=worker) from None
            finally:
                part.close()

        await self._repeated(worker, attempt)

    async def get_folder(self, worker: str, place: str, path: str, target: Path, limit: int) -> dict[str, str]:
        """Get every file that is in a worker's folder into ``target``; none where there is no such folder.

        Args:
            limit: how many bytes they may have together; a file that does not fit is left out.

        Returns:
            Why which of them were left out, by their paths relative to the folder.

        Raises:
            TransferFailed, OSError: as ``get``, but for what concerns one file alone.
        """
        left_out: dict[str, str] = {}

        async def get(name: str, size: int) -> None:
            try:
                await self.get(worker, place, f"{path}/{name}", target, limit=size + CHUNK)
            except FileFailed as error:  # it has gone, perhaps, or is written to
                left_out[name] = str(error)

        chosen: list[tuple[str, int]] = []
        for name, size in await self._listing(worker, place, path):
            if size is None:
                left_out[name] = "its name is not UTF-8, or it cannot be read"
            elif size > limit:
                left_out[name] = "too large"
            else:
                limit -= size
                chosen.append((name, size))
        await all_of(get(name, size) for name, size in chosen)
        return left_out

    async def _listing(self, worker: str, place: str, path: str) -> list[tuple[str, int | None]]:
        """Relative paths and sizes of the files in a worker's folder, if there is one; None for what cannot be got."""
        received = bytearray()

        async def attempt(number: int, inbox: asyncio.Queue[Any]) -> None:
            received.clear()
            self._tell(worker, wire.Get(number, place, path))
            found = await self._next(worker, inbox, wire.Found)
            if found.size > LISTING_BYTES:
                raise TransferFailed(f"The listing of {path} of {worker} is too large.", worker=worker)
            self._tell(worker, wire.Have(number, 0))
            while len(received) < found.size:
                chunk = await self._next(worker, inbox, wire.Chunk)
                if chunk.offset != len(received) or len(received) + len(chunk.payload) > found.size:
                    raise TransferFailed(f"The listing of {path} of {worker} did not come as announced.", worker=worker)
                received.extend(chunk.payload)
                self._tell(worker, wire.Have(number, len(received)))

        try:
            await self._repeated(worker, attempt)
            return _read_listing(bytes(received))
        except FileFailed as error:
            if error.is_absent:
                return []
            raise
        except (ValueError, TypeError, RecursionError) as error:
            raise TransferFailed(f"{worker} has sent no listing of {path}: {error}.", worker=worker) from None

    # -- one transfer -------------------------------------------------------------------------------------------------

    async def _repeated(self, worker: str, attempt: Callable[[int, asyncio.Queue[Any]], Any]) -> None:
        """Make a transfer, again from where it ended as often as its connection ends and comes back."""
        async with self._turns.setdefault(worker, asyncio.Semaphore(AT_ONCE)):
            while True:
                await self._await_connection(worker)
                number = next(self._numbers)
                inbox: asyncio.Queue[Any] = asyncio.Queue(MOST_WAITING)
                self._inboxes[worker, number] = inbox
                try:
                    await attempt(number, inbox)
                    return
                except _Torn:
                    continue
                finally:
                    del self._inboxes[worker, number]

    async def _await_connection(self, worker: str) -> None:
        if self._link(worker).is_set():
            return
        try:
            await _within(self._link(worker).wait(), self._lease_seconds)
        except TimeoutError:
            raise TransferFailed(
                f"The connection of {worker} ended while files went over it, or before, and has not come back.",
                worker=worker,
            ) from None

    async def _next(self, worker: str, inbox: asyncio.Queue[Any], kind: type) -> Any:
        """The next message of a transfer, which must be of this kind."""
        try:
            message = await _within(inbox.get(), ANSWER_SECONDS)
        except TimeoutError:
            raise TransferFailed(
                f"{worker} does not go on with a file for {ANSWER_SECONDS:g} s.", worker=worker
            ) from None
        if isinstance(message, _Torn):
            raise message
        if isinstance(message, wire.Missing):
            error = FileFailed(f"{worker} cannot do what it should with a file: {message.text}.", worker=worker)
            error.is_absent = message.is_absent
            raise error
        if not isinstance(message, kind):
            raise TransferFailed(f"{worker} has lost its place in a transfer.", worker=worker)
        return message

    def _tell(self, worker: str, message: tuple[Any, ...]) -> None:
        if not self._send(worker, message):
            self._link(worker).clear()
            raise _Torn

    def _link(self, worker: str) -> asyncio.Event:
        return self._connected.setdefault(worker, asyncio.Event())


class _Part:
    """A file of a worker's that comes, beside its place. Raises OSError where it cannot, ValueError for a wrong one."""

    def __init__(self, target: Path, parts: list[str], found: wire.Found, worker: str) -> None:
        self._found = found
        self._name = parts[-1]
        self._part = part_name(worker, self._name, found.sha256)
        self._hash = hashlib.sha256()
        self._file = -1
        self._lock = threading.Lock()
        self._folder = open_folder(str(target), parts[:-1], make=True)
        try:
            self._file = open_file(self._folder, self._part, os.O_RDWR | os.O_CREAT)
        except OSError:
            self.close()
            raise
        self.offset = 0
        while data := os.pread(self._file, SLICE, self.offset):
            self._hash.update(data)
            self.offset += len(data)
        if self.offset > found.size:
            os.ftruncate(self._file, 0)
            self._hash, self.offset = hashlib.sha256(), 0

    def write(self, chunk: wire.Chunk) -> None:
        """Take the next piece."""
        with self._lock:
            self._write(chunk)

    def _write(self, chunk: wire.Chunk) -> None:
        if self._file < 0:
            raise ValueError("it has been given up")
        if chunk.offset != self.offset or self.offset + len(chunk.payload) > self._found.size:
            raise ValueError("a piece is not the next one")
        data = memoryview(chunk.payload)
        while data:
            written = os.pwrite(self._file, data, self.offset)
            self._hash.update(data[:written])
            self.offset += written
            data = data[written:]

    def finish(self) -> None:
        """Give it its name, if it is what was announced."""
        with self._lock:
            if self._folder < 0:
                raise ValueError("it has been given up")
            if self._hash.hexdigest() != self._found.sha256:
                os.unlink(self._part, dir_fd=self._folder)
                raise ValueError("its content is another one")
            os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)

    def close(self) -> None:
        """Close it; what has come stays for the next attempt."""
        with self._lock:  # a thread may be writing still for a transfer that was cancelled
            for descriptor in (self._file, self._folder):
                if descriptor >= 0:
                    os.close(descriptor)
            self._file = self._folder = -1


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


def _is_there(path: Path, found: wire.Found) -> bool:
    """Return whether a file has been got already."""
    try:
        return path.stat().st_size == found.size and _describe(path)[1] == found.sha256
    except OSError:
        return False


def _describe(source: Path) -> tuple[int, str, int]:
    """Size, SHA-256 and permissions of a file."""
    with source.open("rb") as file:
        digest = hashlib.sha256()
        while data := file.read(SLICE):
            digest.update(data)
        status = os.fstat(file.fileno())
        return file.tell(), digest.hexdigest(), status.st_mode & 0o777
