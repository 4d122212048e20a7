"""The preparation of a run before its first worker is launched: the library, keys, a listening endpoint, the specs."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from muster.agent.places import symbol
from muster.checks.places import SCRIPTS, facts_by_places, job_by_places, script_to_send
from muster.checks.planning import describe, make_facts
from muster.checks.project import Project
from muster.events import Event
from muster.job import Imports, Job, Needs, Plan, SshIdentity, WorkerSpec
from muster.platforms.base import Storage
from muster.pools.calls import PlatformCalls
from muster.pools.endpoint import Endpoint
from muster.pools.pool import AgentPool
from muster.records import folders
from muster.run.checked import ATTEMPT_VARIABLE, CheckedRun
from muster.run.context import RunContext
from muster.run.ends import Ends
from muster.run.orchestrator import Orchestrator
from muster.run.state import RunState
from muster.runtime.background import in_thread
from muster.security.ssh import IDENTITY, KeyPair, generate_key_pair, write_private
from muster.strategies.base import Facts
from muster.strategies.commands import FUNCTION_FILE

if TYPE_CHECKING:  # only runs whose workers share no files have one
    from muster.run.exchange import Exchange

PACKAGE = Path(__file__).parents[1]
RUNNER = PACKAGE / "runner" / "runner.py"  # what starts scripts, with the packages that it needs
SHIPPED = ("runner", "training")


async def prepare(
    checked: CheckedRun,
    run_dir: Path,
    scratch: Path,
    calls: PlatformCalls,
    *,
    emit: Callable[[Event], None],
    on_up: Callable[[], None],
) -> Orchestrator:
    """Return an orchestrator that is ready to launch.

    Args:
        checked: the run.
        run_dir, scratch: the run's folder, and the scratch folder, which is removed at its end.
        calls: the calls of its platform.
        emit: called with every event of the run.
        on_up: called when every server listens or every rank runs.

    Raises:
        JobError: the session cannot listen on its address.
    """
    job, strategy, imports = checked.job, checked.strategy, _imports(checked)
    storage = checked.platform.storage
    library = folders.library(run_dir) if storage is Storage.PROJECT else None
    by_places = storage is Storage.NOTHING
    facts = make_facts(job, run_dir, scratch, library=library, probed=checked.probed, by_places=by_places)
    session_host = checked.session_address[0]
    facts = replace(facts, launcher_at=checked.launcher_at, session_host=session_host, no_ssh=checked.no_ssh)
    await in_thread(ship_library, facts.library_here, strategy.programs, storage)
    if job.script and job.script.pickled:
        await in_thread((facts.library_here / FUNCTION_FILE).write_bytes, job.script.pickled + job.script.sources)
    if checked.project is not None:
        facts = facts_by_places(facts, checked.project)
        await in_thread(_send_script, job, checked.project, facts.library_here)
        checked = replace(checked, job=job_by_places(job, checked.project))
    login = generate_key_pair() if strategy.uses_ssh and not checked.no_ssh else None
    if login:
        write_private(facts.scratch / IDENTITY, login.private)

    endpoint = Endpoint([name for name, _, _ in checked.members], checked.platform.lease_seconds)
    try:
        await endpoint.open(scratch, *checked.session_address, listen=checked.listen, is_coming=checked.is_coming)
        context = RunContext(checked, facts, await in_thread(make_specs, checked, facts, endpoint, login, imports))
        pool = make_pool(context, endpoint, calls)
        exchange = _make_exchange(context, endpoint) if storage is Storage.NOTHING else None
        state = RunState(context.specs, exchange.logging(emit) if exchange else emit, checked.spare, Ends(run_dir.name))
        on_plan = partial(_write_plan, run_dir, job)
        orchestrator = Orchestrator(context, pool, state, exchange, on_plan=on_plan, on_up=on_up)
    except BaseException:
        endpoint.close()
        raise
    return orchestrator


def prepare_again(
    before: Orchestrator, number: int, trained: float, *, emit: Callable[[Event], None], on_up: Callable[[], None]
) -> Orchestrator:
    """Return an orchestrator for the next attempt, with the workers that have stayed.

    Args:
        before: the orchestrator of the attempt before.
        number: number of the next attempt, from 1.
        trained: seconds that all attempts before it have trained.
        emit, on_up: as ``prepare`` takes them.
    """
    checked = before.context.checked.numbered(number, trained)
    facts = before.facts
    facts = replace(facts, environment={**facts.environment, ATTEMPT_VARIABLE: str(number)})
    context = RunContext(checked, facts, before.context.specs)
    exchange = before.exchange
    state = RunState(context.specs, exchange.logging(emit) if exchange else emit, checked.spare, Ends(context.run_id))
    state.take_over(before.state, before.fit)
    on_plan = partial(_write_plan, context.run_dir, before.context.checked.job)
    orchestrator = Orchestrator(context, before.pool, state, exchange, on_plan=on_plan, on_up=on_up)
    orchestrator.streams = before.streams  # commands on workers that have stayed go on
    return orchestrator


def _write_plan(run_dir: Path, job: Job, plan: Plan) -> None:
    folders.write_json(run_dir / "plan.json", describe(plan, job))


def make_pool(context: RunContext, endpoint: Endpoint, calls: PlatformCalls | None = None) -> AgentPool:
    """Return the pool of the run's workers, which is closed with the run; ``calls`` are passed to it."""
    checked = context.checked
    return AgentPool(
        context.run_id,
        checked.platform,
        endpoint,
        owns_platform=checked.owns_platform,
        is_relayed=checked.is_relayed,
        calls=calls,
    )


