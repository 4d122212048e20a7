"""Everything that has to be there before the first worker is launched: keys, a listening session, and the specs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from muster.checks.planning import describe, make_facts, member_names
from muster.events import Event
from muster.job import Job, Limits, Plan, SshIdentity, WorkerSpec
from muster.platforms.base import Platform
from muster.pools.endpoint import Session
from muster.records import runs
from muster.run.orchestrator import Orchestrator
from muster.run.state import RunState
from muster.security.ssh import KeyPair, generate_key_pair, write_private
from muster.strategies.base import Strategy
from muster.strategies.commands import FUNCTION_FILE

# Run from a copy, they have none of the SDK on their path.
PROGRAMS = ("agent/runner.py", "agent/mpi_rank.py", "strategies/horovod_driver.py", "strategies/exec_driver.py")


async def prepare(
    job: Job,
    strategy: Strategy,
    platform: Platform,
    limits: Limits,
    run_dir: Path,
    scratch: Path,
    session_address: tuple[str, int],
    worker_ports: tuple[int, int] | None,
    *,
    owns_platform: bool,
    emit: Callable[[Event], None],
    on_up: Callable[[], None],
) -> Orchestrator:
    """An orchestrator that is ready to launch.

    Args:
        run_dir, scratch: the run's folder, and the one that goes when it ends.
        session_address: host and port to listen on; port 0 for any.
        worker_ports: first and last port for servers of workers; None for any.
        owns_platform: whether the platform ends with the run.
        emit: takes every event of the run.
        on_up: called when every server listens or every rank runs.

    Raises:
        JobError: the session cannot listen on its address.
    """
    library = None if platform.shares_temp else runs.library(run_dir)
    facts = make_facts(job, strategy, run_dir.name, run_dir, scratch, library)
    ship_library(facts.library)
    if job.script and job.script.pickled:
        (facts.library / FUNCTION_FILE).write_bytes(job.script.pickled)
    login = generate_key_pair() if strategy.needs_ssh else None
    if login and facts.identity:
        write_private(facts.identity, login.private)
    members = member_names(job, strategy)

    def on_plan(plan: Plan) -> None:
        runs.write_json(run_dir / "plan.json", describe(plan, job))

    session = Session([name for name, _, _ in members])
    address = await session.open(scratch, *session_address)
    specs = [
        WorkerSpec(
            name=name,
            role=role,
            index=index,
            run=run_dir.name,
            resources=job.resources,
            log=run_dir / "logs" / f"{name}.log",
            scratch=scratch / name,
            cwd=job.cwd,
            env=facts.environment,
            session=address,
            ssh=_ssh_identity(login),
            ports=strategy.ports_per_worker,
            port_range=worker_ports,
        )
        for name, role, index in members
    ]
    state = RunState(specs, emit)
    orchestrator = Orchestrator(
        job,
        strategy,
        platform,
        limits,
        facts,
        session,
        state,
        owns_platform=owns_platform,
        on_plan=on_plan,
        on_up=on_up,
    )
    session.on_message, session.on_lost = state.on_message, orchestrator.watch.on_lost
    return orchestrator


def _ssh_identity(login: KeyPair | None) -> SshIdentity | None:
    """A worker's own host key, and the key that may log in."""
    return SshIdentity(generate_key_pair().private, login.public) if login else None


def ship_library(target: Path) -> None:
    """Copy what scripts import and what starts them into ``target``, to be put on their ``PYTHONPATH``.

    A copy of its own, so that an interpreter of any version finds ``muster.training`` without this session's
    site-packages, whose NumPy may not be the one it needs.
    """
    package = Path(__file__).parents[1]
    shipped = target / "muster"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package / "training", shipped / "training", ignore=ignore)
    for program in PROGRAMS:
        shutil.copyfile(package / program, target / Path(program).name)
    (shipped / "__init__.py").write_text('"""The part of Muster that training scripts use: muster.training."""\n')
