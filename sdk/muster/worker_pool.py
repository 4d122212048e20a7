"""Pools of workers: ``muster.pool``, for several runs one after the other on the same workers."""

from __future__ import annotations

import inspect
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from muster import platforms
from muster.agent import linux
from muster.api import ClusterAddress, run_cluster
from muster.checks.arguments import plain_bool
from muster.checks.names import refuse_script_as_number, with_names_checked
from muster.dashboard import choose as choose_dashboard
from muster.errors import JobError, PlatformError, without_inner_frames
from muster.job import Resources, Status, Worker
from muster.options.values import LONGEST_SPAN, plain_number, whole_number
from muster.platforms.base import Platform
from muster.platforms.kept import IDLE_SECONDS, KeptPlatform
from muster.platforms.local import LocalPlatform
from muster.platforms.pooled.platform import BACK_POLL, BACK_SECONDS, PooledPlatform
from muster.run.cluster import Cluster, running_clusters
from muster.run.misnamed import refuse_misnamed_of_pool
from muster.run.request import RunRequest
from muster.runtime import interrupts
from muster.runtime.background import on_background_thread
from muster.strategies.hold import Hold
from muster.text.names import join_names

OF_THE_POOL = {
    "cpu", "memory", "nvidia_gpu", "ps_cpu", "ps_memory", "ps_nvidia_gpu", "platform", "log_cap", "reuse",
}  # fmt: skip
REPLACEMENTS = 1000  # greatest number of lost workers that a pool replaces


def _refuse_misnamed(given: Mapping[str, Any], own: Sequence[str]) -> None:
    refuse_misnamed_of_pool(given, own, of_runs=[*inspect.signature(run_cluster).parameters][:-1])


@without_inner_frames
@with_names_checked(_refuse_misnamed)
def pool(
    n_workers: int,
    *,
    cpu: float = 1,
    memory: float = 2,
    nvidia_gpu: int = 0,
    platform: str | Platform | None = None,
    idle_minutes: float | None = IDLE_SECONDS / 60,
    timeout_seconds: float | None = 60,
    queue_timeout: float | None = None,
    session_address: str | None = None,
    dashboard: bool = True,
    **options: Any,
) -> Pool:
    """Make a pool of workers, on which scripts run one after the other.

    The first run starts as ``run_cluster`` does. After it, a process on each worker imports what the script has
    imported, and the ranks of the next run are forks of that process. On another platform than this machine the workers
    themselves stay as well: only this call waits for them.

    >>> import muster
    >>> with muster.pool(2, memory=0.5) as pool:
    ...     pool.run_cluster(strategy="processes", worker_script="calendar", dashboard=False).cluster.result.status
    'succeeded'

    Args:
        n_workers: workers that a run may have at most, parameter servers included.
        cpu, memory, nvidia_gpu: resources of each worker: cores, GB, devices. On this machine they are free between
            two runs; elsewhere the pool holds them until it is closed.
        platform: where the workers run, as for ``run_cluster``. Its options are keyword arguments, too.
        idle_minutes: minutes without a run after which the pool gives up what it keeps: on this machine the process
            with the imports, so that the next run starts like the first; elsewhere the workers, which closes the pool.
            None: it keeps everything until it is closed.
        timeout_seconds: how long the workers may take to start, from when the platform has a place for them.
        queue_timeout: how long they may wait for that place, in seconds. None: no limit.
        session_address: ``host:port`` that workers reach this session at; None for the address that the platform says.
        dashboard: whether to show the workers until they have started.

    Raises:
        JobError: a number is invalid, or the platform has no such option.
        ResourceError: the platform could never grant the workers' resources.
        PlatformUnsupported: the platform can have no pools, as only the first agents of its workers reach this session.
        PlatformError, StartTimeout: the workers could not be started. Nothing is left of them.
    """
    plain_bool("dashboard", dashboard)
    if whole_number("n_workers", n_workers) < 1:
        raise JobError(f"n_workers is {n_workers}; a pool has at least 1 worker.")
    if idle_minutes is not None and not 0 < plain_number("idle_minutes", idle_minutes) <= LONGEST_SPAN / 60:
        raise JobError(f"idle_minutes is {idle_minutes!r}; it must be greater than 0, and ten years at most; or None.")
    resources = Resources(cpu, memory, nvidia_gpu)
    resources.check()
    idle = None if idle_minutes is None else idle_minutes * 60
    made = platforms.get_platform(platform, **options)
    if isinstance(made, LocalPlatform) and made.name == "local" and not isinstance(platform, Platform):
        made.check()
        made.shortages([resources] * n_workers)
        return Pool(n_workers, resources, _Here(idle))
    limits = {
        "timeout_seconds": timeout_seconds, "queue_timeout": queue_timeout, "session_address": session_address,
    }  # fmt: skip
    location = _Elsewhere(made, n_workers, resources, limits, idle)
    try:
        location.start(dashboard)
        return Pool(n_workers, resources, location)
    except BaseException:
        location.close("")
        raise


