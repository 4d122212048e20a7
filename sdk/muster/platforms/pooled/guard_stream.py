"""The guard in one worker of a pool (:mod:`muster.agent.worker_guard`), as the session starts and asks it.

The guard is a command in the worker, started through the control socket of the run that holds the worker. Requests and
answers go over the command's input and output, within the stream's flow-control credit.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from typing import Any

from muster.agent import frames, wire
from muster.agent.places import symbol
from muster.errors import PlatformError
from muster.job import Worker
from muster.records.control import open_stream, wait_until
from muster.runtime.forks import close_in_children
from muster.text.cleaning import clean

OUTPUT, ERRORS = 1, 2  # channels of the command
ANSWER_SECONDS = 20.0
LATE_SECONDS = 0.2  # to wait for a guard that owes earlier answers
CLOSE_SECONDS = 10.0  # for the guard to end the agents that it has forked
PIECE = 1 << 15  # bytes that are sent at once
TAKEN_SECONDS = 20.0  # for the run that holds the worker to accept a message
OPENED_AT_ONCE = 4  # a control socket refuses further connections while many are open
MOST_SAID = 4096  # bytes or characters that are kept of the guard's errors
_openings = threading.Semaphore(OPENED_AT_ONCE)


class GuardLost(PlatformError):
    """The guard in a worker of a pool is gone, and with it the agents that it had forked."""


class GuardSilent(PlatformError):
    """The guard in a worker of a pool does not answer in time."""


class GuardStream:
    """The guard in one worker.

    Args:
        run_dir: folder of the run that holds the worker.
        worker: the worker, as that run knows it.

    Raises:
        PlatformError: the guard cannot be started.

    Attributes:
        is_lost: whether the guard is gone.
        handle: handle of its worker; a replacement of that worker has another.
    """

    def __init__(self, run_dir: Path, worker: Worker) -> None:
        self.is_lost = False
        self.handle = worker.id
        self._worker = worker.name
        self._lock = threading.Lock()
        self._decoder = frames.Decoder()
        self._answers = frames.Decoder()
        self._received: list[dict[str, Any]] = []
        self._unanswered = 0  # requests, including those whose answers nobody waits for any more
        self._credit = wire.WINDOW
        self._complaint = b""
        argv = [symbol("python"), "-I", "-S", symbol("agent"), "pool", worker.address]
        with _openings:
            self._connection, answer = open_stream(run_dir, "exec", worker=worker.name, argv=argv)
        close_in_children(self._connection)
        if "closed" in answer:
            self._connection.close()
            raise PlatformError(
                f"The guard of runs cannot be started in {worker.name}: {answer['closed'].get('text')}.",
                worker=worker.name,
            )

    def ask(self, request: str, seconds: float = ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            GuardLost: the guard is gone, or its answer is malformed.
            GuardSilent: it does not answer in time.
            PlatformError: the request failed there.
        """
        with self._lock:
            if self.is_lost:
                raise self._lost("its worker has gone")
            try:
                owed_until = time.monotonic() + LATE_SECONDS  # answers come in order
                while self._unanswered:
                    self._next(owed_until)
                    self._unanswered -= 1
                deadline = time.monotonic() + seconds
                self._send(frames.encode(request, **fields), deadline)
                self._unanswered += 1
                answer = self._next(deadline)
                self._unanswered -= 1
                if self._received:
                    raise frames.ProtocolError("it answers what it was not asked")
            except (OSError, frames.ProtocolError, wire.Misfit) as error:
                if isinstance(error, TimeoutError):
                    text = f"The guard of runs in {self._worker} does not answer."
                    raise GuardSilent(text, worker=self._worker) from None
                raise self._lost(str(error)) from None
        if "error" in answer:
            why = str(answer["error"])[-MOST_SAID:]
            raise PlatformError(f"The guard of {self._worker} failed: {why}", worker=self._worker)
        return answer

    def close(self) -> None:
        """Have the guard end the agents that it has forked, and wait until it is gone."""
        if not self.is_lost:
            with contextlib.suppress(PlatformError):
                self.ask("close")
                with self._lock, contextlib.suppress(OSError):
                    deadline = time.monotonic() + CLOSE_SECONDS
                    while True:
                        self._receive(deadline)
        self.is_lost = True
        self._connection.close()

    def give_up(self) -> None:
        """Mark the guard as lost, because its worker is gone."""
        self.is_lost = True
        with contextlib.suppress(OSError):  # a thread that waits for an answer is woken
            self._connection.shutdown(socket.SHUT_RDWR)

    def _lost(self, why: str) -> GuardLost:
        self.is_lost = True
        self._connection.close()
        said = clean(self._complaint.decode("utf-8", "replace")).strip()
        last = said.splitlines()[-1:]
        why = last[0] if last else why or "its stream has ended"
        text = f"The guard of runs in {self._worker} is gone: {why.rstrip('.')}."
        return GuardLost(text, worker=self._worker, details=said or None)

    def _send(self, data: bytes, deadline: float) -> None:
        """Send a request. Raises TimeoutError where no part of it was sent in time, and OSError for other failures."""
        size = len(data)
        while data:
            piece = data[:PIECE]
            while self._credit < wire.cost(piece):
                try:
                    self._receive(deadline)
                except TimeoutError:
                    if len(data) == size:
                        raise
                    raise ConnectionAbortedError("it has taken a part of a request only") from None
            self._credit -= wire.cost(piece)
            self._transmit(wire.Data(1, 0, piece))
            data = data[len(piece) :]

    def _transmit(self, message: tuple[object, ...]) -> None:
        self._connection.settimeout(TAKEN_SECONDS)
        try:
            self._connection.sendall(wire.encode(message))
        except TimeoutError:  # a part of the message may have been sent
            raise ConnectionAbortedError("the run that holds the worker takes nothing") from None

    def _next(self, deadline: float) -> dict[str, Any]:
        while not self._received:
            self._receive(deadline)
        answer = self._received.pop(0)
        del answer["type"]
        return answer

    def _receive(self, deadline: float) -> None:
        """Read what comes next. Raises TimeoutError at the deadline, and OSError where the stream has ended."""
        wait_until(deadline, self._connection)
        data = self._connection.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the run that holds the worker has ended")
        for fields in self._decoder.feed(data):
            message = wire.from_agent(fields)
            if isinstance(message, wire.Data):
                if message.channel == OUTPUT:
                    self._received += self._answers.feed(message.payload)
                else:
                    self._complaint = (self._complaint + message.payload)[-MOST_SAID:]
                self._transmit(wire.Credit(1, wire.cost(message.payload)))
            elif isinstance(message, wire.Credit):
                self._credit += message.size
            elif isinstance(message, wire.Closed):
                raise ConnectionResetError(message.text or "it has ended")
