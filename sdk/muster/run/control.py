"""The control socket of a run, over which other processes of the user ask for its state, or ask it to stop.

It is a Unix socket in the scratch folder, since paths of sockets must be short. ``control.json`` in the run's folder
has its path, and the token that requests need. Each connection is one request and one answer, both a line of JSON::

    {"token": "...", "ask": "state"}                      -> {"is_up": true, "workers": {"worker-0": "running"}}
    {"token": "...", "ask": "stop", "now": false}         -> {}
    {"token": "...", "ask": "usage"}                      -> {"usage": {"worker-0": [1.0, 1e9, null, null]}}
    {"token": "...", "ask": "stacks"}                     -> {"stacks": {"rank 0": "..."}}
    {"token": "...", "ask": "logs", "name": "worker-0"}   -> {"lines": ["the last ones"]}

    {"token": "...", "ask": "exec", "worker": "worker-0", "argv": ["ls"]}       -> {"opened": true}, and its streams
    {"token": "...", "ask": "forward", "worker": "worker-0", "port": 6006}      -> {"opened": true}, and the port's

The last two stay open (``streams.py``); a stream that could not be opened is answered by
``{"closed": {"exit_code": 127, "text": "..."}}``, an error by ``{"error": "..."}``. ``source`` is added to the answer
about a port that the worker has reached at its loopback interface. The client is ``muster.records.control``.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from muster.errors import MusterError
from muster.records import control, folders
from muster.run.streams import Stream
from muster.runtime.background import in_thread

MOST_BYTES = 1 << 16  # of a request
MOST_CONNECTIONS = 8  # at a time; one more closes the oldest
MOST_STREAMS = 4096  # connections of streams, in addition: a pool has one for each of its workers
OF_STREAMS = ("exec", "forward")  # requests that open a stream
SECONDS = 5.0  # how long a request may take to arrive, and an answer to be read
NO_REQUEST = (
    ValueError, KeyError, TypeError, RecursionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError,
)  # fmt: skip

Answer = Callable[[Mapping[str, Any]], Awaitable["Mapping[str, Any] | Stream"]]


class Control:
    """The server of one run's control socket, on the background loop; ``answers`` has a function for each request.

    Requests may be malformed: they are refused, and do not affect other connections.
    """

    def __init__(self, run_dir: Path, answers: Mapping[str, Answer]) -> None:
        self._path = control.control_file(run_dir)
        self._answers = answers
        self._token = secrets.token_hex(16)
        self._server: asyncio.AbstractServer | None = None
        self._connections: dict[asyncio.Task[Any], None] = {}  # oldest first
        self._relays: set[asyncio.Task[Any]] = set()

    async def open(self, scratch: Path) -> None:
        """Listen in ``scratch``, and write the socket's path and the token into the run's folder.

        Raises:
            OSError: the socket cannot be made, or the folder cannot be written to.
        """
        path = scratch / "control"
        self._server = await asyncio.start_unix_server(self._serve, path, limit=MOST_BYTES)
        path.chmod(0o600)
        await in_thread(self._say_where, path)

    async def close(self) -> None:
        """Close all connections, and remove ``control.json``."""
        if self._server is not None:
            self._server.close()
        for connection in [*self._connections, *self._relays]:
            connection.cancel()
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    def _say_where(self, path: Path) -> None:
        folders.write_json(self._path, {"socket": str(path), "token": self._token}, mode=0o600)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "the server makes a task of each connection"
        self._connections[task] = None
        if len(self._connections) > MOST_CONNECTIONS:
            next(iter(self._connections)).cancel()
        writer.transport.set_write_buffer_limits(0)  # so that after drain() the kernel has everything
        try:
            with contextlib.suppress(OSError, asyncio.TimeoutError, asyncio.CancelledError):
                answer = await self._answer(task, reader)
                if isinstance(answer, Stream):
                    await self._relay(answer, reader, writer)
                    return
                writer.write(json.dumps(answer, default=str).encode() + b"\n")
                await asyncio.wait_for(writer.drain(), SECONDS)
        finally:
            self._connections.pop(task, None)
            self._relays.discard(task)
            writer.transport.abort()  # a client that has not read the answer by now may never do so

    @staticmethod
    async def _relay(stream: Stream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer how the opening of a stream went, and relay the stream."""
        try:
            writer.write(json.dumps(stream.opening).encode() + b"\n")
            if stream.failure is None:
                await stream.relay(reader, writer)
        finally:
            stream.close()

    async def _answer(self, task: asyncio.Task[Any], reader: asyncio.StreamReader) -> Mapping[str, Any] | Stream:
        try:
            request = json.loads(await asyncio.wait_for(reader.readuntil(b"\n"), SECONDS))
            token, ask = str(request["token"]), request["ask"]
        except NO_REQUEST:
            return {"error": "not a request"}
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode()):
            return {"error": "not the token of this run"}
        answer = self._answers.get(ask) if isinstance(ask, str) else None
        if answer is None:
            return {"error": f"it can be asked for {', '.join(self._answers)}"}
        if ask in OF_STREAMS:
            if len(self._relays) >= MOST_STREAMS:  # before it is opened, as its command would run at once
                return {"error": f"there are {MOST_STREAMS} streams to its workers already"}
            self._connections.pop(task, None)  # already, as a slow worker's answer may take longer than new clients
            self._relays.add(task)
        try:
            return await answer(request)
        except MusterError as error:
            return {"error": str(error)}