class Pool:
    """Workers for one run after another; see :func:`muster.pool`.

    Each run has its own processes, ports, files and environment, which end with it. The pool ends with ``close``, with
    its ``with`` block, or with this session, however that ends.

    Attributes:
        n_workers: workers that a run may have at most.
        resources: resources of each worker.
    """

    def __init__(self, n_workers: int, resources: Resources, location: _Location) -> None:
        self.n_workers = n_workers
        self.resources = resources
        self._location = location
        self._last: ClusterAddress | None = None

    @without_inner_frames
    def run_cluster(
        self,
        n_workers: int | None = None,
        n_ps: int = 0,
        worker_script: str | Path | Callable[..., Any] | None = None,
        *,
        warm: bool = True,
        **options: Any,
    ) -> ClusterAddress:
        """Run a script on workers of the pool, as :func:`muster.run_cluster` does.

        Args:
            n_workers: number of workers that train; None for all that are not parameter servers.
            n_ps: number of parameter servers.
            worker_script: a file, a module's name, or a function.
            warm: whether ranks may be forks of a process that has already made the script's imports.
            options: further arguments of ``run_cluster``, except for those that the pool determines.

        Raises:
            JobError: the pool is closed, or has too few workers.
            PlatformError, StartTimeout, RunFailed: as ``run_cluster``.
        """
        if self._location.why_closed is not None:
            raise JobError(
                f"This pool is closed{self._location.why_closed}.", advice="muster.pool(...) makes another one"
            )
        refuse_script_as_number({"n_workers": n_workers, "n_ps": n_ps})
        self._refuse(options, n_ps)
        wanted = max(1, self.n_workers - n_ps) if n_workers is None else whole_number("n_workers", n_workers)
        if wanted + n_ps > self.n_workers:
            raise JobError(
                f"The pool has {_workers(self.n_workers)}, fewer than {wanted} that train and {n_ps} parameter "
                f"server{'s' if n_ps != 1 else ''}.",
                advice=f"n_workers={max(1, self.n_workers - n_ps)}, or a larger pool",
            )
        if self._last is not None and self._last.cluster.is_running:
            raise JobError(
                f"The workers of the pool are taken by run {self._last.cluster.run_id}.",
                advice="wait for it (run.wait()), stop it (run.stop()), or make another pool",
            )
        has = self.resources
        self._location.begin(wanted + n_ps)
        address: ClusterAddress | None = None
        try:
            address = run_cluster(
                wanted,
                n_ps,
                has.cpu,
                has.memory,
                has.gpu,
                worker_script,
                warm=warm,
                **self._location.arguments,
                **options,
            )
            self._last = address
        finally:
            if address is None:  # it has failed, and ended
                self._location.end()
            else:
                address.cluster.when_over(self._location.end)
        return address

    @property
    def memory(self) -> int:
        """Bytes of memory that the pool's templates hold between runs, shared pages in proportion; 0 without any."""
        return self._location.memory

    def close(self) -> None:
        """End the run that is under way, and the pool."""
        try:
            for cluster in running_clusters():
                if self._location.has(cluster):
                    cluster.stop()
        finally:
            self._location.close("")

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        has = self.resources
        each = f"{has.cpu:g} core{'s' if has.cpu != 1 else ''}, {has.memory:g} GB"
        each += f", {has.gpu} GPU{'s' if has.gpu != 1 else ''}" if has.gpu else ""
        return f"<Pool of {_workers(self.n_workers)} {self._location.where}, {each} each: {self._state()}>"

    def _state(self) -> str:
        """Return the pool's state, in words."""
        if self._location.why_closed is not None:
            return f"closed{self._location.why_closed}"
        running = [cluster for cluster in running_clusters() if self._location.has(cluster)]
        if running:
            return f"running {running[0].run_id}"
        warmth = self._location.warmth
        said = {"none": "cold", "importing": "importing for the next run", "ready": "warm", "unsafe": "cold"}
        state = said.get(str(warmth["state"]), "cold")
        return f"{state}, as {warmth['why']}" if state == "cold" and warmth["why"] else state

    @staticmethod
    def _refuse(options: Mapping[str, Any], n_ps: int) -> None:
        if whole_number("n_ps", n_ps) < 0:
            raise JobError(f"n_ps is {n_ps}; it must not be negative.")
        for name in options:
            if name in OF_THE_POOL:
                raise JobError(
                    f"The workers of a pool have {name.removeprefix('ps_')} already.",
                    advice=f"muster.pool(..., {name.removeprefix('ps_')}=...)",
                )
        if options.get("detach") is not None:
            raise JobError(
                "A run on a pool cannot be detached: the pool ends with this session.",
                advice="muster.run_cluster(..., detach=...), whose workers are its own",
            )


