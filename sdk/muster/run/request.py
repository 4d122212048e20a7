"""A run as the user asks for it (RunRequest)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from muster import platforms, strategies
from muster.checks.project import LIMIT
from muster.job import Job, Resources, Script
from muster.platforms import get_platform
from muster.platforms.base import Platform
from muster.strategies import get_strategy
from muster.strategies.base import Strategy
from muster.text.frozen import frozen

AT_ONCE = "at once"  # reason of a stop that leaves processes no time to end by themselves


@frozen
class RunRequest:
    """A request for a run, as the user made it: nothing in it has been checked.

    Attributes:
        script: file, name of a module, function, or a script that is checked already; None starts servers only.
        n_workers, n_ps: workers that train, and parameter servers.
        resources: what each worker is given.
        ps_resources: what each parameter server is given; None for the same.
        args, env: command-line arguments and environment variables of the script.
        kwargs: keyword arguments of the script, where it is a function.
        python: the interpreter that runs the script; None for this one.
        cwd: working directory of the script; empty for this process's.
        name: what to call the run; empty for the script's name.
        is_module: whether ``script`` is the name of a module in any case.
        strategy: name of a strategy, or one that is made already.
        platform: name of a platform, or one that is made already; None for the usual one.
        options: options of a strategy or a platform that is given by name.
        timeout_seconds, run_timeout, stall_seconds, queue_timeout: limits in seconds, see :class:`~muster.job.Limits`.
        session_address: ``host:port`` at which workers reach this session; None for the platform's proposal.
        worker_ports: first and last port that servers of workers may use; None for any.
        project: files that go to workers which share none with the session, as ``find_project`` takes it.
        project_limit: MB that they may have together.
        collect: patterns of files in the workers' working directories that are brought back at the end.
        detach: how long the run may live in a process of its own, in seconds or as ``"8h"``; None: not at all.
        restarts, restart_on, from_scratch: when it is tried again, see :class:`~muster.run.attempts.RestartPolicy`.
        min_workers: with how few workers it starts and goes on where others cannot be had; None for all.
        warm: whether ranks may be forked from a process that has imported the script's modules, if there is one.
    """

    script: str | Path | Callable[..., Any] | Script | None = field(default=None, repr=False)
    n_workers: int = 1
    n_ps: int = 0
    resources: Resources = Resources()
    ps_resources: Resources | None = None
    args: Sequence[object] = ()
    env: Mapping[str, object] = field(default_factory=dict, repr=False)
    kwargs: Mapping[str, Any] | None = field(default=None, repr=False)
    python: str | Path | None = None
    cwd: str = ""
    name: str = ""
    is_module: bool = False
    strategy: str | Strategy = "parameter_server"
    platform: str | Platform | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    timeout_seconds: float | None = 60
    run_timeout: float | None = None
    stall_seconds: float | None = None
    queue_timeout: float | None = None
    session_address: str | None = None
    worker_ports: tuple[int, int] | None = None
    project: str | Path | Sequence[str | Path] | None = None
    project_limit: float = LIMIT
    collect: str | Sequence[str] = ()
    detach: str | float | None = None
    restarts: int = 0
    restart_on: str | Sequence[str] | None = None
    from_scratch: bool = False
    min_workers: int | None = None
    warm: bool = True

    @classmethod
    def of_job(cls, job: Job, **more: Any) -> RunRequest:
        """Return the request for a job that is described already; ``more`` has the fields that a job does not have."""
        return cls(
            script=job.script,
            n_workers=job.n_workers,
            n_ps=job.n_ps,
            resources=job.resources,
            ps_resources=job.ps_resources,
            args=job.args,
            env=job.env,
            python=job.python,
            cwd=job.cwd,
            name=job.name,
            **more,
        )

    def make_strategy(self) -> Strategy:
        """Return the strategy: a new one if the request names it.

        Raises:
            JobError: there is no such strategy, or neither it nor a platform has one of the options.
        """
        return get_strategy(self.strategy, **self._options()[0])

    def make_platform(self) -> Platform:
        """Return the platform: a new one if the request names it.

        Raises:
            JobError: there is no such platform, or it has no such option.
            PlatformUnsupported: it cannot be used from here.
        """
        return get_platform(self.platform, **self._options()[1])

    def _options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of the strategy, and those that only a platform has."""
        own = strategies.option_names(self.strategy) if isinstance(self.strategy, str) else []
        theirs = {name: value for name, value in self.options.items() if name not in own and _is_of_platform(name)}
        return {name: value for name, value in self.options.items() if name not in theirs}, theirs


def _is_of_platform(option: str) -> bool:
    """Return whether any platform has this option. Platforms are imported one by one until one has it."""
    return any(option in platforms.option_names(platform) for platform in platforms.PLATFORMS)
