"""The public functions of Muster: ``run_cluster``, and ``doctor``, ``attach`` and ``detach`` beside it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from muster.checks.arguments import plain_bool, plain_observers
from muster.checks.names import bind, with_names_checked
from muster.dashboard import NoDashboard, is_notebook
from muster.dashboard import choose as choose_dashboard
from muster.errors import JobError, without_inner_frames
from muster.events import Observer
from muster.job import Resources
from muster.platforms.base import Platform
from muster.platforms.kept import KeptPlatform, kept_for
from muster.run.address import ClusterAddress, recorded
from muster.run.checked import CheckedRun
from muster.run.cluster import Cluster, running_clusters
from muster.run.misnamed import refuse_misnamed
from muster.run.request import RunRequest
from muster.runtime import interrupts
from muster.runtime.echo import without_echo
from muster.strategies.base import Strategy

if TYPE_CHECKING:  # most sessions never need these modules
    from muster.checkup import Report
    from muster.records.runs import Run

SECOND = 2
LONG_IMPORTS = 3.0  # seconds of imports from which on the user is told of reuse=


@overload
def run_cluster(
    n_workers: int,
    n_ps: int = 0,
    cpu: float = 1,
    memory: float = 2,
    nvidia_gpu: int = 0,
    worker_script: str | Path | Callable[..., Any] | None = None,
    timeout_seconds: float | None = 60,
    *,
    ps_cpu: float | None = None,
    ps_memory: float | None = None,
    ps_nvidia_gpu: int | None = None,
    strategy: str | Strategy = "parameter_server",
    platform: str | Platform | None = None,
    args: Sequence[object] = (),
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, object] | None = None,
    python: str | Path | None = None,
    name: str | None = None,
    wait: bool = True,
    run_timeout: float | None = None,
    stall_seconds: float | None = None,
    queue_timeout: float | None = None,
    session_address: str | None = None,
    worker_ports: tuple[int, int] | None = None,
    project: str | Path | Sequence[str | Path] | None = None,
    project_limit: float = 100,
    collect: str | Sequence[str] = (),
    restarts: int = 0,
    restart_on: str | Sequence[str] | None = None,
    from_scratch: bool = False,
    min_workers: int | None = None,
    reuse: bool | KeptPlatform | None = None,
    warm: bool = True,
    observers: Iterable[Observer] = (),
    dashboard: bool = True,
    detach: None = None,
    **options: Any,
) -> ClusterAddress: ...
@overload
def run_cluster(
    n_workers: int,
    n_ps: int = 0,
    cpu: float = 1,
    memory: float = 2,
    nvidia_gpu: int = 0,
    worker_script: str | Path | Callable[..., Any] | None = None,
    timeout_seconds: float | None = 60,
    *,
    detach: str | float,
    **options: Any,
) -> Run: ...
@without_inner_frames
@with_names_checked(refuse_misnamed)
def run_cluster(
    n_workers: int,
    n_ps: int = 0,
    cpu: float = 1,
    memory: float = 2,
    nvidia_gpu: int = 0,
    worker_script: str | Path | Callable[..., Any] | None = None,
    timeout_seconds: float | None = 60,
    *,
    ps_cpu: float | None = None,
    ps_memory: float | None = None,
    ps_nvidia_gpu: int | None = None,
    strategy: str | Strategy = "parameter_server",
    platform: str | Platform | None = None,
    args: Sequence[object] = (),
    kwargs: Mapping[str, Any] | None = None,
    env: Mapping[str, object] | None = None,
    python: str | Path | None = None,
    name: str | None = None,
    wait: bool = True,
    run_timeout: float | None = None,
    stall_seconds: float | None = None,
    queue_timeout: float | None = None,
    session_address: str | None = None,
    worker_ports: tuple[int, int] | None = None,
    project: str | Path | Sequence[str | Path] | None = None,
    project_limit: float = 100,
    collect: str | Sequence[str] = (),
    restarts: int = 0,
    restart_on: str | Sequence[str] | None = None,
    from_scratch: bool = False,
    min_workers: int | None = None,
    reuse: bool | KeptPlatform | None = None,
    warm: bool = True,
    observers: Iterable[Observer] = (),
    dashboard: bool = True,
    detach: str | float | None = None,
    **options: Any,
) -> ClusterAddress | Run:
    """Launch workers, make them a training cluster, and run a script on it.

    >>> def train(rate):
    ...     return {"loss": rate**2}
    >>> run = run_cluster(2, strategy="processes", worker_script=train, kwargs={"rate": 0.5}, dashboard=False)
    >>> run.values
    [{'loss': 0.25}, {'loss': 0.25}]

    Args:
        n_workers: number of workers that train.
        n_ps: number of parameter servers.
        cpu, memory, nvidia_gpu: resources of each worker: cores, GB, devices.
        ps_cpu, ps_memory, ps_nvidia_gpu: resources of each parameter server; None for the same as a worker.
        worker_script: a file, a module's name, or a function. None: only start servers, for this session to train
            through.
        timeout_seconds: how long the start may take, from when the platform has a place for the workers; 0 for no
            limit. The time starts again as long as servers are importing packages. Waiting for a place is limited by
            ``queue_timeout``, training by ``run_timeout``.
        strategy: ``parameter_server``, ``horovod``, ``mpi``, ``processes``, ``multi_worker``, or a strategy object;
            further keyword arguments are its options, such as ``slots=2`` for two ranks on each worker.
        platform: where workers run: ``local``, ``hosts``, ``containers``, ``slurm``, ``kubernetes``, ``workbench``, or
            a platform object; None for the workbench in one of its sessions, and else for this machine. Its options are
            keyword arguments, too, such as ``hosts=["gpu1:2"]`` or ``image="my/training:1"``.
        args, env: command-line arguments and environment variables of the script.
        kwargs: keyword arguments of a function. Their values are never recorded.
        python: the interpreter that runs the script; None for this one.
        name: name of the run. A run of the same name that is under way in this session is stopped first.
        wait: whether to wait for the script's end; if False, call ``.wait()`` of what is returned later.
        run_timeout: how many seconds the training may take; None for no limit.
        stall_seconds: the run ends if a rank neither prints nor reports a step for so many seconds; None for never.
        queue_timeout: how many seconds workers may wait for a place; None for no limit.
        restarts: how often all ranks are started again after a failure, to go on from the script's checkpoint.
        session_address, worker_ports, project, project_limit, collect: see :class:`Cluster`.
        restart_on, from_scratch, min_workers, observers: see there, too.
        reuse: whether to keep a process with the script's imports made for some idle minutes, so that the next such
            call on this machine starts in seconds; None for the value of ``MUSTER_REUSE`` in the environment, ``1`` or
            ``0``. See :func:`muster.pool`.
        warm: whether ranks may be forks of a process that has already made the script's imports.
        dashboard: whether to show the run while it is under way.
        detach: how long the run may live in a process of its own, such as ``"8h"``, or in seconds. The run then
            outlives this session, and this call returns as soon as the run has begun: see :func:`attach`.

    Returns:
        The run, with ``values``, ``metrics``, ``logs()``, ``explain()``, ``wait()``, ``stop()``, ``stacks()`` and all
        else that its ``.cluster``, a :class:`Cluster`, has. It is also the pair ``(cluster_spec, session_address)``,
        such as ``{"ps": ["127.8.1.2:40001"], "worker": [...]}`` and ``"grpc://127.8.1.3:40002"``, and ``(None, None)``
        once a script has run. With ``detach`` it is a :class:`~muster.records.runs.Run`, which has the same methods.

    Raises:
        JobError, PlatformError, StartTimeout, RunFailed: see :mod:`muster.errors`. Nothing is left running.
    """
    for flag, value in {"wait": wait, "dashboard": dashboard, "warm": warm, "from_scratch": from_scratch}.items():
        plain_bool(flag, value)
    if reuse is not None and not isinstance(reuse, KeptPlatform):
        plain_bool("reuse", reuse)
    observers = plain_observers(observers)
    kept = kept_for(reuse, platform, detach is not None)
    resources = Resources(cpu, memory, nvidia_gpu)
    request = RunRequest(
        script=worker_script,
        n_workers=n_workers,
        n_ps=n_ps,
        resources=resources,
        ps_resources=resources.but(ps_cpu, ps_memory, ps_nvidia_gpu),
        args=args,
        env={} if env is None else env,
        kwargs=kwargs,
        python=python,
        name=name if name is not None else "",
        strategy=strategy,
        platform=platform,
        options=options,
        timeout_seconds=timeout_seconds,
        run_timeout=run_timeout,
        stall_seconds=stall_seconds,
        queue_timeout=queue_timeout,
        session_address=session_address,
        worker_ports=worker_ports,
        project=project,
        project_limit=project_limit,
        collect=collect,
        detach=detach,
        restarts=restarts,
        restart_on=restart_on,
        from_scratch=from_scratch,
        min_workers=min_workers,
        warm=warm,
    )
    if kept is not None:
        return _run_on_kept(kept, request, observers, wait, dashboard)
    cluster = Cluster.of(request, observers)
    checked = cluster.check()
    if detach is not None:
        if observers:
            raise JobError(
                "observers= are functions of this session, which a detached run does not live in.",
                advice="leave them out, and read open_run(ID).events()",
            )
        if dashboard:
            choose_dashboard()  # it may raise JobError: better before anything has begun
        checked.shortages()
        _make_room(cluster, replace_same_name=name is not None)
        return _detached(checked, dashboard)
    address = _run(cluster, worker_script is not None, wait, dashboard, bool(name))
    _hint_at_reuse(cluster)
    return address


def _run_on_kept(
    kept: KeptPlatform, request: RunRequest, observers: Sequence[Observer], wait: bool, dashboard: bool
) -> ClusterAddress:
    """Run on a platform that is kept, and give it back once the run is over."""
    lent = cluster = None
    try:
        with interrupts.deferred():
            lent = kept.borrow()
        cluster = Cluster.of(replace(request, platform=lent), observers)
        return _run(cluster, request.script is not None, wait, dashboard, bool(request.name))
    finally:
        if cluster is not None and lent is not None:
            cluster.when_over(partial(kept.give_back, lent))
        elif lent is not None:
            kept.give_back(lent)


def _run(cluster: Cluster, has_script: bool, wait: bool, dashboard: bool, is_named: bool) -> ClusterAddress:
    """Start a cluster, show it, and, if there is a script and ``wait`` is true, wait for its end."""
    cluster.check().shortages()  # before the dashboard appears
    shown = choose_dashboard(cluster=cluster) if dashboard else NoDashboard()
    forget = cluster.subscribe(shown, at_once=True)
    try:
        with interrupts.held(cluster.interrupt, cluster.what_became), without_echo():
            _make_room(cluster, replace_same_name=is_named)
            try:
                cluster.start()
                if has_script and wait:
                    cluster.wait()
            except BaseException:
                if cluster.is_running:  # a handler of a signal has raised, as one that limits the time of the call
                    cluster.stop()
                raise
    finally:
        if not cluster.is_running:
            shown.close()
    if dashboard and cluster.is_running and _is_at_prompt():
        forget()
        shown.close()
        print(
            f"Run {cluster.run_id} goes on: run.wait(), or `muster show {cluster.run_id}` elsewhere.",
            file=sys.stderr,
        )
    if has_script and wait:
        return ClusterAddress(None, None, cluster, is_shown=dashboard and is_notebook())
    spec = cluster.cluster_spec
    if spec and not has_script:
        _reach_without_proxies(spec)
    return ClusterAddress(spec or None, f"grpc://{spec['worker'][0]}" if spec else None, cluster)


_cold: list[str] = []  # names of the runs that took long to import


def _hint_at_reuse(cluster: Cluster) -> None:
    """Tell the user of ``reuse=`` once, after a notebook's second run on this machine that took long to import."""
    if cluster.is_running or cluster.platform.name != "local" or cluster.job.script is None or not is_notebook():
        return
    from muster.records.first_step import importing

    seconds = importing(recorded(cluster).events())
    if seconds < LONG_IMPORTS:
        return
    _cold.append(cluster.job.name)
    if len(_cold) == SECOND:
        _say(
            f"The script has imported for {seconds:.1f} s. reuse=True in this call saves that: from its second run on "
            "ranks start in about two seconds."
        )


