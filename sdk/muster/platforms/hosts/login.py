"""A login to one host by the OpenSSH client, with a guard on that host (:mod:`muster.agent.host_guard`)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import Any

from muster.agent import frames
from muster.errors import HostUnreachable, LoginRefused, MusterError, PlatformError, PlatformUnsupported
from muster.platforms.agent_package import packed_agent, with_unpacking
from muster.platforms.guard_answers import HELLO, checked
from muster.platforms.hosts.connection import HostConnection, is_kept_open
from muster.platforms.hosts.failures import host_error, not_started
from muster.runtime import children
from muster.runtime.forks import in_forked_children
from muster.security.ssh import CONNECT_SECONDS, ssh_client

READS = re.compile(rb"\0muster reads (\S+)\n")  # as the agent's host_bootstrap.py says it
READY = re.compile(rb"\0muster guard\n")  # as its host_guard.py does
LOADER = "python3 -I -S -c 'import sys;exec(sys.stdin.buffer.raw.readline())'"
HOST_GUARD = "host_guard"  # the agent's module with the guard of workers on a host
READY_SECONDS = 60.0  # time that a login may take, including the startup files of the host's shell
ANSWER_SECONDS = 20.0
LONGEST = 1 << 25  # bytes of an answer without its payload
MOST_SAID = 1 << 16  # bytes that are read of the errors of ssh, or of the host's shell
LATE_SECONDS = 0.2  # to wait for a host that owes earlier answers
CLOSE_SECONDS = 10.0
ALIVE_SECONDS, ALIVE_COUNT = 5, 3  # after which ssh itself gives up on a host that does not answer
OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    f"ConnectTimeout={CONNECT_SECONDS:.0f}",
    f"ServerAliveInterval={ALIVE_SECONDS}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "PermitLocalCommand=no",
    "LogLevel=ERROR",
)


class Login:
    """A login to one host.

    Args:
        host: as ssh knows it.
        folder: a private folder with a short path, for ssh's control socket.
        guard: the agent's module with the guard.

    Attributes:
        host: the host.
        facts: the guard's facts about the host, from its answer to ``hello``.
    """

    def __init__(self, host: str, folder: Path, guard: str = HOST_GUARD) -> None:
        self.host = host
        self._program = guard_program(guard)
        self.facts: dict[str, Any] = {}
        self._control = folder / secrets.token_hex(6)
        self._lock = threading.Lock()
        self._printed = b""  # by the host, before its guard talks
        self._decoder = frames.Decoder(LONGEST)
        self._received: list[dict[str, Any]] = []
        self._unanswered = 0  # requests whose answers nobody waits for any more
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: HostConnection | None = None
        self.heard_at = time.monotonic()
        self.clock_offset = 0.0

    def open(self, lease: float, word: str) -> None:
        """Log in, and start a guard there.

        Args:
            lease: seconds that its agents keep running without the session.
            word: secret by which the guard recognizes the same platform object in a later login.

        Raises:
            PlatformError: the host cannot be used, with the reason.
        """
        client = ssh_client()
        if client is None:
            raise PlatformUnsupported("There is no ssh client here.", advice="install openssh-client")
        try:
            self._open(HostConnection(client, self.host, self._control), lease, word)
        except LoginRefused:  # nobody can be asked for a one-time password; the user may have been
            if not is_kept_open(client, self.host):
                raise
            self._printed = b""
            self._open(HostConnection(client, self.host, None), lease, word)

    def _open(self, connection: HostConnection, lease: float, word: str) -> None:
        self._connection = connection
        options = [word for option in (*OPTIONS, *connection.options) for word in ("-o", option)]
        try:
            self._process = subprocess.Popen(
                [connection.client, *options, "-T", "--", self.host, LOADER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # an interrupt of the notebook does not reach it
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            raise PlatformUnsupported(f"The ssh client cannot be started: {error}.") from error
        _logins.add(self)
        try:
            self._write(self._program)
            deadline = time.monotonic() + READY_SECONDS
            try:
                tag = self._wait_for(READS, deadline)[1].decode("ascii", "replace")
            except HostUnreachable:
                if not self.is_open:
                    raise
                raise not_started(self.host, READY_SECONDS, self._printed.decode("utf-8", "replace")) from None
            self._write(package_for(tag))
            self._wait_for(READY, deadline)
            self._feed(self._printed)
            self._printed = b""
            before = time.time()
            told = self.ask("hello", lease=lease, word=word, python=sys.executable, is_users=connection.is_users)
            self.facts = checked(told, HELLO, self.host)
            self.clock_offset = self.facts["time"] - (before + time.time()) / 2
        except BaseException:
            self.kill()
            raise

    @property
    def is_open(self) -> bool:
        """True if the login has not ended."""
        return self._process is not None and not children.has_ended(self._process)

    @property
    def guard(self) -> tuple[int, int]:
        """Process id and start time of the guard, on its host."""
        pid, start = self.facts["guard"]
        return pid, start

    def ask(self, request: str, seconds: float = ANSWER_SECONDS, **fields: Any) -> dict[str, Any]:
        """Send one request to the guard and return its answer.

        Raises:
            HostUnreachable: the login has ended, or there is no answer in time.
            PlatformError: the request failed there.
        """
        with self._lock:
            is_late = self._unanswered > 0  # answers come in order, so this one will be late, too
            self._write(frames.encode(request, **fields))
            self._unanswered += 1
            deadline = time.monotonic() + (min(seconds, LATE_SECONDS) if is_late else seconds)
            while True:
                answer = self._next(deadline)
                self._unanswered -= 1
                if not self._unanswered:
                    break
        if "error" in answer:
            raise PlatformError(f"The workers' guard on {self.host} failed: {answer['error']}")
        return answer

    def forward(self, port: int, host: str, there: int = 0) -> int:
        """Forward connections to a port of the host to an address that this machine reaches (``ssh -R``).

        Args:
            port, host: the address that they are forwarded to.
            there: the port on the host's loopback interface; 0 for any.

        Returns:
            The port on the host.

        Raises:
            HostUnreachable: the host does not answer, or does not allow that.
        """
        assert self._connection is not None
        return self._connection.forward(port, host, there)

    def close(self) -> None:
        """End the login, the guard and its agents, and wait until they are gone."""
        self.begin_close()
        self.finish_close()

    def begin_close(self) -> None:
        """Ask the guard to end its agents and itself, without waiting."""
        with contextlib.suppress(MusterError), self._lock:
            self._write(frames.encode("close"))
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def finish_close(self) -> None:
        """Wait some seconds until the login has ended, less for a host that does not answer; then kill ssh."""
        if self._process is None:
            return
        with self._lock:
            seconds = LATE_SECONDS if self._unanswered else CLOSE_SECONDS
        self._drain(time.monotonic() + seconds)
        children.ends_within(self._process, LATE_SECONDS if self._unanswered else 1)
        self.kill()

    def _drain(self, deadline: float) -> None:
        assert self._process is not None
        while not children.has_ended(self._process) and time.monotonic() < deadline:
            with contextlib.suppress(MusterError):
                if self._read(time.monotonic() + 0.05) == b"":
                    return

    def _wait_for(self, mark: re.Pattern[bytes], deadline: float) -> re.Match[bytes]:
        """Wait for what the host's side says in this pattern, and skip what else the host prints before it."""
        while not (said := mark.search(self._printed)):
            data = self._read(deadline)
            if not data:
                raise self._ended()
            self._printed = (self._printed + data)[-(1 << 16) :]
        self._printed = self._printed[said.end() :]
        return said

    def _next(self, deadline: float) -> dict[str, Any]:
        while not self._received:
            data = self._read(deadline)
            if not data:
                raise self._ended()
            self._feed(data)
        answer = self._received.pop(0)
        del answer["type"]
        return answer

    def _feed(self, data: bytes) -> None:
        try:
            self._received += self._decoder.feed(data)
        except frames.ProtocolError as error:
            if self._process is not None:
                children.send_signal(self._process, signal.SIGKILL)  # nothing that comes after it can be understood
            raise HostUnreachable(
                f"The workers' guard on {self.host} talks nonsense: {error}.",
                advice=f"see who else runs programs as your user on {self.host}",
            ) from None

    def _read(self, deadline: float) -> bytes:
        """Return the next bytes; empty at the end. Raises HostUnreachable where none arrive in time."""
        assert self._process is not None
        assert self._process.stdout is not None
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        left = deadline - time.monotonic()  # negative where data keeps arriving that never completes an answer
        if left < 0 or not waiting.poll(1000 * left):
            silent = time.monotonic() - self.heard_at
            raise HostUnreachable(
                f"{self.host} has not answered for {silent:.0f} s." if left >= 0 else f"{self.host} does not answer.",
                advice="see whether it is on, and on the network",
            )
        data = os.read(self._process.stdout.fileno(), 1 << 18)
        self.heard_at = time.monotonic()
        return data

    def _write(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._ended() from None

    def _ended(self) -> MusterError:
        """Return the error for a login that has ended, made from what ssh has printed."""
        assert self._process is not None
        assert self._process.stderr is not None
        if self._process.stderr.closed:  # ``kill`` has closed it
            return HostUnreachable(f"The login to {self.host} has ended.")
        children.ends_within(self._process, 1)
        said = b""
        waiting = select.poll()
        waiting.register(self._process.stderr, select.POLLIN)
        while len(said) < MOST_SAID and waiting.poll(100):
            piece = os.read(self._process.stderr.fileno(), 1 << 16)
            if not piece:
                break
            said += piece
        printed = (said.strip() or self._printed).decode("utf-8", "replace")
        return host_error(self.host, printed, is_starting=not self.facts)

    def kill(self) -> None:
        """Kill ssh and close its pipes; the guard and its agents then end by themselves."""
        if self._process is not None:
            children.kill(self._process)
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        if self._connection is not None:
            self._connection.close()

    def abandon(self) -> None:
        """Release the pipes in a forked child, so that the login ends with the process that made it."""
        nowhere = os.open(os.devnull, os.O_RDWR)
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
                if pipe is not None and not pipe.closed:
                    os.dup2(nowhere, pipe.fileno())  # not closed, as its file object would close the descriptor again
        if self._connection is not None:
            self._connection.abandon(nowhere)
        os.close(nowhere)


_logins: weakref.WeakSet[Login] = weakref.WeakSet()


def _abandon_logins() -> None:
    for login in list(_logins):
        login.abandon()


in_forked_children(_abandon_logins)


def guard_program(guard: str = HOST_GUARD) -> bytes:
    """Return the input of ``LOADER``: a line with the program that becomes the guard of this module."""
    return f"exec({with_unpacking('host_bootstrap.py', f'become_guard(unpacked, {guard!r})')!r})\n".encode()


def package_for(tag: str) -> bytes:
    """Return the agent's package as that program reads it, with bytecode where its interpreter reads ours.

    Args:
        tag: the tag of the bytecode that it reads, such as ``cpython-311``.
    """
    packed = packed_agent(has_bytecode=tag == sys.implementation.cache_tag)
    return f"{len(packed)}\n".encode() + packed
