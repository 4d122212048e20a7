"""Helpers of several tests: a stand-in for a session, a run without a cluster, and checks of what they leave behind."""

from __future__ import annotations

import contextlib
import functools
import glob
import inspect
import itertools
import os
import re
import secrets
import selectors
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from muster.agent import frames, linux
from muster.job import Process, Resources, SessionAddress, SshIdentity, Worker, WorkerSpec
from muster.platforms.base import Platform
from muster.platforms.guards import HANDLE
from muster.pools.listener import listening_socket
from muster.records import runs
from muster.records.scratch import make_scratch
from muster.security.certificates import make_certificate
from muster.security.ssh import generate_key_pair

DOCS = Path(__file__).parents[1] / "docs"
TIMEOUT = 15.0  # seconds that a test waits for anything
TESTS = Path(__file__).parent
# It is compiled for one interpreter, that of .venv.
needs_horovod = pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed")
QUICK_KERAS = TESTS / "quick_keras"
# Runs commands in this process. Before 8.2 click mixes both streams unless it is told not to; since then it never does.
SEPARATE: Any = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
CLI = CliRunner(**SEPARATE)
IMPORT_PATH = f"{TESTS.parent / 'sdk'}{os.pathsep}{QUICK_KERAS}"  # PYTHONPATH of processes that tests start

# A script whose worker 0 sends to worker 1 through the named pipe "link". When worker 1 ends, worker 0 raises
# BrokenPipeError; with the argument "die" SIGPIPE ends it instead, as it ends other programs than Python, and with
# "abort" SIGABRT.
SENDER = """
import os, signal, sys

if "die" in sys.argv:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
if os.environ["MUSTER_WORKER"] == "worker-1":
    link = os.open("link", os.O_RDONLY)
    print("ready", flush=True)
    signal.pause()
link = os.open("link", os.O_WRONLY)
print("ready", flush=True)
while True:
    try:
        os.write(link, b"gradient")
    except BrokenPipeError:
        if "abort" in sys.argv:
            os.abort()
        raise
"""


def tracked_files(folder: Path) -> Path:
    """Copy all files that git tracks here, as they are now, into a folder, and return it: it is like a checkout."""
    root = TESTS.parent
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for path in filter(Path.is_file, (root / name for name in tracked.split("\0") if name)):
        there = folder / path.relative_to(root)
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, there)
    return folder


def handles_of(workers: Iterable[Worker]) -> list[str]:
    """Return the handles of workers."""
    return [worker.id for worker in workers]


def guide_program(guide: str, name: str) -> str:
    """Return the block of Python behind ``<!-- name -->`` in a guide."""
    found = re.search(rf"<!-- {name} -->\n```python\n(.*?)```", (DOCS / guide).read_text(encoding="utf-8"), re.DOTALL)
    assert found, f"{guide} has no {name}"
    return found[1]


def program_of(guide: str, name: str, module: str = "program_of_a_guide") -> dict[str, Any]:
    """Run a program of a guide as a module of the given name, and return the names that it defines."""
    made = types.ModuleType(module)
    sys.modules[module] = made  # dataclasses look up the names in their types there
    exec(compile(guide_program(guide, name), f"{guide}:{name}", "exec"), vars(made))
    return vars(made)


def eventually(condition: Callable[[], Any], what: str, timeout: float = TIMEOUT) -> Any:
    """Wait until ``condition`` is true, and return what it returned."""
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"not within {timeout} s: {what}"
        time.sleep(0.005)


def reports_of(run_dir: Path, worker: str) -> list[dict[str, Any]]:
    """Return the progress that a worker's script has reported in a run."""
    return [
        dict(event.data) for event in runs.Run(run_dir).events() if event.kind == "progress" and event.worker == worker
    ]


@functools.lru_cache(maxsize=1)
def self_signed() -> tuple[str, str]:
    """Return a certificate for a session, and its key, both PEM."""
    return make_certificate("127.0.0.1")


@functools.lru_cache(maxsize=1)
def key_pair() -> tuple[str, str]:
    """Return a private and a public ssh key, both as OpenSSH text."""
    pair = generate_key_pair()
    return pair.private, pair.public


