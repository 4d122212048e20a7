"""A platform whose workers are scripted, and which fails on command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from muster.job import Status, Worker, WorkerSpec
from muster.platforms.base import Platform
from muster.runtime import clock
from muster.runtime.background import background_loop
from muster.testing.loop import SimulatedLoop
from muster.testing.workers import ScriptedWorker


class ScriptedPlatform(Platform):
    """Workers that are played by objects of this process.

    Attributes:
        players: who plays each worker, by name; made when first asked for.
        calls: the name of every method that Muster has called, and the names of the workers it was called for.
        errors: what a method raises, by its name, as long as it is there.
        seconds: how long a method takes, by its name; ``inf`` for one that never returns.
        strangers: workers that nobody has asked for, and that are in every answer all the same.
    """

    name = "scripted"

    def __init__(self) -> None:
        self.players: dict[str, ScriptedWorker] = {}
        self.calls: list[tuple[str, tuple[str, ...]]] = []
        self.errors: dict[str, BaseException] = {}
        self.seconds: dict[str, float] = {}
        self.strangers: list[Worker] = []
        self._workers: dict[str, Worker] = {}

    def player(self, name: str) -> ScriptedWorker:
        """Who plays this worker."""
        return self.players.setdefault(name, ScriptedWorker(name))

    def end(self, name: str, status: Status = Status.FAILED, reason: str | None = None) -> None:
        """A worker has ended, as far as the platform knows. Its agent is told nothing."""
        self._workers[name] = self._workers[name].moved(status, reason=reason, finished_at=clock.wall_time())

    # -- what Muster calls --------------------------------------------------------------------------------------------

    def launch(self, specs: Sequence[WorkerSpec]) -> list[Worker]:
        """Have each worker played."""
        self._called("launch", [spec.name for spec in specs])
        loop = _loop()
        for spec in specs:
            worker = Worker(f"scripted-{spec.name}", spec.name, Status.STARTING, created_at=clock.wall_time())
            self._workers[spec.name] = worker
            loop.call_soon_threadsafe(self.player(spec.name).launch, spec)
        return [self._workers[spec.name] for spec in specs]

    def poll(self, workers: Sequence[Worker]) -> list[Worker]:
        """How these are, and whoever else is in the answer."""
        self._called("poll", [worker.name for worker in workers])
        return [self._workers.get(worker.name, replace(worker, status=Status.FAILED)) for worker in workers] + [
            *self.strangers
        ]

    def stop(self, workers: Sequence[Worker]) -> None:
        """End these."""
        self._called("stop", [worker.name for worker in workers])
        self._stop([worker.name for worker in workers])

    def list(self) -> list[Worker]:
        """All that have been launched."""
        return [*self._workers.values()]

    def logs(self, worker: Worker) -> Iterator[str]:
        """Nothing: it prints nothing."""
        return iter(())

    def close(self) -> None:
        """End all."""
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


def _loop() -> asyncio.AbstractEventLoop:
    """The loop that everything runs on: simulated threads are on it, real ones beside it."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return background_loop()
