"""Pools of workers: ``muster.pool``, for several runs one after the other on the same workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from muster import platforms
from muster.api import run_cluster
from muster.checks.arguments import plain_bool
from muster.checks.names import refuse_script_as_number, with_names_checked
from muster.errors import JobError, without_inner_frames
from muster.job import Resources
from muster.options.values import LONGEST_SPAN, plain_number, whole_number
from muster.platforms.base import Platform
from muster.platforms.kept import IDLE_SECONDS
from muster.platforms.local import LocalPlatform
from muster.run.address import ClusterAddress
from muster.run.cluster import running_clusters
from muster.run.misnamed import refuse_misnamed_of_pool
from muster.worker_pool.location import PoolElsewhere, PoolHere, PoolLocation

OF_THE_POOL = {
    "cpu", "memory", "nvidia_gpu", "ps_cpu", "ps_memory", "ps_nvidia_gpu", "platform", "log_cap", "reuse",
}  # fmt: skip


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
        return Pool(n_workers, resources, PoolHere(idle))
    limits = {
        "timeout_seconds": timeout_seconds, "queue_timeout": queue_timeout, "session_address": session_address,
    }  # fmt: skip
    location = PoolElsewhere(made, n_workers, resources, limits, idle)
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

    def __init__(self, n_workers: int, resources: Resources, location: PoolLocation) -> None:
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
