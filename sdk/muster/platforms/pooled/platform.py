"""A platform whose workers run inside the workers that a pool holds on another: each run has agents of its own there.

The pool's workers were launched once, waited for once, and stay. In each of them a guard
(:mod:`muster.agent.worker_guard`) forks the agents of one run after another, and keeps a template of what scripts
import.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.agent.fields import one_of, optional, text, whole
from muster.errors import LaunchRefused, MusterError, PlatformError
from muster.job import Resources, Status, Worker, WorkerSpec
from muster.platforms.agents import agent_config, default_log_cap
from muster.platforms.base import Platform, Reach, Relay
from muster.platforms.guard_answers import Check, checked, workers_of
from muster.platforms.parallel import for_all
from muster.platforms.placement import Key, Placement, key_of
from muster.platforms.pooled.guard_stream import MOST_SAID, GuardLost, GuardSilent, GuardStream

BACK_SECONDS = 60.0  # that a lost worker of the pool gets for coming back, once a run needs it
BACK_POLL = 0.2
STOP_SECONDS = 5.0
POLL_SECONDS = 2.0  # that a guard gets to tell of its agents: one that is silent is asked again
WARMTH: dict[str, Check] = {
    "state": one_of("none", "importing", "ready", "unsafe"),
    "why": optional(text(MOST_SAID)),
    "pid": optional(whole(0)),
    "memory": whole(0),
}
LAUNCH_SECONDS = 90.0  # in which an agent is forked: what its script needs is looked for before, for a minute at most
FORGOTTEN = "The guard that had started its agent is gone, and another is in its place."
STRANGER = "This platform does not know the worker."


class PooledPlatform(Platform):
    """The workers of a pool elsewhere, for one run after another.

    Args:
        inner: the platform that the pool's workers run on.
        run_dir: folder of the run that holds them.
        held: returns the pool's workers as they are now, in launch order; None once that run has ended.
    """

    poll_seconds = (0.2, 1.0)
    explain_seconds = 1.0
    keeps_templates = True

    def __init__(self, inner: Platform, run_dir: Path, held: Callable[[], Sequence[Worker] | None]) -> None:
        self.name = inner.name
        self.storage = inner.storage
        self.lease_seconds = inner.lease_seconds
        self.python = inner.python
        self.launches_there = inner.launches_there
        self._inner = inner
        self._run_dir = run_dir
        self._held = held
        self._guards: dict[str, GuardStream] = {}  # by the pool's worker
        self._pool_worker_of: dict[str, str] = {}  # the pool's worker that each worker of a run is in, by handle
        self._handle_of: dict[Key, str] = {}
        self._workers: dict[str, Worker] = {}
        self._placement = Placement({worker.name: 1 for worker in held() or ()}, self._status_of, _refusal)
        self._submitted: dict[str, list[str]] = {}

    # -- before a launch ----------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return which pool it is, and where that is."""
        return f"pool {self._run_dir.name} on {self._inner.describe()}"

    def check(self) -> None:
        """Raise PlatformError where the pool has ended."""
        if self._held() is None:
            raise PlatformError(
                f"The pool has ended, and its workers with it: see muster.open_run({self._run_dir.name!r}).explain().",
                advice="make another one: muster.pool(...)",
            )

    def check_sshd(self) -> None:
        """Raise PlatformUnsupported as the platform below does."""
        self._inner.check_sshd()

    def try_command(self, argv: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Run a short command where the platform below can."""
        return self._inner.try_command(argv)

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return nothing: each worker has what the pool's own was given."""
        return []

    def reach(self) -> Reach:
        """Return how the platform below reaches the session.

        Raises:
            PlatformUnsupported: its workers cannot dial the session.
        """
        return self._inner.reach_of_pool()

    def open_relay(self, host: str, port: int) -> Relay:
        """Make what carries the connections of agents, which are where the pool's own are."""
        return _RelayOfPool(self._inner.open_relay(host, port), self._run_dir.name, self._placement)

    def is_warming(self) -> bool:
        """Return whether a guard's template imports."""
        return any(state["state"] == "importing" for state in self.warmth().values())

    def warmth(self) -> dict[str, dict[str, Any]]:
        """State of the template of each guard, why it is so, and its process id; by the pool's worker."""

        def warmth(pool_worker: str) -> dict[str, Any]:
            return checked(self._guards[pool_worker].ask("warmth"), WARMTH, pool_worker)

        return for_all(warmth, list(self._guards))[0]

    # -- workers ------------------------------------------------------------------------------------------------------

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Have the guard of a free worker of the pool fork an agent for each spec, all or none."""
        if run_key in self._submitted:
            return self._submitted[run_key]
        self.check()
        with contextlib.suppress(PlatformError):  # some may have ended whose guard was silent before
            self.poll(list(self._workers))
        try:
            placed = dict(zip(self._placement.place(specs), specs, strict=True))
            return self._launch(placed, specs, run_key)
        except BaseException:
            self._placement.take_back(specs)
            raise

    def _launch(self, placed: Mapping[str, WorkerSpec], specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        configs = {pool_worker: self._config(spec, pool_worker) for pool_worker, spec in placed.items()}

        def launch(pool_worker: str) -> dict[str, Any]:
            return self._guard_of(pool_worker).ask(
                "launch", LAUNCH_SECONDS, run_key=run_key, workers=[configs[pool_worker]]
            )

        answers, failed = for_all(launch, list(placed))
        refused = {pool_worker: answer for pool_worker, answer in answers.items() if "refused" in answer}
        if failed or refused:
            for_all(
                lambda pool_worker: self._guards[pool_worker].ask("stop", ids=[configs[pool_worker]["id"]]),
                list(answers),
            )
        for pool_worker, error in failed.items():
            raise LaunchRefused(
                f"{placed[pool_worker].name} could not be started in {pool_worker} of the pool: {error.message}",
                worker=placed[pool_worker].name,
                advice=error.advice,
            ) from error
        for pool_worker, answer in refused.items():
            why = str(answer.get("why"))[:MOST_SAID]
            raise LaunchRefused(
                f"{placed[pool_worker].name} could not be started in {pool_worker} of the pool: {why}.",
                worker=placed[pool_worker].name,
                advice="another image or interpreter, or another pool",
            )
        for pool_worker, spec in placed.items():
            handle = configs[pool_worker]["id"]
            self._pool_worker_of[handle] = pool_worker
            self._handle_of[key_of(spec)] = handle
            now = time.time()
            self._workers[handle] = Worker(handle, spec.name, Status.STARTING, created_at=now, placed_at=now)
        by_name = {spec.name: configs[pool_worker]["id"] for pool_worker, spec in placed.items()}
        self._submitted[run_key] = [by_name[spec.name] for spec in specs]
        return self._submitted[run_key]

    def _status_of(self, key: Key) -> Status | None:
        handle = self._handle_of.get(key)
        return None if handle is None else self._workers[handle].status

    def _guard_of(self, pool_worker: str) -> GuardStream:
        """Return the guard in a worker of the pool, which is started where there is none. Waits for a lost worker."""
        deadline = time.monotonic() + BACK_SECONDS
        while True:
            known = self._guards.get(pool_worker)
            self._look_after(pool_worker)
            try:
                if known is not None and not known.is_lost:
                    known.ask("warmth", POLL_SECONDS)
                    return known
                worker = self._held_worker(pool_worker)
                if worker is not None and worker.status is Status.RUNNING:
                    self._guards[pool_worker] = GuardStream(self._run_dir, worker)
                    return self._guards[pool_worker]
            except GuardSilent:  # another is started in its place, and its agents end with it
                if known is not None:
                    known.give_up()
            except MusterError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline or self._held() is None:
                raise PlatformError(
                    f"{pool_worker} of the pool is lost, and has not been replaced.", worker=pool_worker
                )
            time.sleep(BACK_POLL)

    def _held_worker(self, pool_worker: str) -> Worker | None:
        """Return the pool's worker, as it is now; None where nothing is known of it for the moment."""
        return next((worker for worker in self._held() or () if worker.name == pool_worker), None)

    def _look_after(self, pool_worker: str) -> None:
        """Give up the guard of a worker of the pool that has ended, or whose place another has taken."""
        guard, worker = self._guards.get(pool_worker), self._held_worker(pool_worker)
        if guard is not None and worker is not None and (worker.status.is_final or worker.id != guard.handle):
            guard.give_up()

    def _config(self, spec: WorkerSpec, pool_worker: str) -> dict[str, Any]:
        """A worker as its agent needs it; its guard adds where it is."""
        generation = f".{spec.generation}" if spec.generation else ""
        return {
            **agent_config(spec, default_log_cap()),
            "id": f"{spec.run_id}.{spec.name}{generation}@{self._run_dir.name}:{pool_worker}",
            "identity": {},
            "address_variables": [],
            "may_move": False,
            "hidden": [],
        }

    def poll(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as their guards know them."""
        living = [handle for handle in handles if handle in self._workers and not self._workers[handle].status.is_final]
        by_pool_worker: dict[str, list[str]] = {}
        for handle in living:
            by_pool_worker.setdefault(self._pool_worker_of[handle], []).append(handle)

        def poll(pool_worker: str) -> dict[str, Worker]:
            self._look_after(pool_worker)
            answer = self._guards[pool_worker].ask("poll", POLL_SECONDS, ids=by_pool_worker[pool_worker])
            return workers_of(answer, by_pool_worker[pool_worker], pool_worker, 0.0)

        told, failed = for_all(poll, list(by_pool_worker))
        for workers in told.values():
            for handle, fresh in workers.items():
                self._workers[handle] = self._workers[handle].moved(fresh.status, **_changes(fresh))
        for pool_worker, workers in told.items():
            for handle in [handle for handle in by_pool_worker[pool_worker] if handle not in workers]:
                self._workers[handle] = self._lost(self._workers[handle], pool_worker, FORGOTTEN)
        for pool_worker, error in failed.items():
            for handle in by_pool_worker[pool_worker] if isinstance(error, GuardLost) else ():
                self._workers[handle] = self._lost(self._workers[handle], pool_worker, error.message)
        if failed and not told and not any(isinstance(error, GuardLost) for error in failed.values()):
            raise next(iter(failed.values()))
        return [self._workers.get(handle) or _stranger(handle) for handle in handles]

    def _lost(self, worker: Worker, pool_worker: str, why: str) -> Worker:
        """The worker, whose place in the pool is gone, with what the platform below says of that."""
        held, known = self._held_worker(pool_worker), {}
        if held is not None and held.status.is_final:
            why = held.reason or why
            known = {"cause": held.cause, "advice": held.advice, "exit_code": held.exit_code, "signal": held.signal}
        return worker.moved(Status.FAILED, reason=why, finished_at=time.time(), **known)

    def stop(self, handles: Sequence[str]) -> None:
        """Ask the agents to end: SIGTERM to their processes, and SIGKILL a second later."""
        by_pool_worker: dict[str, list[str]] = {}
        for handle in handles:
            if handle in self._workers and not self._workers[handle].status.is_final:
                by_pool_worker.setdefault(self._pool_worker_of[handle], []).append(handle)
        # One that is silent is not waited for: its agents end with it, or when the lease that they have has passed.
        for_all(
            lambda pool_worker: self._guards[pool_worker].ask("stop", STOP_SECONDS, ids=by_pool_worker[pool_worker]),
            list(by_pool_worker),
        )

    def reattach(self, handles: Sequence[str]) -> list[Worker]:
        """Return the workers as this object knows them: no other could have launched any."""
        return self.poll(handles)

    def list(self) -> list[Worker]:
        """All workers that runs on the pool have had, oldest first."""
        return sorted(self.poll(list(self._workers)), key=lambda worker: worker.created_at or 0.0)

    def logs(self, handle: str) -> Iterator[str]:
        """Return nothing: the session writes down what they print."""
        return iter(())

    def close(self) -> None:
        """End the guards, and with them the agents that they have forked. The pool's own workers stay."""
        for handle, worker in self._workers.items():
            self._workers[handle] = worker.moved(Status.STOPPED, finished_at=time.time())
        for_all(lambda pool_worker: self._guards[pool_worker].close(), list(self._guards))


class _RelayOfPool(Relay):
    """The relay of the platform below, which knows only the pool's own workers, those of the run ``run_id``."""

    def __init__(self, inner: Relay, run_id: str, placement: Placement) -> None:
        self._inner = inner
        self._run_id = run_id
        self._placement = placement

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return what the agents dial: what those of the pool's own workers would dial there."""
        placed = self._placement.place(specs)
        own = [
            replace(spec, run_id=self._run_id, name=pool_worker)
            for spec, pool_worker in zip(specs, placed, strict=True)
        ]
        try:
            return self._inner.addresses_for(own)
        except BaseException:
            self._placement.take_back(specs)
            raise

    def close(self) -> None:
        """Close the relay below."""
        self._inner.close()


def _refusal(worker: str) -> LaunchRefused:
    return LaunchRefused(
        f"No worker of the pool is free for {worker}.",
        worker=worker,
        advice="wait for the run that has them, or make a larger pool",
    )


def _changes(worker: Worker) -> Mapping[str, Any]:
    """Return all facts of a worker that may be new."""
    return {name: value for name, value in vars(worker).items() if name not in {"id", "name", "status", "created_at"}}


def _stranger(handle: str) -> Worker:
    return Worker(handle, handle, Status.FAILED, reason=STRANGER)
