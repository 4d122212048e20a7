"""Everything that has to be there before the first worker is launched: keys, a listening session, and the specs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.checks.planning import describe, make_facts
from muster.errors import PlatformUnsupported
from muster.events import Event
from muster.job import Plan, SshIdentity, WorkerSpec
from muster.platforms.base import Platform, Storage
from muster.pools.endpoint import Endpoint
from muster.pools.pool import Pool
from muster.records import runs
from muster.run.exchange import Exchange
from muster.run.orchestrator import Orchestrator
from muster.run.request import CheckedRun, RunContext
from muster.run.state import RunState
from muster.runtime.background import in_thread
from muster.security.ssh import KeyPair, generate_key_pair, write_private
from muster.strategies.base import Facts
from muster.strategies.commands import FUNCTION_FILE
from muster.strategies.launching import identity

PACKAGE = Path(__file__).parents[1]
RUNNER = PACKAGE / "agent" / "runner.py"


async def prepare(
    checked: CheckedRun, run_dir: Path, scratch: Path, *, emit: Callable[[Event], None], on_up: Callable[[], None]
) -> Orchestrator:
    """An orchestrator that is ready to launch.

    Args:
        checked: what to run.
        run_dir, scratch: the run's folder, and the one that goes when it ends.
        emit: takes every event of the run.
        on_up: called when every server listens or every rank runs.

    Raises:
        JobError: the session cannot listen on its address.
    """
    job, strategy = checked.job, checked.strategy
    storage = checked.platform.storage
    library = runs.library(run_dir) if storage is Storage.PROJECT else None
    run_place = scratch / "run" if storage is Storage.NOTHING else None
    facts = make_facts(job, run_dir, scratch, library=library, probed=checked.probed, run_place=run_place)
    await in_thread(ship_library, facts.library_here, strategy.programs)
    if job.script and job.script.pickled:
        await in_thread((facts.library_here / FUNCTION_FILE).write_bytes, job.script.pickled)
    login = generate_key_pair() if strategy.needs_ssh else None
    if login:
        write_private(identity(facts), login.private)

    def on_plan(plan: Plan) -> None:
        runs.write_json(run_dir / "plan.json", describe(plan, job))

    endpoint = Endpoint([name for name, _, _ in checked.members], checked.platform.lease_seconds)
    listen = _listen_address(checked.platform, checked.session_address[0])
    try:
        await endpoint.open(scratch, *checked.session_address, listen=listen)
        context = RunContext(checked, facts, await in_thread(make_specs, checked, facts, endpoint, login))
        pool = Pool(context.run_id, checked.platform, endpoint, owns_platform=checked.owns_platform)
        exchange = Exchange(context, endpoint) if storage is Storage.NOTHING else None
        state = RunState(context.specs, exchange.logging(emit) if exchange else emit)
        orchestrator = Orchestrator(context, pool, state, exchange, on_plan=on_plan, on_up=on_up)
        if exchange:
            exchange.listen()
    except BaseException:
        endpoint.close()
        raise
    return orchestrator


def _listen_address(platform: Platform, advertised: str) -> str:
    """Return the address to listen on for agents that dial ``advertised``: the same, or the platform's other one."""
    try:
        reach = platform.reach()
    except PlatformUnsupported:  # it does not know, and so the user has said it
        return advertised
    return reach.listen if advertised == reach.advertise else advertised


def make_specs(checked: CheckedRun, facts: Facts, endpoint: Endpoint, login: KeyPair | None = None) -> list[WorkerSpec]:
    """The workers to launch. Where somebody is to log in, each gets a host key of its own."""
    return [
        WorkerSpec(
            name=name,
            role=role,
            index=index,
            run=facts.run_id,
            resources=checked.job.resources,
            log=facts.run_dir / "logs" / f"{name}.log",
            scratch=facts.scratch / name,
            cwd=checked.job.cwd,
            env=facts.environment,
            session=endpoint.address_for(name),
            generation=endpoint.leases.generation(name),
            ssh=SshIdentity(generate_key_pair().private, login.public) if login else None,
            ports=checked.strategy.ports_per_worker,
            port_range=checked.worker_ports,
            places={
                "library": str(facts.library_here),
                "run": facts.places.get("run", str(facts.run_dir)),
                "scratch": str(facts.scratch / name),
                "project": checked.job.cwd,
            },
        )
        for name, role, index in checked.members
    ]


def ship_library(target: Path, programs: Sequence[Path]) -> None:
    """Copy what scripts import, and the programs that start them, into ``target``, to be put on their ``PYTHONPATH``.

    A copy of its own, so that an interpreter of any version finds ``muster.training`` without this session's
    site-packages, whose NumPy may not be the one it needs.
    """
    shipped = target / "muster"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE / "training", shipped / "training", ignore=ignore)
    for program in (RUNNER, *programs):
        shutil.copyfile(program, target / program.name)
    (shipped / "__init__.py").write_text('"""The part of Muster that training scripts use: muster.training."""\n')