def _make_exchange(context: RunContext, endpoint: Endpoint) -> Exchange:
    from muster.run.exchange import Exchange

    return Exchange(context, endpoint)


def _send_script(job: Job, project: Project, library: Path) -> None:
    """Copy a script that is not among the project's files into the library, so that it is sent along."""
    script = script_to_send(job, project)
    if script is not None:
        (library / SCRIPTS).mkdir()
        shutil.copy(script, library / SCRIPTS / script.name)


def _ssh_identity(checked: CheckedRun, login: KeyPair | None) -> SshIdentity | None:
    """Return the keys of one worker's sshd; None where nobody is to log in."""
    if login is None:
        return None
    return SshIdentity(generate_key_pair().private, login.public, checked.strategy.needs_ssh)


def make_specs(
    checked: CheckedRun, facts: Facts, endpoint: Endpoint, login: KeyPair | None = None, imports: Imports | None = None
) -> list[WorkerSpec]:
    """Return the specs of the workers to launch. Where a launcher is to log in, each gets its own host key.

    If workers share no files with the session, their paths are symbols of places, resolved by the platform or agent.
    """

    def scratch_of(worker: str) -> Path:
        return Path(symbol("scratch")) if facts.places else facts.scratch / worker

    def places_of(worker: str) -> dict[str, str]:
        if facts.places:
            return {}
        library, scratch = str(facts.library), str(scratch_of(worker))
        return {"library": library, "run": str(facts.run_dir), "scratch": scratch, "project": checked.job.cwd}

    needs = _needs(checked)
    return [
        WorkerSpec(
            name=name,
            role=role,
            index=index,
            run_id=facts.run_id,
            resources=checked.job.resources_of(role),
            log=facts.run_dir / "logs" / f"{name}.log",
            scratch=scratch_of(name),
            cwd=checked.job.cwd,
            env=facts.environment,
            session=endpoint.address_for(name),
            generation=endpoint.leases.generation(name),
            ssh=_ssh_identity(checked, login),
            ports=checked.strategy.ports_per_worker,
            port_range=checked.worker_ports,
            places=places_of(name),
            needs=needs,
            imports=imports,
            queue_seconds=checked.limits.queue,
        )
        for name, role, index in checked.members
    ]


def _needs(checked: CheckedRun) -> Needs | None:
    """Return what the workers' interpreter must have, where they do not use the session's; None otherwise."""
    job = checked.job
    if not checked.platform.python or (job.script and job.script.kind == "executable"):
        return None
    is_function = job.script is not None and job.script.kind == "function"
    packages = (*checked.strategy.requires, *(("cloudpickle",) if is_function else ()))
    return Needs(job.python, packages, sys.version_info[:2] if is_function else None)


def _imports(checked: CheckedRun) -> Imports | None:
    """Return the imports that a template may make for ranks forked from it; None where ranks are not forked."""
    job = checked.job
    if not (checked.platform.keeps_templates and checked.request.warm and job.script):
        return None
    from muster.checks.imports import imports_of

    return Imports(job.python, imports_of(job.script, checked.request.script))


def ship_library(target: Path, programs: Sequence[Path], storage: Storage) -> None:
    """Put the packages that scripts run with, and the programs that start them, into ``target``, for ``PYTHONPATH``.

    They get a folder of their own, so that an interpreter of any version finds ``muster.training`` without this
    session's site-packages, whose NumPy may not fit it. On the session's own machine the packages are links, so that
    ranks find the bytecode that Python has compiled before.
    """
    shipped = target / "muster"
    shipped.mkdir(parents=True)
    for name in SHIPPED:
        if storage is Storage.ALL:
            (shipped / name).symlink_to(PACKAGE / name, target_is_directory=True)
        else:
            shutil.copytree(PACKAGE / name, shipped / name, ignore=shutil.ignore_patterns("__pycache__"))
    for program in (RUNNER, *programs):
        shutil.copyfile(program, target / program.name)
    (shipped / "__init__.py").write_text(
        '"""What training scripts use of Muster, muster.training, and what starts them."""\n'
    )
