"""TensorBoard beside the session: started for a folder of event files, and ended with the session at the latest."""

from __future__ import annotations

import atexit
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import IO, Any, Protocol

from muster.checks import interpreter
from muster.errors import TensorBoardFailed
from muster.platforms.surroundings import web_app
from muster.records.folders import TENSORBOARD
from muster.runtime import children, interrupts
from muster.runtime.background import call_in_background
from muster.runtime.forks import in_forked_children

PROGRAM = Path(__file__).with_name("process.py")
LOG_END = 3000  # characters of the end of its log in errors
CLOSE_SECONDS = 5.0  # between SIGTERM and SIGKILL


class TensorBoard(tuple[str, int]):
    """``(url, pid)`` of a running TensorBoard; as a context manager it ends with its block."""

    _process: subprocess.Popen[bytes]

    def __new__(cls, url: str, process: subprocess.Popen[bytes]) -> TensorBoard:
        """Make the pair of URL and process id."""
        board = super().__new__(cls, (url, process.pid))
        board._process = process
        return board

    def __repr__(self) -> str:
        return f"<TensorBoard at {self.url}, process {self.pid}; close() ends it>"

    @property
    def url(self) -> str:
        """Address of the page, for a browser."""
        return self[0]

    @property
    def pid(self) -> int:
        """Process id of TensorBoard."""
        return self[1]

    @property
    def is_running(self) -> bool:
        """True if it still serves."""
        return not children.has_ended(self._process)

    def close(self) -> None:
        """End TensorBoard, and wait until it is gone. Idempotent."""
        _end(self._process)
        _running.discard(self)

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_running: set[TensorBoard] = set()
in_forked_children(_running.clear)  # they are the parent's


class HasFolder(Protocol):
    """A run: what ``run_cluster`` or ``open_run`` returns."""

    @property
    def run_dir(self) -> Path:
        """Its folder."""


def tensorboard(logdir: str | Path | HasFolder, *, timeout_seconds: float = 60) -> TensorBoard:
    """Start TensorBoard for a folder or a run, and return once it answers.

    In a session of the workbench it serves on the application port, which the workbench shows to those who may see the
    session. Elsewhere it serves on a free port of this machine, which other machines cannot reach; other users of this
    machine need the URL, which holds a secret. It ends with the session, or when it is closed:

    >>> with tensorboard("logs") as board:
    ...     board.is_running, board.url.startswith("http")
    (True, True)

    The result is also a pair: ``url, pid = muster.tensorboard("logs")``.

    Args:
        logdir: the folder of event files, which need not exist yet; or a run, for what it has written.
        timeout_seconds: how long it may take to answer; it imports TensorFlow first.

    Raises:
        TensorBoardFailed: TensorBoard is not installed, does not start in time, or its port is taken.
    """
    if not interpreter.probe(sys.executable, ["tensorboard"]).has("tensorboard"):
        raise TensorBoardFailed(
            f"{sys.executable} has no TensorBoard.", advice=f"{sys.executable} -m pip install 'muster[tensorflow]'"
        )
    shown = web_app(os.environ)
    port = shown.port if shown else 0
    arguments = ["--logdir", _absolute(logdir), "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = None
        try:
            with interrupts.deferred():
                process = call_in_background(lambda: _start("public" if shown else "private", arguments, log))
            address = _await_address(process, log, port, time.monotonic() + timeout_seconds)
        except BaseException:
            if process is not None:
                _end(process)
                if process.stdout is not None:
                    process.stdout.close()
            raise
    board = TensorBoard(shown.url if shown else address, process)
    _running.add(board)
    return board


def _absolute(logdir: str | Path | HasFolder) -> str:
    """Return the absolute path of a folder, or of a run's; URLs such as ``gs://bucket/logs`` as they are."""
    if not isinstance(logdir, (str, os.PathLike)):
        logdir = logdir.run_dir / TENSORBOARD
    is_address = isinstance(logdir, str) and "://" in logdir
    return str(logdir) if is_address else str(Path(logdir).expanduser().absolute())


def _start(access: str, arguments: list[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(PROGRAM), str(os.getpid()), access, *arguments]
    # In its own process session, so that interrupting a cell does not reach it.
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, bufsize=0, start_new_session=True
    )


def _await_address(process: subprocess.Popen[bytes], log: IO[bytes], port: int, deadline: float) -> str:
    """Wait until TensorBoard answers, and return its address."""
    assert process.stdout is not None
    with process.stdout:
        poll = select.poll()
        poll.register(process.stdout)
        said = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        address = process.stdout.readline().decode().strip() if said else ""
    if not address:
        raise _failure(process, log, port)
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        direct.open(address, timeout=max(1.0, deadline - time.monotonic())).close()
    except OSError as error:
        raise _failure(process, log, port) from error
    return address


def _failure(process: subprocess.Popen[bytes], log: IO[bytes], port: int) -> TensorBoardFailed:
    log.seek(0)
    text = log.read().decode(errors="replace")[-LOG_END:]
    if port and "already in use" in text:
        others = ", ".join(f"process {board.pid}, which is a TensorBoard of this session" for board in _running)
        return TensorBoardFailed(
            f"The application port {port} is taken" + (f" by {others}." if others else "."),
            details=text,
            advice="end what serves there: a session of the workbench has one application at a time",
        )
    return TensorBoardFailed(
        "TensorBoard did not come up.", details=text, advice="a longer timeout_seconds, if it was merely slow"
    )


def _end(process: subprocess.Popen[Any]) -> None:
    children.send_signal(process, signal.SIGTERM)
    if not children.ends_within(process, CLOSE_SECONDS):
        children.kill(process)


@atexit.register
def _close_all() -> None:
    for board in list(_running):
        board.close()
