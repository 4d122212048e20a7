"""A platform whose workers run inside the workers that a pool holds on another platform.

The pool's workers are launched and waited for once, and stay. In each of them a guard
(:mod:`muster.agent.worker_guard`) forks the agents of one run after another, and keeps a template with the imports of
scripts.
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
from muster.platforms.base import Platform, Reach, Relay, oldest_first, unknown_worker
from muster.platforms.guard_answers import Check, checked, workers_of
from muster.platforms.parallel import for_all
from muster.platforms.placement import Key, Placement, key_of
from muster.platforms.pooled.guard_stream import MOST_SAID, GuardLost, GuardSilent, GuardStream

BACK_SECONDS = 60.0  # time that a run waits for the return of a lost worker of the pool
BACK_POLL = 0.2
STOP_SECONDS = 5.0
POLL_SECONDS = 2.0  # time that a poll waits for a guard: the next poll asks it again
WARMTH: dict[str, Check] = {
    "state": one_of("none", "importing", "ready", "unsafe"),
    "why": optional(text(MOST_SAID)),
    "pid": optional(whole(0)),
    "memory": whole(0),
}
LAUNCH_SECONDS = 90.0  # to fork an agent: looking for its script's requirements before takes up to a minute
FORGOTTEN = "The guard that had started its agent is gone, and another is in its place."


class PooledPlatform(Platform):
    """The workers of a pool on another platform, for one run after another.

    Args:
        inner: the platform that the pool's workers run on.
        run_dir: folder of the run that holds them.
        held: returns the current states of the pool's workers, in launch order; None once that run has ended.
    """

    poll_seconds = (0.2, 1.0)
    explain_seconds = 1.0
    keeps_templates = True

    def __init__(self, inner: Platform, run_dir: Path, held: Callable[[], Sequence[Worker] | None]) -> None:
        self.name = inner.name
        self.storage = inner.storage
        self.lease_seconds = inner.lease_seconds
        self.machines_fail_alone = inner.machines_fail_alone
        self.python = inner.python
        self.launches_there = inner.launches_there
        self._inner = inner
        self._run_dir = run_dir
        self._held = held
        self._guards: dict[str, GuardStream] = {}  # by the pool's worker
        self._pool_worker_of: dict[str, str] = {}  # name of the pool's worker, by the handle of a run's worker in it
        self._handle_of: dict[Key, str] = {}
        self._workers: dict[str, Worker] = {}
        slots = {worker.name: 1 for worker in held() or ()}
        self._placement = Placement(slots, self._status_of, _refusal, self._is_up)
        self._submitted: dict[str, list[str]] = {}

    # -- before a launch ----------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """Return, in words, the pool and its platform."""
        return f"pool {self._run_dir.name} on {self._inner.describe()}"

    def check(self) -> None:
        """Raise PlatformError where the pool has ended."""
        if self._held() is None:
            raise PlatformError(
                f"The pool has ended, and its workers with it: see muster.open_run({self._run_dir.name!r}).explain().",
                advice="make another one: muster.pool(...)",
            )

    def check_sshd(self) -> None:
        """Raise PlatformUnsupported where the pool's platform does."""
        self._inner.check_sshd()

    def try_command(self, argv: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Run a short command as the pool's platform does."""
        return self._inner.try_command(argv)

    def shortages(self, wanted: Sequence[Resources]) -> list[str]:
        """Return nothing: each worker has the resources of the pool's worker that it runs in."""
        return []

    def reach(self) -> Reach:
        """Return how agents in the pool's workers reach the session.

        Raises:
            PlatformUnsupported: they cannot dial the session.
        """
        return self._inner.reach_of_pool()

    def open_relay(self, host: str, port: int) -> Relay:
        """Return a relay of the agents' connections by the routes of the pool's own agents."""
        return _RelayOfPool(self._inner.open_relay(host, port), self._run_dir.name, self._placement)

    def is_warming(self) -> bool:
        """Return whether the template of some guard is still importing."""
        return any(state["state"] == "importing" for state in self.warmth().values())

    def warmth(self) -> dict[str, dict[str, Any]]:
        """Return the state of each guard's template, the reason for it, and its process id, by pool worker."""

        def warmth(pool_worker: str) -> dict[str, Any]:
            return checked(self._guards[pool_worker].ask("warmth"), WARMTH, pool_worker)

        return for_all(warmth, list(self._guards))[0]

    # -- workers ------------------------------------------------------------------------------------------------------

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Have the guards of free workers of the pool fork an agent per spec, all or none."""
        if run_key in self._submitted:
            return self._submitted[run_key]
        self.check()
        with contextlib.suppress(PlatformError):  # workers may have ended whose guard did not answer before
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
        """Return the guard in a worker of the pool, after starting it if needed. Waits for a lost worker to return."""
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
                    if known is not None:
                        known.close()
                    self._guards[pool_worker] = GuardStream(self._run_dir, worker)
                    return self._guards[pool_worker]
            except GuardSilent:  # its agents end with it, and another guard is started
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

    def _is_up(self, pool_worker: str) -> bool:
        worker = self._held_worker(pool_worker)
        return worker is not None and worker.status is Status.RUNNING

    def _held_worker(self, pool_worker: str) -> Worker | None:
        """Return the current state of the pool's worker; None where that is not known at the moment."""
        return next((worker for worker in self._held() or () if worker.name == pool_worker), None)

    def _look_after(self, pool_worker: str) -> None:
        """Give up the guard of a worker of the pool that has ended or has been replaced."""
        guard, worker = self._guards.get(pool_worker), self._held_worker(pool_worker)
        if guard is not None and worker is not None and (worker.status.is_final or worker.id != guard.handle):
            guard.give_up()

    def _config(self, spec: WorkerSpec, pool_worker: str) -> dict[str, Any]:
        """Return the config of a worker's agent, to which the guard adds addresses and folders."""
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
        """Return the workers as their guards report them."""
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
                self._workers[handle] = self._workers[handle].updated(fresh)
        for pool_worker, workers in told.items():
            for handle in [handle for handle in by_pool_worker[pool_worker] if handle not in workers]:
                self._workers[handle] = self._lost(self._workers[handle], pool_worker, FORGOTTEN)
        for pool_worker, error in failed.items():
            for handle in by_pool_worker[pool_worker] if isinstance(error, GuardLost) else ():
                self._workers[handle] = self._lost(self._workers[handle], pool_worker, error.message)
        if failed and not told and not any(isinstance(error, GuardLost) for error in failed.values()):
            raise next(iter(failed.values()))
        return [self._workers.get(handle) or unknown_worker(handle) for handle in handles]

    def _lost(self, worker: Worker, pool_worker: str, why: str) -> Worker:
        """Return a worker whose pool worker is gone as failed, for the reason that the pool's platform gives."""
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
        # A silent guard is not waited for: its agents end with it, or once their lease has passed.
        for_all(
            lambda pool_worker: self._guards[pool_worker].ask("stop", STOP_SECONDS, ids=by_pool_worker[pool_worker]),
            list(by_pool_worker),
        )

    def list(self) -> list[Worker]:
        """Return the workers of all runs on the pool, oldest first."""
        return oldest_first(self.poll(list(self._workers)))

    def logs(self, handle: str) -> Iterator[str]:
        """Return nothing: the session writes the workers' logs."""
        return iter(())

    def close(self) -> None:
        """End the guards, and with them the agents that they have forked. The pool's workers stay."""
        for handle, worker in self._workers.items():
            self._workers[handle] = worker.moved(Status.STOPPED, finished_at=time.time())
        for_all(lambda pool_worker: self._guards[pool_worker].close(), list(self._guards))


class _RelayOfPool(Relay):
    """A relay through that of the pool's platform, which knows only the pool's workers, those of the run ``run_id``."""

    def __init__(self, inner: Relay, run_id: str, placement: Placement) -> None:
        self._inner = inner
        self._run_id = run_id
        self._placement = placement

    def addresses_for(self, specs: Sequence[WorkerSpec]) -> list[tuple[str, int]]:
        """Return the addresses that the agents dial: those for the pool workers that they run in."""
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
        """Close the inner relay."""
        self._inner.close()


def _refusal(worker: str) -> LaunchRefused:
    return LaunchRefused(
        f"No worker of the pool is free for {worker}.",
        worker=worker,
        advice="wait for the run that has them, or make a larger pool",
    )
