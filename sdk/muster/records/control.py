"""Requests to a run in another process by its control socket, such as to stop, or to return its stacks."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from muster.errors import RunUnreachable
from muster.runtime.background import on_background_thread
from muster.text.reading import parse_json, read_json

SECONDS_TO_APPEAR = 2.0  # to wait for the control file of a run that has only just begun
SECONDS_TO_ANSWER = 10.0
SECONDS_TO_OPEN = 40.0
MOST_BYTES = 64 * 1024 * 1024  # of an answer
MOST_BYTES_OF_OPENING = 1 << 16  # of the first answer on a stream


def control_file(run_dir: Path) -> Path:
    """Return the path of the file, readable by its owner only, with a run's control socket and token."""
    return run_dir / "control.json"


def ask(run_dir: Path, question: str, **details: object) -> dict[str, Any]:
    """Send a request to a run that is under way, and return its answer.

    Raises:
        RunUnreachable: the run does not answer, or refuses.
    """
    name = run_dir.name
    if on_background_thread():  # that thread would have to answer
        raise RunUnreachable(f"Run {name} cannot be asked by an observer.", advice="ask on a thread of your own")
    control = _await_control(run_dir)
    if control is None:
        raise RunUnreachable(
            f"Run {name} cannot be asked: it has no control socket.",
            advice="it has only just begun or ended, or an older Muster started it: end its session instead",
        )
    request = json.dumps({"token": control.get("token"), "ask": question, **details}).encode() + b"\n"
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            answer = _answer(connection, control, request, SECONDS_TO_ANSWER, 1 << 20, MOST_BYTES)
    except TimeoutError:
        raise RunUnreachable(
            f"Run {name} does not answer: its session hangs, or has been halted.",
            advice="end the session, and its workers end with it",
        ) from None
    except (OSError, ValueError) as error:
        raise RunUnreachable(
            f"Run {name} cannot be asked: {error}.",
            advice="its session has ended, or is on another machine; workers end with their session",
        ) from None
    if "error" in answer:
        raise _refusal(name, str(answer["error"]))
    return answer


def open_stream(run_dir: Path, question: str, **details: object) -> tuple[socket.socket, dict[str, Any]]:
    """Ask a run under way for a stream to one of its workers; return the connection, and the first answer on it.

    The messages of ``muster.agent.streams`` follow on the connection, unless the answer says ``closed``.

    Raises:
        RunUnreachable: the run does not answer, or refuses.
    """
    control = _await_control(run_dir) or {}
    request = json.dumps({"token": control.get("token"), "ask": question, **details}).encode() + b"\n"
    connection = socket.socket(socket.AF_UNIX)
    try:
        # One byte at a time, so as not to read bytes of the stream that follows.
        answer = _answer(connection, control, request, SECONDS_TO_OPEN, 1, MOST_BYTES_OF_OPENING)
        if "error" in answer:
            raise _refusal(run_dir.name, str(answer["error"]))
    except (OSError, ValueError) as error:
        connection.close()
        why = "it does not answer" if isinstance(error, TimeoutError) else error
        raise RunUnreachable(
            f"Run {run_dir.name} cannot be asked: {why}.",
            advice="it has ended, or its session hangs or is on another machine",
        ) from None
    except RunUnreachable:
        connection.close()
        raise
    return connection, answer


def _refusal(name: str, why: str) -> RunUnreachable:
    return RunUnreachable(why if why.startswith(f"Run {name} ") else f"Run {name} refuses: {why.rstrip('.')}.")


def _await_control(run_dir: Path) -> dict[str, Any] | None:
    deadline = time.monotonic() + SECONDS_TO_APPEAR
    while True:
        try:
            found = read_json(control_file(run_dir))
        except (OSError, ValueError):
            found = None
        if isinstance(found, dict) or time.monotonic() > deadline:
            return found if isinstance(found, dict) else None
        time.sleep(0.05)


def wait_until(deadline: float, connection: socket.socket) -> None:
    """Set a connection's timeout so that its next call ends by a deadline; raise TimeoutError if that has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    connection.settimeout(seconds)


def _answer(
    connection: socket.socket, control: dict[str, Any], request: bytes, seconds: float, at_once: int, most: int
) -> dict[str, Any]:
    """Connect to a run, send a request and return the answer, one line of up to ``most`` bytes.

    Args:
        seconds: time limit for all of that.
        at_once: number of bytes to read at once.

    Raises:
        OSError: the whole answer has not come in time, or the connection failed.
        ValueError: the answer is not valid.
    """
    deadline = time.monotonic() + seconds
    connection.settimeout(seconds)
    connection.connect(str(control.get("socket")))
    connection.sendall(request)
    data = bytearray()
    while not data.endswith(b"\n"):
        wait_until(deadline, connection)
        part = connection.recv(at_once)
        if not part:
            raise ValueError("it hung up")
        data += part
        if len(data) > most:
            raise ValueError("its answer is too long")
    answer = parse_json(data)
    if not isinstance(answer, dict):
        raise ValueError("its answer is none")
    return answer
