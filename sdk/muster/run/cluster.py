"""The cluster: the object through which users start, watch and end a run.

Its methods are synchronous; the work is done on the thread of :mod:`muster.runtime.background`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import logging
import os
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from muster.checks.arguments import patterns, plain_observers
from muster.checks.planning import command_line
from muster.errors import JobError, PlatformError, RunStopped, StillRunning, without_inner_frames
from muster.events import Observer
from muster.events.observers import Observers
from muster.job import Job, Plan, Workers
from muster.options.values import plain_seconds
from muster.platforms.base import Platform
from muster.records.result import Result
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.execution import Execution
from muster.run.request import AT_ONCE, RunRequest
from muster.runtime import interrupts
from muster.runtime.background import on_background_thread, result_of
from muster.runtime.forks import in_forked_children
from muster.strategies.base import Strategy
from muster.text.arguments import Argument, ArgumentText
from muster.text.shown import Stacks, Text
from muster.text.system_errors import in_words

if TYPE_CHECKING:
    from muster.records.runs import Run
    from muster.run.orchestrator import Orchestrator

logger = logging.getLogger("muster")

T = TypeVar("T")
Init = TypeVar("Init", bound=Callable[..., None])
TAKES_A_JOB = (
    'Cluster(Job(Script("file", "train.py"), n_workers=2), strategy="processes"), with Job and Script of muster.job; '
    'or run_cluster(2, strategy="processes", worker_script="train.py"), which takes a script'
)
STEP_SECONDS = 0.5  # how long a wait may delay an interrupt


def _with_advice(init: Init) -> Init:
    """Wrap ``Cluster.__init__`` to refuse, with advice, unknown arguments such as those of ``run_cluster``."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def checked(*args: Any, **kwargs: Any) -> None:
        unknown = [name for name in kwargs if name not in signature.parameters]
        if unknown:
            raise JobError(f"Cluster() has no argument {' or '.join(unknown)}.", advice=TAKES_A_JOB)
        job = kwargs.get("job", *args[1:2])
        if not isinstance(job, Job):
            what = "is missing" if job is None else f"is of type {type(job).__name__}"
            raise JobError(f"The job of Cluster() {what}.", advice=TAKES_A_JOB)
        init(*args, **kwargs)

    return cast(Init, checked)


