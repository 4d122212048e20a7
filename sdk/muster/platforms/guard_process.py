"""The guard process of local workers (:mod:`muster.agent.guard`), as its session starts, asks and ends it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from muster.agent import frames
from muster.errors import PlatformError
from muster.runtime import children
from muster.runtime.forks import close_in_children

AGENT_PROGRAM = Path(__file__).resolve().parent.parent / "agent" / "__main__.py"
REPLY_TIMEOUT = (
    120.0  # seconds that the guard may take to answer: to fork hundreds of agents on a busy machine takes long
)
CLOSE_TIMEOUT = 10.0  # seconds that the guard may take to end everything


class GuardGone(PlatformError):
    """The guard process has ended, which only happens when it is killed."""


class GuardProcess:
    """A guard process that this object starts, and that ends when this process does.

    Raises:
        PlatformError: it cannot be started.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._decoder = frames.Decoder(limit=None)
        self._is_silent = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = self._start(theirs.fileno())
        close_in_children(self._socket)

    @property
    def pid(self) -> int:
        """Process id of the guard."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """True until the guard has ended."""
        return not children.has_ended(self._process)

    @property
    def is_ours(self) -> bool:
        """True if this process started the guard, False in a forked child of the process that did."""
        return self._owner == os.getpid()

    def ask(self, request: str, **fields: Any) -> dict[str, Any]:
        """Send one request and return its answer.

        Raises:
            GuardGone: the guard has been killed.
            PlatformError: the guard failed, or has not answered in time and so is not asked again; or this is a forked
                child of the process that started it.
        """
        if not self.is_ours:
            raise PlatformError(
                "This platform belongs to the process that made it, not to its forked children.",
                advice="make a platform in the child",
            )
        with contextlib.suppress(OSError):
            children.send_signal(self._process, signal.SIGCONT)  # a guard that is stopped could neither answer nor end
        answer = _uninterrupted(lambda: self._exchange(request, fields))
        if "error" in answer:
            raise PlatformError(f"The workers' guard failed: {answer['error']}")
        return answer

    def close(self) -> bool:
        """End the guard with its workers, wait until it is gone, and return whether it had finished by itself."""
        with contextlib.suppress(PlatformError):
            self.ask("close")
        if not self.is_ours:
            self._socket.close()
            return False
        deadline = time.monotonic() + CLOSE_TIMEOUT
        self._hang_up(CLOSE_TIMEOUT)
        if not children.ends_within(self._process, deadline - time.monotonic()):
            children.kill(self._process)
            return False
        return self._process.returncode == 0

    def _hang_up(self, seconds: float) -> None:
        """Hang up, and wait until the guard has, too: ``Popen.wait`` with a time limit only looks now and then."""
        with self._socket, contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            self._socket.settimeout(seconds)
            while self._socket.recv(1 << 16):  # a late answer
                pass

    def _start(self, descriptor: int) -> subprocess.Popen[bytes]:
        # In a session of its own, so that interrupting the notebook's process group does not reach it.
        try:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", str(AGENT_PROGRAM), "guard", str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise PlatformError(f"The process that guards the workers cannot be started: {error}.") from error

    def _exchange(self, request: str, fields: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                if not self._is_silent:
                    self._socket.settimeout(REPLY_TIMEOUT)
                    self._socket.sendall(frames.encode(request, **fields))
                    return self._receive()
            except TimeoutError:
                self._is_silent = True  # a late answer would be taken for that to a later request
            except OSError as error:
                raise GuardGone("The process that guards the workers is gone.") from error
            raise PlatformError(
                f"The workers' guard process has not answered for {REPLY_TIMEOUT:g} s: this machine is too busy.",
                advice="fewer workers, or fewer other programs on this machine",
            )

    def _receive(self) -> dict[str, Any]:
        while True:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("end of file")
            for message in self._decoder.feed(data):
                return message


def _uninterrupted(call: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Make a call outside the main thread, where a KeyboardInterrupt would part a request from its answer."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    result: list[dict[str, Any]] = []
    failure: list[Exception] = []

    def run() -> None:
        try:
            result.append(call())
        except Exception as error:
            failure.append(error)

    thread = threading.Thread(target=run, name="muster-guard", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter is about to exit, and starts no more threads
        return call()
    thread.join()
    if failure:
        raise failure[0]
    return result[0]