@without_inner_frames
def doctor(*args: Any, launch: bool = True, **kwargs: Any) -> Report:
    """Find the reasons why :func:`run_cluster` would fail with these arguments, and their fixes, without training.

    >>> import muster
    >>> _ = Path("train.py").write_text("print('trained')")
    >>> muster.doctor(2, strategy="processes", worker_script="train.py", launch=False).is_fine
    True

    Args:
        args, kwargs: the arguments of :func:`run_cluster`.
        launch: whether to launch such workers for some seconds, for what can only be checked on them, and, where the
            run is to use Horovod, to try it on two ranks here.

    Returns:
        The findings, displayed as a table; ``is_fine`` is true if none of them makes the run fail.
    """
    from muster.checkup import examine

    call = bind("muster.doctor takes the arguments of run_cluster", run_cluster, refuse_misnamed, args, kwargs)
    call.apply_defaults()
    given = call.arguments
    wanted = {name: given[name] for name in given.keys() & {field.name for field in fields(RunRequest)}}
    wanted.update(env=given["env"] or {}, name=given["name"] or "", script=given["worker_script"])
    resources = Resources(given["cpu"], given["memory"], given["nvidia_gpu"])
    servers = resources.but(given["ps_cpu"], given["ps_memory"], given["ps_nvidia_gpu"])
    return examine(RunRequest(**wanted, resources=resources, ps_resources=servers), launch=launch)


