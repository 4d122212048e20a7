"""The part of a pool that stays between its runs, on this machine (PoolHere) or on another platform (PoolElsewhere)."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from muster.agent import linux
from muster.dashboard import choose as choose_dashboard
from muster.errors import JobError, PlatformError
from muster.job import Resources, Status, Worker
from muster.platforms.base import Platform
from muster.platforms.kept import KeptPlatform
from muster.platforms.pooled.platform import BACK_POLL, BACK_SECONDS, PooledPlatform
from muster.run.cluster import Cluster
from muster.run.request import RunRequest
from muster.runtime import interrupts
from muster.runtime.background import on_background_thread
from muster.strategies.hold import Hold
from muster.text.names import join_names

REPLACEMENTS = 1000  # greatest number of lost workers that a pool replaces


class PoolLocation(ABC):
    """The part of a pool that stays between runs.

    Attributes:
        where: where the workers run, in words.
        arguments: arguments of ``run_cluster`` for the pool's runs.
    """

    where: str
    arguments: Mapping[str, Any]

    @property
    @abstractmethod
    def why_closed(self) -> str | None:
        """Reason why the pool is closed, in words to follow "closed"; None as long as it is open."""

    @property
    @abstractmethod
    def warmth(self) -> Mapping[str, object]:
        """State of the templates, and the reason for it."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """Bytes of memory that the templates hold between runs."""

    @abstractmethod
    def has(self, cluster: Cluster) -> bool:
        """Return whether a cluster runs on this pool."""

    def begin(self, n_workers: int) -> None:  # noqa: B027  nothing to do where something else counts its runs
        """Note that a run on so many workers begins, and wait a while for lost ones to be replaced.

        Raises:
            JobError: the pool is closed meanwhile.
            PlatformError: too few workers are there in the end.
        """

    def end(self) -> None:  # noqa: B027  as above
        """Note that a run has ended. Called on any thread; does not wait."""

    @abstractmethod
    def close(self, why: str) -> None:
        """End all workers of the pool; ``why`` is in words to follow "closed"."""


class PoolHere(PoolLocation):
    """A pool on this machine: it keeps a template but no workers, which start in hundredths of a second."""

    where = "on this machine"

    def __init__(self, idle_seconds: float | None) -> None:
        self._kept = KeptPlatform(idle_seconds)
        self._is_closed = False
        self.arguments = {"reuse": self._kept}

    @property
    def why_closed(self) -> str | None:
        """Empty once the pool is closed."""
        return "" if self._is_closed else None

    @property
    def warmth(self) -> Mapping[str, object]:
        """State of the template."""
        return self._kept.warmth

    @property
    def memory(self) -> int:
        """Bytes of memory that the template holds."""
        pid = int(str(self._kept.warmth["pid"]))
        return (linux.proportional_memory(pid) or linux.resident_memory(pid)) if pid else 0

    def has(self, cluster: Cluster) -> bool:
        """Return whether the cluster's platform is lent by this pool."""
        return self._kept.lends(cluster.platform)

    def close(self, why: str) -> None:
        """End the template."""
        self._is_closed = True
        self._kept.close()


