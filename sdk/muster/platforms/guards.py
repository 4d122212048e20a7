"""Calls about local workers, by handle, from any process of the same user: they ask the guards of other processes.

A handle ends with the process id of the worker's guard and the guard's start time, so that it can never mean another
process. The guard listens on an abstract socket that is named after both (:mod:`muster.agent.guard`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.agent import linux
from muster.agent.guard_clients import ask_guard
from muster.errors import PlatformError
from muster.job import Status, Worker
from muster.platforms.base import unknown_worker

ANSWER_SECONDS = 10.0  # how long a guard may take to answer
HANDLE = re.compile(r"(?P<name>.+)@(?P<pid>\d+)\.(?P<start>\d+)")

Guard = tuple[int, int]  # process id and start time


def handle_of(worker: str, pid: int) -> str:
    """Return the handle of a worker of the guard with this process id."""
    return f"{worker}@{pid}.{linux.start_of(pid)}"


def worker_of(facts: dict[str, Any]) -> Worker:
    """Return a worker, made from the facts that its guard reports."""
    known = {name: value for name, value in facts.items() if name != "log"}
    return Worker(**{**known, "status": Status(facts["status"])})


def poll(handles: Iterable[str]) -> dict[str, Worker]:
    """Return the workers with these handles, by handle; those that no guard knows any more have failed.

    Raises:
        PlatformError: a guard does not answer.
    """
    found = {}
    for guard, its_handles in _by_guard(handles).items():
        known = _facts(guard)
        for handle in its_handles:
            found[handle] = worker_of(known[handle]) if handle in known else _unknown(handle, guard)
    return found


def stop(handles: Iterable[str]) -> None:
    """Ask the workers with these handles to end. Raises PlatformError where a guard does not answer."""
    for guard, its_handles in _by_guard(handles).items():
        if guard is not None:
            _ask(guard, "stop", ids=its_handles)


def log_of(handle: str) -> Path | None:
    """Return the path of a worker's log; None where unknown. Raises PlatformError where its guard does not answer."""
    for guard in _by_guard([handle]):
        facts = _facts(guard).get(handle)
        return Path(facts["log"]) if facts else None
    return None


def _by_guard(handles: Iterable[str]) -> dict[Guard | None, list[str]]:
    """Group handles by guard; under None are those that are no handles of local workers."""
    found: dict[Guard | None, list[str]] = {}
    for handle in handles:
        match = HANDLE.fullmatch(handle)
        guard = (int(match["pid"]), int(match["start"])) if match else None
        found.setdefault(guard, []).append(handle)
    return found


def _facts(guard: Guard | None) -> dict[str, dict[str, Any]]:
    """Ask a guard for the facts of its workers, by handle; empty where it is gone."""
    answer = _ask(guard, "poll") if guard is not None else None
    return {facts["id"]: facts for facts in answer["workers"]} if answer else {}


def _unknown(handle: str, guard: Guard | None) -> Worker:
    match = HANDLE.fullmatch(handle)
    name = match["name"].split(".")[1] if match and "." in match["name"] else handle
    unknown = replace(unknown_worker(handle), name=name)
    if guard is not None and not linux.is_running(*guard):
        return replace(unknown, reason="The session that launched it is gone, and its workers with it.")
    return unknown


def _ask(guard: Guard, request: str, **fields: Any) -> dict[str, Any] | None:
    """Return a guard's answer to a request; None where the guard is gone."""
    if not linux.is_running(*guard):
        return None
    try:
        answer = ask_guard(*guard, request, fields, ANSWER_SECONDS)
    except OSError as error:
        if not linux.is_running(*guard):
            return None
        raise PlatformError(
            f"The process {guard[0]}, which guards the workers, does not answer: {error}.",
            advice="ask from the same machine, container and user that launched them",
        ) from error
    if "error" in answer:
        raise PlatformError(f"The workers' guard failed: {answer['error']}")
    return answer