class StubSession:
    """A stand-in for a session: agents connect to it, it keeps their messages, and it sends what a test tells it to."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.certificate, key = self_signed()
        self.token = secrets.token_hex(16)
        self.messages: list[tuple[str, dict[str, Any]]] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(self.certificate + key)
            file.flush()
            self._context.load_cert_chain(file.name)
        self._listener = socket.create_server((host, 0))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._connections: dict[str, ssl.SSLSocket] = {}

    @property
    def address(self) -> SessionAddress:
        """The address and credentials that a worker needs in order to connect."""
        host, port = self._listener.getsockname()
        return SessionAddress(host, port, self.certificate, self.token)

    def listen_for(self, platform: Platform) -> None:
        """Listen at the address at which the workers of a platform reach the session."""
        reach = platform.reach()
        if reach.relayed or reach.listen == "127.0.0.1":
            return
        self._selector.unregister(self._listener)
        self._listener.close()
        self._listener = listening_socket((reach.listen, 0), socket.AF_INET, reach.is_coming)
        self._selector.register(self._listener, selectors.EVENT_READ, None)

    @staticmethod
    def dialled_at(spec: WorkerSpec, address: tuple[str, int]) -> WorkerSpec:
        """Return the spec of a worker whose agent connects to its session at another address."""
        assert spec.session is not None
        return replace(spec, session=replace(spec.session, host=address[0], port=address[1]))

    def send(self, worker: str, kind: str, **fields: Any) -> None:
        """Send one message to a worker that has said hello."""
        connection = self._connections[worker]
        connection.setblocking(True)
        connection.sendall(frames.encode(kind, **fields))
        connection.setblocking(False)

    def listen(self, seconds: float = 0.0) -> None:
        """Take connections and messages that have arrived; if there are none, wait for some, at most ``seconds``."""
        for key, _ in self._selector.select(seconds):
            if key.data is None:
                self._accept()
            else:
                self._receive(key.fileobj, key.data)  # type: ignore[arg-type]

    def wait_for(self, kind: str, worker: str | None = None, count: int = 1, timeout: float = TIMEOUT) -> Any:
        """Return the first message of this kind, or the first ``count`` of them, once they have arrived."""
        deadline = time.monotonic() + timeout
        found: list[dict[str, Any]] = []
        seen = 0  # messages checked so far; each is checked only once, since some workers send thousands
        while True:
            found += self._received_since(seen, kind, worker)
            seen = len(self.messages)
            if len(found) >= count:
                return found[0] if count == 1 else found[:count]
            kinds = [message["type"] for _, message in self.messages[-5:]]
            assert time.monotonic() < deadline, f"no {kind} from {worker} within {timeout} s, the last were {kinds}"
            self.listen(0.05)

    def received(self, kind: str, worker: str | None = None) -> list[dict[str, Any]]:
        """Return all messages of this kind so far."""
        return list(self._received_since(0, kind, worker))

    def _received_since(self, start: int, kind: str, worker: str | None) -> Iterator[dict[str, Any]]:
        for name, message in itertools.islice(self.messages, start, None):
            if message["type"] == kind and worker in (None, name):
                yield message

    def output(self, worker: str | None = None) -> str:
        """Return everything that one worker, or all, have printed so far."""
        return "".join(message["text"] for message in self.received("output", worker))

    def hang_up(self, worker: str) -> None:
        """Close the connection to one worker."""
        connection = self._connections.pop(worker)
        self._selector.unregister(connection)
        connection.close()

    def close(self) -> None:
        """Close all connections, and stop listening."""
        for connection in self._connections.values():
            connection.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        plain, _ = self._listener.accept()
        plain.settimeout(5)
        try:
            connection = self._context.wrap_socket(plain, server_side=True)
        except OSError:
            plain.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, {"name": "", "decoder": frames.Decoder()})

    def _receive(self, connection: ssl.SSLSocket, state: dict[str, Any]) -> None:
        try:
            while True:
                data = connection.recv(1 << 16)
                if not data:
                    break
                for message in state["decoder"].feed(data):
                    self._note(connection, state, message)
        except ssl.SSLWantReadError:
            return
        except OSError:
            pass
        self._selector.unregister(connection)
        connection.close()
        self._connections.pop(state["name"], None)
        self.messages.append((state["name"], {"type": "hung_up"}))

    def _note(self, connection: ssl.SSLSocket, state: dict[str, Any], message: dict[str, Any]) -> None:
        if message["type"] == "hello":
            assert message["token"] == self.token
            state["name"] = message["worker"]
            self._connections[state["name"]] = connection
            connection.setblocking(True)
            connection.sendall(frames.encode("welcome"))
            connection.setblocking(False)
        self.messages.append((state["name"], message))


class Run:
    """A run's folders and id, for tests that launch workers without a cluster.

    Its scratch folder is not in pytest's own folder, whose path is longer than a socket's may be.
    """

    def __init__(self, folder: Path, run_id: str | None = None, scratch: Path | None = None) -> None:
        self.id = run_id or f"test-{secrets.token_hex(4)}"
        self.folder = folder
        self.home = os.environ.get("MUSTER_HOME", "")
        self.ports: list[int] = []
        self.scratch = scratch or make_scratch()

    def spec(self, name: str = "worker-0", **changes: Any) -> WorkerSpec:
        """Return the spec of a small worker of this run."""
        fields: dict[str, Any] = {
            "name": name,
            "role": name.rpartition("-")[0],
            "index": int(name.rpartition("-")[2]),
            "run_id": self.id,
            "resources": Resources(cpu=1, memory=0.5),
            "log": self.folder / f"{name}.log",
            "scratch": self.scratch / name,
            "cwd": str(self.folder),
        }
        return WorkerSpec(**{**fields, **changes})

    def processes(self) -> list[int]:
        """Return the ids of all processes that its workers have started, found by their environment."""
        return linux.marked("MUSTER_RUN_ID", self.id)

    def guards(self) -> list[int]:
        """Return the ids of guards, agents and other processes that this test has started, found by the test's home."""
        return linux.marked("MUSTER_HOME", self.home)

    def left_behind(self) -> list[str]:
        """Return what is left of the run: processes, ports, and scratch folders of workers."""
        left = [f"process {pid}: {command_line(pid)}" for pid in (*self.processes(), *self.guards())]
        left += [f"port {port}" for port in self.ports if not free_of(port)]
        # Not Path.glob, which fails where the folder is removed meanwhile.
        return left + [str(self.scratch / name) for name in glob.glob("*-[0-9]*", root_dir=self.scratch)]

    def files_with(self, text: str) -> list[str]:
        """Return the files that contain a text, in the run's folder, its scratch folder and Muster's home."""
        files = (Path(path, name) for top in (self.folder, self.scratch, self.home) for path, _, names in os.walk(top)
                 for name in names)  # fmt: skip
        return [str(file) for file in files if file.is_file() and text.encode() in file.read_bytes()]

    def remove(self) -> None:
        """Remove the scratch folder."""
        shutil.rmtree(self.scratch, ignore_errors=True)


