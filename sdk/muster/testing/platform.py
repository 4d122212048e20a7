"""A platform of scripted workers, whose failures a test chooses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from muster.job import Status, Worker, WorkerSpec
from muster.platforms.base import Platform
from muster.runtime import clock
from muster.runtime.background import background_loop
from muster.testing.loop import SimulatedLoop
from muster.testing.workers import ScriptedWorker

HANDLE = "scripted-"  # prefix of every worker's handle, before its name


class ScriptedPlatform(Platform):
    """A platform whose workers are :class:`ScriptedWorker` objects in this process.

    Attributes:
        players: the scripted workers, by name; made when first needed.
        calls: every call of a method by Muster: the method's name, and the names of the workers it was called for.
        errors: exceptions that methods raise as long as they are in here, by the method's name.
        seconds: how long methods take, by the method's name; ``inf`` for one that never returns.
        queued: names of the workers that the platform has no place for, until ``place`` is called.
        strangers: workers that Muster has not launched, and that every ``poll`` returns nevertheless.
    """

    name = "scripted"
    lease_seconds = 0.0
    poll_seconds = (0.2, 2.0)  # few polls in what may be minutes of simulated time

    def __init__(self) -> None:
        self.players: dict[str, ScriptedWorker] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.errors: dict[str, BaseException] = {}
        self.seconds: dict[str, float] = {}
        self.strangers: list[Worker] = []
        self.queued: set[str] = set()
        self._workers: dict[str, Worker] = {}
        self._specs: dict[str, WorkerSpec] = {}
        self._submitted: dict[str, list[str]] = {}

    def player(self, name: str) -> ScriptedWorker:
        """Return the scripted worker that plays the worker of that name."""
        return self.players.setdefault(name, ScriptedWorker(name))

    def end(self, name: str, status: Status = Status.FAILED, reason: str | None = None, **known: Any) -> None:
        """End a worker as the platform sees it, with facts such as ``cause`` and ``advice``; its agent is not told."""
        self._workers[name] = self._workers[name].moved(status, reason=reason, finished_at=clock.wall_time(), **known)

    def waits(self, name: str, reason: str) -> None:
        """Set the reason why a worker is waiting."""
        self._workers[name] = replace(self._workers[name], reason=reason)

    # -- the calls of a platform --------------------------------------------------------------------------------------

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Launch the scripted workers. A second call with the same key does nothing."""
        self._called("submit", [spec.name for spec in specs])
        if run_key in self._submitted:
            return self._submitted[run_key]
        loop = _loop()
        for spec in specs:
            now = clock.wall_time()
            is_queued = spec.name in self.queued
            status, placed_at = (Status.SCHEDULING, None) if is_queued else (Status.STARTING, now)
            self._workers[spec.name] = Worker(
                f"{HANDLE}{spec.name}", spec.name, status, created_at=now, placed_at=placed_at
            )
            if is_queued:
                self._specs[spec.name] = spec
                continue
            loop.call_soon_threadsafe(self.player(spec.name).launch, spec)
        self._submitted[run_key] = [self._workers[spec.name].id for spec in specs]
        return self._submitted[run_key]

    def place(self, name: str) -> None:
        """Give a place to a worker that was queued, and start it."""
        self._workers[name] = self._workers[name].moved(Status.STARTING, placed_at=clock.wall_time())
        _loop().call_soon_threadsafe(self.player(name).launch, self._specs[name])

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return these workers, and any strangers."""
        names = _names(handles)
        self._called("poll", names)
        known = [
            self._workers.get(name, Worker(handle, name, Status.FAILED))
            for name, handle in zip(names, handles, strict=True)
        ]
        return [*known, *self.strangers]

    def stop(self, handles: Sequence[str]) -> None:
        """End these workers."""
        names = _names(handles)
        self._called("stop", names)
        self._stop(names)

    def list(self) -> list[Worker]:
        """Return all workers that have been launched."""
        return [*self._workers.values()]

    def logs(self, handle: str) -> Iterator[str]:
        """Return no lines: scripted workers print nothing."""
        return iter(())

    def close(self) -> None:
        """End all workers."""
        self._called("close", [*self._workers])
        self._stop([*self._workers])

    def _stop(self, names: Sequence[str]) -> None:
        loop = _loop()
        for name in names:
            self._workers[name] = self._workers[name].moved(Status.STOPPED, finished_at=clock.wall_time())
            loop.call_soon_threadsafe(self.player(name).hang_up)

    def _called(self, method: str, names: Sequence[str]) -> None:
        self.calls.append((method, tuple(names)))
        if method in self.seconds:
            loop = _loop()
            (loop.sleep if isinstance(loop, SimulatedLoop) else time.sleep)(self.seconds[method])
        if method in self.errors:
            raise self.errors[method]


def _names(handles: Sequence[str]) -> list[str]:
    return [handle.removeprefix(HANDLE) for handle in handles]


def _loop() -> asyncio.AbstractEventLoop:
    """Return the loop that workers run on: the running one, as on simulated threads, or else the background loop."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return background_loop()