def _workers(number: int) -> str:
    return f"{number} worker{'s' if number != 1 else ''}"


def _not_replaced(lost: Sequence[str]) -> PlatformError:
    is_one = len(lost) == 1
    return PlatformError(
        f"{join_names(lost) if lost else 'All workers'} of the pool {'is' if is_one else 'are'} lost, and "
        f"{'has' if is_one else 'have'} not been replaced within {BACK_SECONDS:g} s.",
        worker=lost[0] if is_one else None,
        advice="try again later, have a run on fewer workers (n_workers=...), or make another pool",
    )


class _Location(ABC):
    """The part of a pool that stays between runs.

    Attributes:
        where: where the workers run, in words.
        why_closed: why the pool is closed, in words to follow "closed"; None as long as it is open.
        arguments: arguments of ``run_cluster`` for the pool's runs.
    """

    where: str
    arguments: Mapping[str, Any]

    @property
    @abstractmethod
    def why_closed(self) -> str | None: ...

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


class _Here(_Location):
    """A pool on this machine: it keeps a template but no workers, which start in hundredths of a second."""

    where = "on this machine"

    def __init__(self, idle_seconds: float | None) -> None:
        self._kept = KeptPlatform(idle_seconds)
        self._is_closed = False
        self.arguments = {"reuse": self._kept}

    @property
    def why_closed(self) -> str | None:
        return "" if self._is_closed else None

    @property
    def warmth(self) -> Mapping[str, object]:
        return self._kept.warmth

    @property
    def memory(self) -> int:
        pid = int(str(self._kept.warmth["pid"]))
        return (linux.proportional_memory(pid) or linux.resident_memory(pid)) if pid else 0

    def has(self, cluster: Cluster) -> bool:
        return self._kept.lends(cluster.platform)

    def close(self, why: str) -> None:
        self._is_closed = True
        self._kept.close()


class _Elsewhere(_Location):
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
            with interrupts.held(self._cluster.interrupt, self._cluster.log_dir):
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
        return self._cluster.status if self._cluster.is_running else None

    @property
    def why_closed(self) -> str | None:
        if self._pid != os.getpid():
            return ", as it belongs to the process that this one was forked from"
        if self._why_closed is None and not self._cluster.is_running:
            return f", as its workers have ended: muster.open_run({self._cluster.run_id!r}).explain() says why"
        return self._why_closed

    @property
    def warmth(self) -> Mapping[str, object]:
        states = self._states()
        for state in ("importing", "none", "unsafe", "ready"):
            for known in states:
                if known["state"] == state:
                    return known
        return {"state": "none", "why": ""}

    @property
    def memory(self) -> int:
        return sum(int(state["memory"]) for state in self._states())

    def _states(self) -> Sequence[Mapping[str, Any]]:
        is_there = self._pooled is not None and self.why_closed is None
        return [*self._pooled.warmth().values()] if is_there and self._pooled is not None else []

    def has(self, cluster: Cluster) -> bool:
        return self._pooled is not None and cluster.platform is self._pooled

    def begin(self, n_workers: int) -> None:
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
