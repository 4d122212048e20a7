"""Questions to a run of another process, by its control socket: how it stands, to stop, for its stacks."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

from muster.errors import RunUnreachable
from muster.runtime.background import on_background_thread
from muster.text.reading import parse_json, read_json

SECONDS_TO_APPEAR = 2.0  # of a run that has only just been asked for
SECONDS_TO_ANSWER = 10.0
SECONDS_TO_OPEN = 40.0
MOST_BYTES = 64 * 1024 * 1024  # of an answer
MOST_BYTES_OF_OPENING = 1 << 16  # of what says how a stream has begun


def control_file(run_dir: Path) -> Path:
    """The file, which only its owner can read, that names the control socket of a run under way and its token."""
    return run_dir / "control.json"


def ask(run_dir: Path, question: str, **details: object) -> dict[str, Any]:
    """Ask a run that is under way, and return its answer.

    Raises:
        RunUnreachable: it does not answer, or refuses.
    """
    name = run_dir.name
    if on_background_thread():  # which would have to answer
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
    """Ask a run under way for a stream to one of its workers; return the connection, and how the stream has begun.

    Over the connection go the messages of ``muster.agent.streams``, unless it says ``closed``.

    Raises:
        RunUnreachable: it does not answer, or refuses.
    """
    control = _await_control(run_dir) or {}
    request = json.dumps({"token": control.get("token"), "ask": question, **details}).encode() + b"\n"
    connection = socket.socket(socket.AF_UNIX)
    try:
        # A byte at a time, as a stream follows.
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
    """Let the connection's next call wait until a deadline at most. Raises TimeoutError where that has passed."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    connection.settimeout(seconds)


def _answer(
    connection: socket.socket, control: dict[str, Any], request: bytes, seconds: float, at_once: int, most: int
) -> dict[str, Any]:
    """Connect to a run, send a request and return the answer, one line of up to ``most`` bytes.

    Raises:
        OSError: it has not all come within the seconds.
        ValueError: it makes no sense.
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
