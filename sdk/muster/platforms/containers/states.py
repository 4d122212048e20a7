"""The state of a worker in a container, from what its engine and its agent report."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from typing import Any

from muster.job import EndCause, Status, Worker
from muster.platforms.agents import outcome_of, told_to_end_at
from muster.platforms.containers import worker as containers
from muster.platforms.containers.engine import Engine
from muster.platforms.containers.refusals import asking
from muster.platforms.timestamps import timestamp

LARGEST_LINE = 16 << 10  # bytes that are read of a container's last line
WORDS_SECONDS = 5.0  # longest time that an engine may take to store the last output of a container that has ended
CANNOT_EXECUTE = "failed to exec"  # printed by Podman's init, which then exits with status 1
NOT_EXECUTABLE, NO_PROGRAM = 126, 127  # exit statuses of an init that cannot start the program
PAUSED = "Its container is paused; `{} unpause {}` lets it go on."
SIGTERM_STATUS, SIGKILL_STATUS = 128 + signal.SIGTERM, 128 + signal.SIGKILL
# Of runc, silently, where SIGTERM comes in the moment before it becomes the container's first program: the kernel
# ends no first process by a signal without a handler, and programs in Go then exit with this.
STOPPED_EARLY_STATUS = 2


def running(engine: Engine, worker: Worker) -> Worker:
    """Return a worker as running, with its container's address and times. Raises PlatformError."""
    described = inspect(engine, worker.id)
    if described is None:
        return worker
    networks = (described.get("NetworkSettings") or {}).get("Networks") or {}
    address = next((network["IPAddress"] for network in networks.values() if network.get("IPAddress")), None)
    return worker.moved(
        Status.RUNNING,
        address=address,
        created_at=worker.created_at or timestamp(described.get("Created")),
        placed_at=worker.placed_at or timestamp(described.get("Created")),
        running_at=max(timestamp(described["State"].get("StartedAt")) or 0.0, worker.created_at or 0.0),
    )


def ended(engine: Engine, worker: Worker, image: str | None, was_stopped: bool) -> Worker:
    """Return a worker as ended, with the status and the reason of its container's end.

    Args:
        engine: the container's engine.
        worker: the worker's last known state.
        image: the image that the user has named.
        was_stopped: whether ``stop`` was called for it.

    Raises:
        PlatformError: the engine cannot be asked.
    """
    described = inspect(engine, worker.id)
    if described is None:
        return worker
    state = described["State"]
    finished = timestamp(state.get("FinishedAt")) or time.time()
    news = containers.news(engine, worker.id)
    said = outcome_of(news)
    if not said:
        told = told_to_end_at(news)
        said = {"status": Status.STOPPED} if was_stopped else _unsaid(engine, worker, state, image, told)
    elif was_stopped:
        said = {"status": Status.STOPPED}
    return worker.moved(**said, finished_at=finished)


def _unsaid(
    engine: Engine, worker: Worker, state: Mapping[str, Any], image: str | None, told_at: float | None = None
) -> dict[str, Any]:
    """Return the end of a container whose agent could not report it, but perhaps when it was told to end."""
    code = int(state.get("ExitCode") or 0)
    if code == SIGTERM_STATUS:
        return {"status": Status.STOPPED}
    if state.get("OOMKilled"):
        reason = f"{engine.product} says that it ran out of memory."
        return {"status": Status.FAILED, "reason": reason, "cause": EndCause.MEMORY}
    if code == SIGKILL_STATUS and told_at is not None:
        reason = _took_too_long(engine, state, told_at)
    elif code == SIGKILL_STATUS:
        reason = "Its container was killed (SIGKILL): by somebody, or by the system for want of memory."
    else:
        words = _last_words(engine, worker.id)
        if code == STOPPED_EARLY_STATUS and not words:  # a Python that fails says why
            return {"status": Status.STOPPED}
        reason = _why_it_failed(engine, words, state, image)
    return {"status": Status.FAILED, "reason": reason}


def _took_too_long(engine: Engine, state: Mapping[str, Any], told_at: float) -> str:
    """Return the reason of a container that was killed some time after it had been told to end."""
    clock = time.strftime("%H:%M:%S", time.localtime(told_at))
    seconds = max(0.0, (timestamp(state.get("FinishedAt")) or time.time()) - told_at)
    return (
        f"Its container was told to stop by somebody ({engine.product.lower()} stop, at {clock}), "
        f"and was killed {seconds:.0f} s later, as it had not ended by then."
    )


def _why_it_failed(engine: Engine, words: str, state: Mapping[str, Any], image: str | None) -> str:
    code = int(state.get("ExitCode") or 0)
    python = f"python3 in the image {image}" if image else sys.executable
    if code == NO_PROGRAM or (CANNOT_EXECUTE in words and "No such file" in words):
        return f"There is no {python}, which workers need: Python 3.6 or later."
    if code == NOT_EXECUTABLE or CANNOT_EXECUTE in words:
        return f"{python} may not be executed by user {os.getuid()}, or is none for this machine."
    if state.get("Error"):
        return f"{engine.product} says: {state['Error']}"
    reason = f"Its container ended with status {code} before its agent could say why."
    return f"{reason} It printed: {words}" if words else reason


def inspect(engine: Engine, name: str) -> dict[str, Any] | None:
    """Return the engine's description of a container; None where there is none of that name."""
    from docker.errors import NotFound

    with asking(engine, f"{name} could not be looked at"):
        try:
            described: dict[str, Any] = engine.client.inspect_container(name)
        except NotFound:
            return None
    return described


def _last_words(engine: Engine, name: str) -> str:
    """Return the last line that a container has printed, without the output of its worker's processes.

    The engine may report the end of a container before it has stored all of its output.
    """
    deadline = time.monotonic() + WORDS_SECONDS
    while not (words := _last_line(engine, name)) and time.monotonic() < deadline:
        time.sleep(WORDS_SECONDS / 50)
    return words


def _last_line(engine: Engine, name: str) -> str:
    """Return the last line of a container's output that the engine has stored; empty where there is none yet."""
    from docker.errors import APIError

    said = b""
    with asking(engine, f"The output of {name} could not be read"), contextlib.suppress(APIError):
        for piece in engine.client.logs(name, tail=1, stream=True):
            said += piece
            if len(said) > LARGEST_LINE:  # a container may print any amount
                break
    lines = said[:LARGEST_LINE].decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""