def fresh_identity() -> SshIdentity:
    """Return a new ssh identity for a worker; ``key_pair()`` may log in."""
    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return SshIdentity(host_key=private.decode(), authorized_key=key_pair()[1])


def shell(command: str) -> Process:
    """Return a process that runs a shell command."""
    return Process(("/bin/sh", "-c", command))


def command_line(pid: int) -> str:
    """Return the command line of a process, or ``gone`` if there is no such process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "gone"


class InterruptedPopen(subprocess.Popen[Any]):
    """A child that an interrupt has kept from being polled: it came after ``poll`` had taken its lock."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lock: threading.Lock = self._waitpid_lock  # type: ignore[attr-defined]
        self._lock.acquire()

    def __del__(self) -> None:
        if hasattr(self, "_lock"):
            self._lock.release()
            self.poll()


@contextlib.contextmanager
def alarms(handler: Callable[[int, types.FrameType | None], object]) -> Iterator[None]:
    """Handle the alarms that a test sets in the block; after it, the time limit of the test itself applies again."""
    limit = signal.setitimer(signal.ITIMER_REAL, 0)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *limit)


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, even if it is still a zombie."""
    found = linux.stat(pid)
    return found is None or found.state in "ZX"


def free_of(port: int) -> bool:
    """Return whether no process holds the TCP port."""
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """Return a free port, for a program that binds it later: the kernel gives ports below 32768 to nobody by itself."""
    while not free_of(port := 10_000 + secrets.randbelow(22_768)):
        pass
    return port


def descendants_of(pid: int) -> list[int]:
    """Return the ids of all descendants of a process."""
    return linux.descendants(pid, linux.snapshot())


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with changes, for children that import muster."""
    return {**os.environ, "PYTHONPATH": IMPORT_PATH, **changes}


# Matches the command lines of the guard of this machine's workers, of a session's guard, and of a login to a host.
OWN_PROCESSES = re.compile(r"/agent/__main__\.py (guard|session) |-o ControlPath=\S+ .*-T -- ")


def first_line(platform: Platform, handle: str) -> str:
    """Return the first line that a worker prints."""
    lines: list[str] = eventually(lambda: list(platform.logs(handle)), "it has printed")
    return lines[0]


def guard_of(handle: str) -> int:
    """Return the process id of the guard of a worker on this machine, which the worker's handle ends with."""
    found = HANDLE.fullmatch(handle)
    assert found is not None, handle
    return int(found["pid"])


def guards_and_logins() -> dict[int, str]:
    """Return the guards and logins that this process has started and that still run: command lines by process id."""
    children: list[int] = []
    for listed in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            children += map(int, listed.read_text().split())
    commands = {pid: command_line(pid) for pid in children}
    return {pid: command for pid, command in commands.items() if OWN_PROCESSES.search(command + " ")}
