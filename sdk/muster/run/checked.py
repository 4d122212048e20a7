"""A run that has passed its checks, before anything of it is started (CheckedRun)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from muster.agent.places import symbol
from muster.checks.arguments import parse_address
from muster.checks.function import name_of, without_arguments
from muster.checks.planning import overridden, preview
from muster.checks.project import Project
from muster.errors import PlatformUnsupported
from muster.job import SESSION, Job, Limits, Plan, WorkerSpec
from muster.options.values import plain_text
from muster.platforms.base import Platform, Reach, Storage
from muster.run.attempts import RestartPolicy
from muster.run.request import RunRequest
from muster.strategies.base import Strategy
from muster.text.frozen import frozen

ATTEMPT_VARIABLE = "MUSTER_ATTEMPT"  # in a script's environment: the number of its attempt, from 1


@frozen
class CheckedRun:
    """A run that has passed all checks that are possible before the launch; nothing of it has been started.

    Attributes:
        job: with its script resolved, the path of its interpreter, its working directory and its name.
        strategy, platform: ready for use.
        probed: what the strategy's ``probe`` found.
        owns_platform: whether the platform was made for the run and is closed with it; else it is the caller's.
        limits: how long things may take.
        session_address: host and port that agents dial; port 0 for any.
        listen: address to listen on.
        is_coming: whether this machine may get that address only when the workers are launched.
        is_relayed: whether the platform relays agents' connections to that address, which they cannot reach themselves.
        no_ssh: why nobody can log in to the workers, in words; empty where that is possible as far as is known.
        worker_ports: first and last port for servers of workers; None for any.
        members: name, role and index of every worker, in launch order.
        project: the files that are sent to the workers; None where the workers share files with the session.
        collect: patterns of files that are brought back at the end.
        restart_policy: after which failures it is tried again.
        spare: how many of its workers the run can do without, where they cannot be had.
        trained: seconds that the attempts before this one have trained.
        attempt_number: the number of this attempt, from 1.
        request: the request that was checked.
    """

    job: Job
    strategy: Strategy
    platform: Platform
    probed: Any = None
    owns_platform: bool = True
    limits: Limits = Limits()
    session_address: tuple[str, int] = ("127.0.0.1", 0)
    listen: str = "127.0.0.1"
    is_coming: bool = False
    is_relayed: bool = False
    no_ssh: str = ""
    worker_ports: tuple[int, int] | None = None
    members: Sequence[tuple[str, str, int]] = ()
    project: Project | None = None
    collect: tuple[str, ...] = ()
    restart_policy: RestartPolicy = RestartPolicy()
    spare: int = 0
    trained: float = 0.0
    attempt_number: int = 1
    request: RunRequest = RunRequest()

    @property
    def launcher_at(self) -> str:
        """Host of a launcher: the session, or the first worker if the session cannot reach the workers itself."""
        return self.members[0][0] if self.is_relayed or self.platform.launches_there else SESSION

    def numbered(self, number: int, trained: float) -> CheckedRun:
        """Return the run for the attempt of this number, from 1, on the same platform.

        Args:
            trained: seconds that the attempts before it have trained.
        """
        job = replace(self.job, env={**self.job.env, ATTEMPT_VARIABLE: str(number)})
        return replace(self, job=job, trained=trained, attempt_number=number)

    def attempt(self, number: int, trained: float) -> CheckedRun:
        """Return the run for the attempt of this number, from 1, on newly launched workers.

        A platform that the run owns was closed with the attempt before, so that a new one is made; its workers may
        reach the session at another address.

        Args:
            trained: seconds that the attempts before it have trained.

        Raises:
            JobError, PlatformError: as ``check``.
        """
        again = self.numbered(number, trained)
        return again if number == 1 or not self.owns_platform else again.on_new_platform()

    def on_new_platform(self) -> CheckedRun:
        """Return the run on another platform object, whose workers may reach the session at another address.

        It is the same object where the caller has given one.

        Raises:
            JobError, PlatformError: as ``check``.
        """
        platform = self.request.make_platform()
        try:
            platform.check()
            address, reach = reach_at(platform, plain_text("session_address", self.request.session_address))
        except BaseException:
            if self.owns_platform:
                platform.close()
            raise
        return replace(
            self,
            platform=platform,
            session_address=address,
            listen=reach.listen,
            is_coming=reach.is_coming,
            is_relayed=reach.relayed,
        )

    def preview(self) -> Plan:
        """Return the plan, with placeholders for what is known only after a launch. Starts and writes nothing."""
        known = {"launcher_at": self.launcher_at, "no_ssh": self.no_ssh}
        return preview(self.job, self.strategy, self.probed, project=self.project, **known)

    def submission_text(self) -> str:
        """Return what the platform would submit to its backend, without secrets; empty where it submits nothing.

        Raises:
            PlatformError: it cannot be found out.
        """
        by_places = self.project is not None
        scratch = symbol("scratch") if by_places else "/tmp"
        run = Path("run")
        specs = [
            WorkerSpec(
                name=name,
                role=role,
                index=index,
                run_id=run.name,
                resources=self.job.resources_of(role),
                log=run / "logs" / f"{name}.log",
                scratch=Path(scratch),
                cwd=symbol("project") if by_places else self.job.cwd,
                queue_seconds=self.limits.queue,
            )
            for name, role, index in self.members
        ]
        return self.platform.submission_text(specs)

    def shortages(self) -> list[str]:
        """Return texts about resources that the workers will have to share although each was to have its own.

        Raises:
            ResourceError: the platform could never grant what they are to have.
            PlatformError: it refuses such workers, or does not answer.
        """
        return self._shortages

    @functools.cached_property
    def _shortages(self) -> list[str]:
        return self.platform.shortages([self.job.resources_of(role) for _, role, _ in self.members])

    def remarks(self) -> list[str]:
        """Return remarks for the user before the start: on shortages, and on arguments that have no effect.

        Raises:
            ResourceError: the platform could never grant what the workers are to have.
            PlatformError: it refuses such workers, or does not answer.
        """
        found = [*self.shortages(), *self.without_effect(), *self._forgotten()]
        if self.collect and self.project is None:
            found.append(f"Nothing has to be collected: the workers write into {self.job.cwd} itself.")
        if self.restart_policy.restarts and self.job.script and self.platform.storage is Storage.NOTHING:
            found.append(
                "Each attempt begins with the project's files as they are here: the script goes on from its checkpoint "
                "only where that is in a folder which outlives the workers."
            )
        return found

    def _forgotten(self) -> list[str]:
        """Return remarks on what the user has perhaps forgotten: a script, or the arguments of a function."""
        function = self.request.script
        if self.job.script is None and not self.job.n_ps and self.strategy.name == "parameter_server":
            return [
                f"There is no script and no parameter server: {self.job.n_workers} idle "
                f"server{'s' if self.job.n_workers != 1 else ''} will wait for this session to train through them, "
                "until stopped. A script is given as worker_script, parameter servers as n_ps."
            ]
        if not self.job.args or self.request.kwargs or not callable(function):
            return []
        names = without_arguments(function)
        if not names:
            return []
        example = f"kwargs={{{names[0]!r}: ...}}"
        return [
            f"{name_of(function)} is given none of its arguments ({', '.join(names)}): args becomes sys.argv, and "
            f"{example} gives them."
        ]

    def without_effect(self) -> list[str]:
        """Return remarks on environment variables whose given values Muster overrides in every process."""
        if not self.job.env:
            return []
        names = overridden(self.preview(), self.job.env)
        return [f"Muster sets {name} in every process: the value that is given for it has no effect." for name in names]


def describe_place(checked: CheckedRun) -> str:
    """Return, in words, the platform of a run's workers and the address at which they reach this session."""
    host, port = checked.session_address
    where = f"{host}, port {port}" if port else f"{host}, on any free port"
    if checked.is_relayed and checked.platform.describe() == checked.platform.name:  # others say how
        where += f", through a relay of {checked.platform.name}"
    return f"workers run on {checked.platform.describe()}, and reach this session at {where}"


def reach_at(platform: Platform, asked: str) -> tuple[tuple[str, int], Reach]:
    """Return how agents reach the session: as the platform proposes, or at the address that the user has given.

    Args:
        asked: ``host:port`` that the user has given; empty for the platform's proposal.

    Returns:
        Host and port that agents dial, and the ``Reach`` that belongs to them.

    Raises:
        JobError: the address is none.
        PlatformUnsupported: the platform knows no address, and the user has given none.
    """
    if not asked:
        reach = platform.reach()
        return (reach.advertise, 0), reach
    host, port = parse_address(asked)
    try:
        reach = platform.reach()
    except PlatformUnsupported:  # the platform does not know an address: the user has given one for that reason
        return (host, port), Reach(host, host)
    return (host, port), reach if host == reach.advertise else Reach(host, host)