class PoolElsewhere(PoolLocation):
    """A pool on another platform: a run of the ``Hold`` strategy holds the workers.

    Args:
        platform: where the workers run. It is closed with the pool.
        n_workers, resources: number of workers, and resources of each.
        limits: arguments of the run that holds the workers.
        idle_seconds: seconds without a run after which the pool is closed; None for never.
    """

    def __init__(
        self, platform: Platform, n_workers: int, resources: Resources, limits: Mapping[str, Any],
        idle_seconds: float | None,
    ) -> None:  # fmt: skip
        self._platform = platform
        self._idle_seconds = idle_seconds
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()
        self._runs = 0
        self._why_closed: str | None = None
        self._is_released = False
        self._releasing = threading.RLock()  # a signal handler may close the pool while it is being closed
        self._pid = os.getpid()
        self._pooled: PooledPlatform | None = None
        self._cluster = Cluster.of(
            RunRequest(
                n_workers=n_workers,
                resources=resources,
                name="pool",
                strategy=Hold(),
                platform=platform,
                project=[],
                restarts=REPLACEMENTS,
                from_scratch=True,
                **limits,
            )
        )
        self.where = f"on {platform.name}"

    def start(self, dashboard: bool) -> None:
        """Launch the workers, and wait for them. Raise the errors of ``pool``."""
        self._platform.check()
        self._platform.reach_of_pool()
        self._cluster.check().shortages()
        shown = choose_dashboard(cluster=self._cluster) if dashboard else None
        forget = self._cluster.subscribe(shown, at_once=True) if shown else None
        try:
            with interrupts.held(self._cluster.interrupt, self._cluster.what_became):
                self._cluster.start()
        finally:
            if shown and forget:
                forget()
                shown.close()
        self._pooled = PooledPlatform(self._platform, self._cluster.run_dir, self._workers)
        self.where = f"on {self._platform.describe()}"
        self.arguments = {"platform": self._pooled}
        self._start_timer()

    def _workers(self) -> Sequence[Worker] | None:
        return self._cluster.workers if self._cluster.is_running else None

    @property
    def why_closed(self) -> str | None:
        """Also that its workers have ended, or that this is a forked process."""
        if self._pid != os.getpid():
            return ", as it belongs to the process that this one was forked from"
        if self._why_closed is None and not self._cluster.is_running:
            return f", as its workers have ended: muster.open_run({self._cluster.run_id!r}).explain() says why"
        return self._why_closed

    @property
    def warmth(self) -> Mapping[str, object]:
        """State of the worker that is furthest from warm."""
        states = self._states()
        for state in ("importing", "none", "unsafe", "ready"):
            for known in states:
                if known["state"] == state:
                    return known
        return {"state": "none", "why": ""}

    @property
    def memory(self) -> int:
        """Bytes of memory that the templates of all workers hold."""
        return sum(int(state["memory"]) for state in self._states())

    def _states(self) -> Sequence[Mapping[str, Any]]:
        is_there = self._pooled is not None and self.why_closed is None
        return [*self._pooled.warmth().values()] if is_there and self._pooled is not None else []

    def has(self, cluster: Cluster) -> bool:
        """Return whether the cluster's workers are this pool's."""
        return self._pooled is not None and cluster.platform is self._pooled

    def begin(self, n_workers: int) -> None:
        """Count the run, so that the pool does not close meanwhile, and wait a while for lost workers."""
        with self._lock:
            self._stop_timer()
            self._runs += 1
        try:
            self._await_workers(n_workers)
        except BaseException:
            self.end()
            raise

    def _await_workers(self, n_workers: int) -> None:
        """Wait a while for workers that are being replaced. Raise as ``begin`` does."""
        deadline = time.monotonic() + BACK_SECONDS
        while self.why_closed is None:  # on this thread, so that Ctrl-C ends it
            workers = self._workers() or ()
            lost = [worker.name for worker in workers if worker.status is not Status.RUNNING]
            if workers and not lost:
                return
            if time.monotonic() > deadline:
                if len(workers) - len(lost) < n_workers:
                    raise _not_replaced(lost)
                return
            time.sleep(BACK_POLL)
        raise JobError(f"This pool is closed{self.why_closed}.", advice="muster.pool(...) makes another one")

    def end(self) -> None:
        """Note that a run has ended; after the last the pool closes when it was not used for a while."""
        with self._lock:
            self._runs -= 1
        self._start_timer()

    def _start_timer(self) -> None:
        """Start the timer that closes the pool ``idle_seconds`` after its last run, unless another run begins."""
        with self._lock:
            if self._runs or self._idle_seconds is None or self._why_closed is not None:
                return
            self._stop_timer()
            self._timer = threading.Timer(self._idle_seconds, self._close_unless_used)
            self._timer.daemon = True
            self._timer.start()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_unless_used(self) -> None:
        with self._lock:
            if self._runs or self._why_closed is not None or self._idle_seconds is None:
                return
            self._why_closed = f", as it was not used for {self._idle_seconds / 60:g} minutes"
        self._release()

    def close(self, why: str) -> None:
        """End all workers, once; ``why`` is in words to follow "closed"."""
        if self._pid != os.getpid():  # a forked child's copy
            return
        with self._lock:
            self._stop_timer()
            if self._why_closed is None:
                self._why_closed = why
        self._release()

    def _release(self) -> None:
        """End the workers and close the platform, unless that is done: an interrupt may have broken it off."""
        if not self._releasing.acquire(blocking=not on_background_thread()):
            return  # another thread does it, and waits for the background thread
        try:
            if not self._is_released:
                self._close_everything()
                self._is_released = True
        finally:
            self._releasing.release()

    def _close_everything(self) -> None:
        try:
            if self._pooled is not None:
                self._pooled.close()
        finally:
            try:
                self._cluster.stop()
            finally:
                self._platform.close()


def _not_replaced(lost: Sequence[str]) -> PlatformError:
    is_one = len(lost) == 1
    return PlatformError(
        f"{join_names(lost) if lost else 'All workers'} of the pool {'is' if is_one else 'are'} lost, and "
        f"{'has' if is_one else 'have'} not been replaced within {BACK_SECONDS:g} s.",
        worker=lost[0] if is_one else None,
        advice="try again later, have a run on fewer workers (n_workers=...), or make another pool",
    )