@without_inner_frames
def attach(run: str | Run | None = None, *, dashboard: bool = True) -> Run:
    """Return a run of any of your processes, and show it, from its first event on, while it is under way.

    Args:
        run: the run's id, the beginning of its id, or ``last``, as for :func:`open_run`. None: the newest detached run
            that is under way; failing that, the newest that was detached or that this session has begun; failing that,
            the newest of all. A printed line says which run was chosen.
        dashboard: whether to show it.

    Returns:
        The run: ``wait()`` returns its result or raises the error it failed with, ``stop()`` ends it,
        ``logs("worker-0")`` and ``stacks()`` tell what it is doing.

    Raises:
        RunNotFound: there is no such run, or there are several.
    """
    from muster.records.lookup import attached_to, open_run, run_to_attach_to
    from muster.records.runs import Run

    opened = run if isinstance(run, Run) else run_to_attach_to() if run is None else open_run(run)
    if run in (None, "last"):
        _say(attached_to(opened))
    if dashboard and opened.status == "running":
        if is_notebook():
            import_module("muster.dashboard.display").show(opened)
        elif not _is_at_prompt():
            follow = import_module("muster.dashboard.follow").follow
            shown = choose_dashboard()
            atexit.register(shown.close)  # restores the terminal
            threading.Thread(target=follow, args=(opened, shown), name="muster-follow", daemon=True).start()
    return opened