class Cluster:
    """A job, the workers that it runs on, and its run.

    Making one starts nothing and looks at nothing: :meth:`check` does, and :meth:`start` before it starts anything.
    Use it as a context manager, which starts it and leaves nothing behind, or call :meth:`start` and :meth:`stop`:

    >>> from muster.job import Job, Script
    >>> with Cluster(Job(Script("module", "calendar"), n_workers=2), strategy="processes") as cluster:
    ...     cluster.wait().status
    'succeeded'

    Args:
        job: what to run.
        strategy: name of a strategy, or one made with options such as ``Horovod(slots=2)``.
        platform: where workers run; None for the workbench in one of its sessions, and else for this machine.
        timeout_seconds: how long the start may take, from when the platform has a place for the workers until every
            server listens or every rank runs, without the imports of servers. 0: any time.
        run_timeout: how long the run may take after that, in seconds. None: any time.
        stall_seconds: after how many seconds without output or progress from a worker that trains the run counts as
            hung; more than its longest step takes. None: never.
        queue_timeout: how long workers may wait until the platform has a place for them, in seconds. None: any time.
        session_address: ``host:port`` that workers reach this session at; the port may be 0 for any.
        worker_ports: first and last port that servers of workers may use; None for any.
        project: files that go to workers which share none with this session: a folder, or a list of files, folders and
            patterns in the working directory, or an empty list. None: what git would track in the folder of the script.
        project_limit: how many MB that may be.
        collect: a pattern, or several, for files in the working directories of such workers, which are brought into
            the run's folder at the end, also after a failure: ``"checkpoints/**"``.
        restarts: how often all ranks are started again after a failure that another attempt may not meet, to go on
            from the script's checkpoint. The attempt's number, from 1, is ``MUSTER_ATTEMPT`` in its environment.
        restart_on: those failures: ``lost`` and ``killed`` workers by default; also ``memory``, ``failed`` (by the
            script), ``crashed`` and ``stalled``.
        from_scratch: whether a script that keeps no checkpoint may begin again from nothing.
        min_workers: with how few workers it starts and goes on, where others cannot be had within ``timeout_seconds``
            (Horovod, MPI, processes); each attempt asks for all of them again. None: with no fewer.
        observers: called with every event, in order, on a thread of its own each, so that a slow one holds up nothing.
            Where 10,000 events wait for it (or 16 MB of output) it is not told of further output, usage, progress and
            transfers, and of nothing else where twice as many do; a ``note`` says how many are left out. The run's end
            waits up to 5 s for it. One that raises is logged and dropped. It may call ``stop()``, which then only asks.
    """

    @_with_advice
    def __init__(
        self,
        job: Job,
        *,
        strategy: str | Strategy = "parameter_server",
        platform: str | Platform | None = None,
        timeout_seconds: float | None = 60,
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
        observers: Iterable[Observer] = (),
    ) -> None:
        request = RunRequest.of_job(
            job,
            strategy=strategy,
            platform=platform,
            timeout_seconds=timeout_seconds,
            run_timeout=run_timeout,
            stall_seconds=stall_seconds,
            queue_timeout=queue_timeout,
            session_address=session_address,
            worker_ports=worker_ports,
            project=project,
            project_limit=project_limit,
            collect=collect,
            restarts=restarts,
            restart_on=restart_on,
            from_scratch=from_scratch,
            min_workers=min_workers,
        )
        self._set_up(request, observers)

    @classmethod
    def of(cls, run: RunRequest | CheckedRun, observers: Iterable[Observer] = ()) -> Cluster:
        """Return the cluster for a request, checked or unchecked."""
        cluster = cls.__new__(cls)
        cluster._set_up(run, observers)
        return cluster

    def _set_up(self, run: RunRequest | CheckedRun, observers: Iterable[Observer]) -> None:
        self._wanted = run
        self._observers = Observers()
        for observer in plain_observers(observers):
            self._observers.add_queued(observer)
        self._execution = Execution(self._observers)
        self._pid = os.getpid()
        self._is_told = False  # whether the caller has been given the outcome

    @without_inner_frames
    def check(self) -> CheckedRun:
        """Check, once, whether the job can be run as described, as ``start`` does first. Starts nothing.

        Raises:
            JobError: it cannot be run as described.
            PlatformUnsupported: this system cannot host the platform, or has no launcher for the strategy.
        """
        if isinstance(self._wanted, RunRequest):
            self._wanted = check(self._wanted)
        return self._wanted

    # -- for users ----------------------------------------------------------------------------------------------------

    @property
    def job(self) -> Job:
        """The job as ``check`` found it, with the script's path, its interpreter and its folder."""
        return self.check().job

    @property
    def strategy(self) -> Strategy:
        """The strategy that makes the workers a cluster."""
        return self.check().strategy

    @property
    def platform(self) -> Platform:
        """The platform of the workers."""
        return self.check().platform

    @property
    def run_id(self) -> str:
        """Id of the run; empty before the start."""
        return self._execution.run_id

    @property
    def run_dir(self) -> Path:
        """Folder of the run, with all logs."""
        return self._execution.run_dir

    def what_became(self) -> str:
        """Return what has become of the run after an interrupt, in words: it may have ended just before."""
        logs = f" Logs: {self.run_dir / 'logs'}" if self.run_id else ""
        outcome = self._execution.outcome
        if self.run_id and outcome is None:
            return f"The run is being stopped (interrupted).{logs}"
        status = outcome.status if outcome else "stopped"
        if status == "stopped":
            return f"The run was stopped (interrupted); no process of it is left.{logs}"
        return f"The run had {status} before the interrupt: muster.open_run({self.run_id!r}) tells of it.{logs}"

    @without_inner_frames
    def start(self) -> Cluster:
        """Launch everything, and return once every server listens or every rank runs.

        Raises:
            JobError: the job cannot be run as described; no worker has been started.
            PlatformError: the platform refused a worker, or cannot host it.
            StartTimeout: not everything was up in time.
            RunFailed: something failed on the way.
        """
        if self.run_id:
            raise JobError("This cluster has been started already.", advice="make another one from the same job")
        if on_background_thread():
            raise JobError("A cluster cannot be started here, on the background thread.", advice="start it on another")
        checked = self.check()
        with self._ending_at_interrupt():
            self._execution.begin(checked)
            _live.add(self)
            _stop_first_at_exit()
            self._execution.ended.when_set(lambda: _live.discard(self))
            self._block_on(self._execution.up.wait)
            if (outcome := self._execution.outcome) and outcome.error:
                self._is_told = True
                raise outcome.error.with_traceback(None)
        return self

    @without_inner_frames
    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended, and return its result.

        Raises:
            RunFailed: naming the worker that failed first, with its traceback or the end of its log.
            RunStopped: it was stopped before it ended.
            StillRunning: it has not ended after ``timeout`` seconds, and goes on. A ``TimeoutError``.
        """
        self._refuse_unless_usable()
        if self._observers.are_calling():
            raise JobError("An observer cannot wait for what it observes.", advice="cluster.stop() only asks there")
        deadline = None if timeout is None else time.monotonic() + plain_seconds("timeout", timeout)
        with self._ending_at_interrupt():
            self._block_on(self._wait_for_end, deadline)
        if self._execution.outcome is None:
            raise StillRunning.after(timeout or 0.0, self.run_id)
        return self.result

    def stop(self) -> None:
        """End the run and wait until nothing of it is left. Does nothing to a run that has ended.

        An observer may call it, too; there it returns at once, and the run ends behind it.
        """
        if not self.run_id or self._pid != os.getpid():
            return
        if on_background_thread() or self._observers.are_calling():
            self._execution.ask_to_stop("by an observer")
            return
        with interrupts.held(lambda number: self._execution.ask_to_stop(AT_ONCE), self.what_became):
            self.ask_to_stop()
            self._block_on(self._wait_for_end)

    def ask_to_stop(self, why: str = "by request") -> None:
        """Ask a run that is under way to end, as ``stop`` does, without waiting for it."""
        self._execution.ask_to_stop(why)

    def interrupt(self, number: int = 1) -> None:
        """Have the run end, without waiting for it; from the second interrupt on without time for the processes to end.

        A signal handler may call this.
        """
        self._execution.ask_to_stop("interrupted" if number == 1 else AT_ONCE)

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the end as ``wait`` does, without blocking the event loop.

        Cancelling ends the run, as an interrupt in a notebook does; the cancellation is raised once nothing is left.
        """
        self._refuse_unless_usable()
        return self._await_end().__await__()

    async def _await_end(self) -> Result:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(ended.set_result, None)

        self._execution.ended.when_set(wake)
        cancelled = 0
        while not ended.done():
            try:
                # In steps: a kernel cancels the cell at an interrupt, but only when its event loop wakes.
                await asyncio.wait([ended], timeout=STEP_SECONDS)
            except asyncio.CancelledError:
                cancelled += 1
                self.interrupt(cancelled)
        if cancelled:
            raise interrupts.cancelled(self.what_became())
        return self.result

    def __enter__(self) -> Cluster:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, raised: BaseException | None, *_: object) -> None:
        if isinstance(raised, KeyboardInterrupt) and self.is_running:
            self.ask_to_stop(str(raised) or "interrupted")
        self.stop()
        error = self._execution.outcome.error if self._execution.outcome else None
        if kind is None and error is not None and not self._is_told and not isinstance(error, RunStopped):
            raise error.with_traceback(None)

    @property
    def result(self) -> Result:
        """The result of a run that has ended. Raises what went wrong, if something did."""
        self._refuse_unless_usable()
        result = self._execution.outcome
        if result is None:
            raise JobError(f"Run {self.run_id} has not ended.", advice="wait() for it first, which returns the result")
        self._is_told = True
        if result.error is not None and not (isinstance(result.error, RunStopped) and self.job.script is None):
            raise result.error.with_traceback(None)  # the frames of the background thread say nothing to the caller
        return result

    @property
    def status(self) -> str:
        """``not started``, ``running``, ``succeeded``, ``failed`` or ``stopped``."""
        outcome = self._execution.outcome
        return outcome.status if outcome else "running" if self.run_id else "not started"

    @property
    def workers(self) -> Workers:
        """The workers as they are now, in launch order; shown as a table."""
        orchestrator = self._execution.orchestrator
        return Workers(orchestrator.state.workers.values() if orchestrator else ())

    @property
    def is_running(self) -> bool:
        """True if it has been started and has not ended."""
        return bool(self.run_id) and self._execution.outcome is None

    @property
    def plan(self) -> Plan:
        """The plan of what is started; with placeholders for addresses as long as these are not known."""
        known = self._execution.orchestrator.plan if self._execution.orchestrator else None
        checked = self.check()
        return known or checked.preview()

    @property
    def command(self) -> str:
        """The command line of the plan, as a person could paste it."""
        return command_line(self.plan)

    def when_over(self, call: Callable[[], object]) -> None:
        """Call ``call`` once nothing of the run is left; at once if it has not been started or has ended.

        While the run goes on it is called later, on the background thread, and must not block.
        """
        if self.is_running:
            self._execution.ended.when_set(call)
        else:
            call()

    @property
    def cluster_spec(self) -> dict[str, list[str]]:
        """Addresses of the TensorFlow servers by role, as ``tf.train.ClusterSpec`` takes them; empty at first."""
        plan = self._execution.orchestrator.plan if self._execution.orchestrator else None
        return {role: list(addresses) for role, addresses in plan.cluster_spec.items()} if plan else {}

    @without_inner_frames
    def logs(self, worker: str | None = None) -> Text:
        """Return the output so far of a worker, a rank (``rank-1``) or the ``launcher``; of all workers by default."""
        return self._recorded().logs(worker)

    def explain(self) -> Text:
        """Return an account of the run, in words: the cause of a failure, the end of that log, and what to try."""
        return self._recorded().explain()

    @without_inner_frames
    def stacks(self) -> Stacks:
        """The Python stacks of all ranks or tasks right now, by rank or worker: where a run hangs."""
        self._refuse_unless_usable()
        orchestrator = self._execution.orchestrator
        if orchestrator is None or not self.is_running:
            return Stacks({})
        return Stacks(result_of(orchestrator.stacks(), seconds=10))

    @without_inner_frames
    def collect(self) -> None:
        """Get what the workers have written so far: their results, their TensorBoard files, and their ranks' logs.

        Nothing has to be got where they share files with this session, nor once the run has ended: then it is here.

        Raises:
            PlatformError: something cannot be got.
        """
        self._refuse_unless_usable()
        orchestrator = self._execution.orchestrator
        if orchestrator is not None and self.is_running:
            result_of(orchestrator.collect())

    @without_inner_frames
    def get(self, worker: str, path: str | Path, to: str | Path | None = None) -> Path:
        """Get a file or a folder from a worker while it runs, and return its path here.

        Args:
            worker: its name, such as ``worker-0``.
            path: relative to the worker's working directory.
            to: the folder here that it comes into, by the same relative path. None: ``collected/<worker>`` in the
                run's folder.

        Raises:
            JobError: the run is not under way, it has no such worker, or the path is not relative.
            PlatformError: there is no such file, or it cannot be got.
        """
        (name,) = patterns("path", path)
        target = self.run_dir / "collected" / worker if to is None else Path(to).expanduser()
        return self._exchange_files(worker, lambda orchestrator: orchestrator.get(worker, name, target))

    @without_inner_frames
    def put(self, path: str | Path, worker: str, to: str | Path | None = None) -> None:
        """Put a file or a folder onto a worker while it runs.

        Args:
            path: of the file or folder here.
            worker: its name, such as ``worker-0``.
            to: its name in the worker's working directory, perhaps with folders. None: its own.

        Raises:
            JobError: the run is not under way, or it has no such worker; or there is nothing at ``path``.
            PlatformError: it cannot be put there.
        """
        source = Path(path).expanduser()
        if not source.exists():
            raise JobError(f"There is no {source} to put onto {worker}.")
        (name,) = patterns("to", source.resolve().name if to is None else to)
        self._exchange_files(worker, lambda orchestrator: orchestrator.put(source, worker, name))

    def _recorded(self) -> Run:
        """Return the record of the run."""
        from muster.records.runs import Run

        return Run(self.run_dir)

    def _exchange_files(self, worker: str, exchange: Callable[[Orchestrator], Coroutine[Any, Any, T]]) -> T:
        """Have the orchestrator get or put files, and wait for that."""
        self._refuse_unless_usable()
        orchestrator = self._execution.orchestrator
        if orchestrator is None or not self.is_running:
            raise JobError(
                f"Run {self.run_id} is not under way: files go to and from workers while they run.",
                advice=ArgumentText(
                    f"what it has left is in {self.run_dir}; ", Argument("collect"), " brings more at the end"
                ),
            )
        if worker not in orchestrator.state.members:
            known = ", ".join(orchestrator.state.members) or "none yet"
            raise JobError(f"Run {self.run_id} has no worker {worker!r} that can be reached.", advice=f"it has {known}")
        try:
            return result_of(exchange(orchestrator))
        except OSError as error:
            raise PlatformError(f"Files of {worker} could not be copied: {in_words(error)}.", worker=worker) from error

    def subscribe(self, observer: Observer, *, at_once: bool = False) -> Callable[[], None]:
        """Call ``observer`` with every event from now on. Returns a function that ends that.

        Args:
            at_once: whether on the background thread, which all runs need, in place of a thread of its own: for one
                that never waits for anything, as dashboards do not.
        """
        if at_once:
            self._observers.add(observer)
        else:
            self._observers.add_queued(observer)
        return functools.partial(self._observers.drop, observer)

    def __repr__(self) -> str:
        if isinstance(self._wanted, RunRequest):
            return f"<Cluster: {self.status}>"  # showing it must not look for files, or fail
        job, strategy, members = self._wanted.job, self._wanted.strategy, self._wanted.members
        return f"<Cluster {self.run_id or job.name}: {strategy.name}, {len(members)} workers, {self.status}>"

    # -- waiting on the calling thread --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _ending_at_interrupt(self) -> Iterator[None]:
        """Make an interrupt end the run, and raise the interrupt once nothing of the run is left."""
        try:
            with interrupts.held(self.interrupt, self.what_became):
                yield
        except KeyboardInterrupt as interrupt:  # here at once where interrupts could not be held
            self.ask_to_stop(str(interrupt) or "interrupted")
            self.stop()
            raise

    def _block_on(self, wait: Callable[[float], bool], deadline: float | None = None) -> None:
        """Wait in short steps, so that interrupts are handled between them; until the deadline, or while the run ends.

        ``wait`` waits for some seconds and returns whether the wait is over.
        """
        while True:
            remaining = STEP_SECONDS if deadline is None else deadline - time.monotonic()
            if remaining <= 0 and self._execution.stop_reason is None:
                return
            if wait(min(STEP_SECONDS, max(remaining, 0.01))):
                return

    def _refuse_unless_usable(self) -> None:
        """Raise JobError where a wait would never end: before the start, or on the wrong thread or process."""
        if on_background_thread():
            raise JobError("The background thread cannot wait for a run.", advice="cluster.stop() only asks there")
        if not self.run_id:
            raise JobError("This cluster has not been started.", advice="cluster.start(), or with cluster: ...")
        if self._pid != os.getpid():
            raise JobError("This cluster belongs to the process that this one was forked from.")

    def _wait_for_end(self, seconds: float) -> bool:
        return self._execution.ended.wait(seconds)


_live: set[Cluster] = set()


def running_clusters(name: str | None = None) -> list[Cluster]:
    """Return this session's clusters that have been started and have not ended: all, or those whose job has a name."""
    return [cluster for cluster in list(_live) if cluster.is_running and name in (None, cluster.job.name)]


in_forked_children(_live.clear)  # the clusters and their background thread belong to the parent process


def _stop_first_at_exit() -> None:
    """Have the clusters stopped before anything is closed at the session's end that was made so far, as logins are."""
    atexit.unregister(_stop_all)
    atexit.register(_stop_all)  # the last that is registered is the first that is called


def _stop_all() -> None:
    """End all running clusters when the session ends, so that they are recorded as stopped."""
    clusters = list(_live)

    def hurry() -> None:
        for cluster in clusters:
            cluster._execution.ask_to_stop(AT_ONCE)

    with interrupts.termination_held(hurry):
        for cluster in clusters:
            cluster._execution.ask_to_stop("its session has ended, and has not waited for it")
        for cluster in clusters:
            cluster.stop()
