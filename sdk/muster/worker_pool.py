"""Pools of workers: ``muster.pool``, several runs one after the other on the same part of this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from muster import platforms
from muster.agent import linux
from muster.api import ClusterAddress, run_cluster
from muster.checks.arguments import whole_number
from muster.errors import JobError, PlatformUnsupported, without_inner_frames
from muster.job import Resources
from muster.platforms.local import LocalPlatform
from muster.pools.kept import IDLE_SECONDS, KeptPlatform

OF_THE_POOL = {
    "cpu": "cpu", "memory": "memory", "nvidia_gpu": "nvidia_gpu", "platform": "platform", "log_cap": "log_cap",
    "reuse": "reuse",
}  # fmt: skip


@without_inner_frames
def pool(
    n_workers: int,
    *,
    cpu: float = 1,
    memory: float = 2,
    nvidia_gpu: int = 0,
    platform: str | None = None,
    idle_minutes: float | None = IDLE_SECONDS / 60,
) -> Pool:
    """Make a pool of workers on this machine, on which scripts run one after the other.

    The first run starts as ``run_cluster`` does. After it, a process imports what the script has imported, and the
    ranks of the next run are forks of that process.

    >>> import muster
    >>> with muster.pool(2, memory=0.5) as pool:
    ...     pool.run_cluster(strategy="processes", worker_script="calendar", dashboard=False).cluster.result.status
    'succeeded'

    Args:
        n_workers: workers that a run may have at most, parameter servers included.
        cpu, memory, nvidia_gpu: what each worker is given: cores, GB, devices. Between two runs they are free.
        platform: ``local``, or None for it: other platforms have no pools.
        idle_minutes: how long the pool keeps anything in memory without a run. The next run is then as the first.
            None: until it is closed.

    Raises:
        JobError: the numbers make no sense.
        ResourceError: this machine could never grant what the workers are to have.
        PlatformUnsupported: there are no pools on that platform.
    """
    if platforms.platform_name(platform) != "local":
        raise PlatformUnsupported(
            f"There are no pools on the platform {platforms.platform_name(platform)}: they are on this machine only.",
            advice='platform="local" for a pool on this machine, or run_cluster, which launches its workers',
        )
    return Pool(n_workers, Resources(cpu, memory, nvidia_gpu), idle_minutes)


class Pool:
    """Workers of this machine for one run after another; see :func:`muster.pool`.

    Each run has processes, ports, files and an environment of its own, which end with it. The pool ends with ``close``,
    with its ``with`` block, or with this session, however that ends.

    Attributes:
        n_workers: workers that a run may have at most.
        resources: what each of them is given.
    """

    def __init__(self, n_workers: int, resources: Resources, idle_minutes: float | None) -> None:
        if whole_number("n_workers", n_workers) < 1:
            raise JobError(f"n_workers is {n_workers}; a pool has at least 1 worker.")
        if idle_minutes is not None and not 0 < idle_minutes < float("inf"):
            raise JobError(f"idle_minutes is {idle_minutes!r}; it must be a number greater than 0, or None.")
        resources.check()
        LocalPlatform().check()
        LocalPlatform().shortages([resources] * n_workers)
        self.n_workers = n_workers
        self.resources = resources
        self._kept = KeptPlatform(None if idle_minutes is None else idle_minutes * 60)
        self._is_closed = False
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
            n_workers: workers that train; None for all that are not parameter servers.
            n_ps: parameter servers.
            worker_script: a file, a module's name, or a function.
            warm: whether ranks may be forks of a process that has imported what they import.
            options: further arguments of ``run_cluster``, but for those that the pool has been given.

        Raises:
            JobError: the pool is closed, or has not as many workers.
            PlatformError, StartTimeout, RunFailed: as ``run_cluster``.
        """
        if self._is_closed:
            raise JobError("This pool is closed.", advice="muster.pool(...) makes another one")
        self._refuse(options, n_ps)
        wanted = self.n_workers - n_ps if n_workers is None else whole_number("n_workers", n_workers)
        if wanted + n_ps > self.n_workers:
            raise JobError(
                f"The pool has {self.n_workers} workers, fewer than {wanted} that train and {n_ps} parameter servers.",
                advice=f"n_workers={max(1, self.n_workers - n_ps)}, or a larger pool",
            )
        if self._last is not None and self._last.cluster.is_running:
            raise JobError(
                f"The workers of the pool are taken by run {self._last.cluster.run_id}.",
                advice="wait for it (cluster.wait()), stop it (cluster.stop()), or make another pool",
            )
        has = self.resources
        self._last = run_cluster(
            wanted, n_ps, has.cpu, has.memory, has.gpu, worker_script, reuse=self._kept, warm=warm, **options
        )
        return self._last

    @property
    def memory(self) -> int:
        """Bytes that the pool holds between runs: its template's, shared pages in proportion. 0 where there is none."""
        pid = int(str(self._kept.warmth["pid"]))
        return (linux.proportional_memory(pid) or linux.resident_memory(pid)) if pid else 0

    def close(self) -> None:
        """End the run that is under way, and everything else of the pool."""
        self._is_closed = True
        if self._last is not None:
            self._last.cluster.stop()
        self._kept.close()

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
        return f"<Pool of {self.n_workers} workers on this machine, {each} each: {self._state()}>"

    def _state(self) -> str:
        """Return, in words, what it is at."""
        if self._is_closed:
            return "closed"
        if self._last is not None and self._last.cluster.is_running:
            return f"running {self._last.cluster.run_id}"
        warmth = self._kept.warmth
        said = {"none": "cold", "importing": "importing for the next run", "ready": "warm", "unsafe": "cold"}
        state = said.get(str(warmth["state"]), "cold")
        return f"{state}, as {warmth['why']}" if state == "cold" and warmth["why"] else state

    @staticmethod
    def _refuse(options: Mapping[str, Any], n_ps: int) -> None:
        if whole_number("n_ps", n_ps) < 0:
            raise JobError(f"n_ps is {n_ps}; it must not be negative.")
        for name in options:
            if name in OF_THE_POOL:
                raise JobError(f"The workers of a pool have {name} already.", advice=f"muster.pool(..., {name}=...)")
        if options.get("detach") is not None:
            raise JobError(
                "A run on a pool cannot be detached: the pool ends with this session.",
                advice="muster.run_cluster(..., detach=...), whose workers are its own",
            )