def detach(name: str | None = None) -> NoReturn:
    """Raise JobError, which says why a run cannot be moved out of this session, and what to do instead.

    The run's workers are connected to this process and its launcher is a child of this process. Both end with it so
    that nothing is left behind, and another process could take over neither.

    Args:
        name: name of the run; None for any that is under way.

    Raises:
        JobError: always, with advice.
    """
    living = running_clusters(name)
    if not living:
        which = f" called {name!r}" if name else ""
        raise JobError(
            f"No run{which} is under way in this session.", advice="muster.attach() for one that was detached"
        )
    has_own_workers = living[0].check().owns_platform
    again = 'detach="8h"' if has_own_workers else 'muster.run_cluster(..., detach="8h"), on workers of its own'
    raise JobError(
        f"Run {living[0].run_id} cannot be moved out of this session: its workers are connected to this process, and "
        "end with it, as they do where the kernel is restarted.",
        advice="leave this session alone until it has ended; or, where the script keeps a checkpoint, stop it and "
        f"start it again with {again}: it goes on from there",
    )


def _detached(checked: CheckedRun, dashboard: bool) -> Run:
    """Start the run in a process of its own, and attach to it."""
    from muster.run import controller

    begun = controller.start(checked)
    until = time.strftime("%A %d %B %Y %H:%M", time.localtime(time.time() + (checked.limits.detached or 0)))
    _say(
        f"Run {begun.run_id} lives until {until} at most, also without this session: "
        f"muster.attach({begun.run_id!r}), or `muster attach {begun.run_id}` and `muster stop {begun.run_id}`."
    )
    return attach(begun, dashboard=dashboard)


def _say(text: str) -> None:
    """Print a remark to standard error, or in a notebook, which shows standard error in red, to standard output."""
    print(text, file=sys.stdout if is_notebook() else sys.stderr)


def _is_at_prompt() -> bool:
    """Return whether this is a Python prompt in a terminal, where a live display would be in the way of typing."""
    return hasattr(sys, "ps1") and not is_notebook()


def _reach_without_proxies(spec: Mapping[str, Sequence[str]]) -> None:
    """Make gRPC in this process, which trains through the servers, bypass proxies, which cannot reach the servers."""
    if any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        from muster.strategies.tensorflow import hosts_of

        known = os.environ.get("no_grpc_proxy") or os.environ.get("no_proxy")  # gRPC reads no_proxy only without it
        os.environ["no_grpc_proxy"] = ",".join(filter(None, [known, hosts_of(spec)]))


def _make_room(cluster: Cluster, replace_same_name: bool) -> None:
    """Stop a run of the same name that is under way, or warn of it: the user may have run a cell again."""
    for other in running_clusters(cluster.job.name):
        if replace_same_name:
            _say(f"Run {other.run_id} of the same name is stopped and replaced.")
            other.ask_to_stop("replaced by another of its name")
            other.stop()
        else:
            _say(
                f"Run {other.run_id} is still running beside this one; muster.open_run({other.run_id!r}).stop() "
                "ends it (name= replaces a run of the same name)."
            )
