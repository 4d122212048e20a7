"""The orchestrator of one run, from launch to the last process gone, on the session's event loop.

launching   the platform launches one agent per worker
connecting  the agents say hello with their addresses
starting    the strategy plans every process; they are started, and servers must listen
training    until the processes that complete the run have ended, or something fails
ending      all remaining processes are stopped, and the platform releases everything
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from muster import events
from muster.agent import wire
from muster.errors import JobError, MusterError, RunStopped, StartTimeout
from muster.failure import causes
from muster.failure.failures import OF_WORKER, Failure, FailureKind
from muster.job import Plan, Process, Status
from muster.platforms.base import Storage
from muster.pools.pool import AgentPool
from muster.run.arrival import Arrival
from muster.run.context import RunContext
from muster.run.copying import copy
from muster.run.ending import Ending
from muster.run.launcher import RunLauncher
from muster.run.logins import with_reachable_sshd
from muster.run.milestones import Milestones
from muster.run.processes import Source
from muster.run.request import AT_ONCE
from muster.run.settling import SETTLE_SECONDS, Settling
from muster.run.silence_watch import SilenceWatch
from muster.run.state import RunState
from muster.run.streams import Stream, Streams
from muster.run.tasks import Tasks
from muster.run.watch import PlatformWatch
from muster.runtime import clock
from muster.runtime.background import in_thread
from muster.text.arguments import Argument, ArgumentText
from muster.text.names import process_label
from muster.text.traceback import with_cells

if TYPE_CHECKING:  # what only runs need that fail, or whose workers share no files
    from muster.run.exchange import Exchange
    from muster.run.reasons import Reasons

Answer = TypeVar("Answer")

STACKS_SECONDS = 5.0
HEARING_SECONDS = 1.0  # after the end of a launcher, for messages of agents about the ranks that it has started
CATCH_UP_SECONDS = 0.1  # how long it takes to read messages that have arrived


class Orchestrator:
    """Decides what happens in a run, and sends agents their orders.

    Args:
        context: what to run, with its folders and the specs of its workers.
        pool: the run's workers.
        state: the state of the workers.
        exchange: transfers files to and from workers that share none with the session; None where they share files.
        on_plan: called with the plan once it is made, on a thread.
        on_up: called when every server listens or every rank runs.

    Attributes:
        state: the state of its workers.
        plan: the plan of all processes; None until the workers' addresses are known.
        cause: the failure that ended the run; None where no failure did.
        stay: whether the run has ended but some of its workers are kept for another attempt.
        watch: polls the platform for what the agents cannot report.
        streams: open streams to commands in its workers and to ports of its workers.
        timings: seconds that each phase took.
    """

    def __init__(
        self,
        context: RunContext,
        pool: AgentPool,
        state: RunState,
        exchange: Exchange | None = None,
        *,
        on_plan: Callable[[Plan], None],
        on_up: Callable[[], None],
    ) -> None:
        self.context = context
        self.job = context.job
        self.strategy = context.strategy
        self.platform = context.platform
        self.limits = context.limits
        self.facts = context.facts
        self.pool = pool
        self.state = state
        self.plan: Plan | None = None
        self.cause: Failure | None = None
        self.stay = False
        self.timings: dict[str, float] = {}
        self._on_plan = on_plan
        self._on_up = on_up
        self._tasks = Tasks(state.changed.set)
        self._launcher = RunLauncher(self._log("launcher"), self.facts, pool, self._launcher_ended, self._tasks)
        self._starter: str | None = None  # name of the launcher that starts the ranks
        self._stop_reason: str | None = None
        self._phase: tuple[str, float] | None = None
        self._ending = Ending(pool, state, self._launcher)
        self.exchange = exchange
        if exchange is not None:
            self._ending.collect = self.collect
            exchange.owner_of = state.processes.owner_of
            exchange.done_on = state.processes.done_on
        self.watch = PlatformWatch(pool, state)
        self._arrival = Arrival(context, pool, state, self.watch)
        self._settling = Settling(state, pool, self.watch)
        self.streams = Streams(pool.send)
        pool.listen(self._on_message, self._on_lost, self._on_cut, self._on_back, self._tasks.fail)
        if exchange is not None:
            exchange.listen()

    # -- the phases ---------------------------------------------------------------------------------------------------

    async def run(
        self,
        is_tried_again: Callable[[MusterError], bool] = lambda error: False,
        may_restart_alone: Callable[[Failure], bool] = lambda failure: False,
    ) -> None:
        """Run the attempt from launch to end. Return when it has succeeded and nothing of it is left.

        Args:
            is_tried_again: called once with the error that ended the attempt. Where it returns true, only the processes
                are ended, and the workers stay for the next attempt, unless none of them could go on (``stay``).
            may_restart_alone: called with the failure of a process that could be started again while the others go on;
                returns whether it may.

        Raises:
            MusterError: the error that ended the attempt; nothing of it is left then, but for workers that stay.
            Exception: a defect of Muster, also one that ended another task of the run.
        """
        began = clock.now()
        watching = self._tasks.start(self.watch.run(), "watch over the platform")
        listening = self._tasks.start(SilenceWatch(self.pool, self.state).run(), "search for silent workers")
        self.state.restarts = lambda failure: self._restart_alone(failure, may_restart_alone)
        try:
            await self._launch()
            await self._connect()
            milestones = await self._start()
            self._on_up()
            await self._train(milestones)
        except MusterError as error:
            self.stay = self._tasks.error is None and is_tried_again(error)
            raise
        finally:
            watching.cancel()
            listening.cancel()
            self._enter("ending")
            try:
                await self._ending.stop_processes(self.plan)
                self.stay = self.stay and bool(self.fit)
                if not self.stay:
                    await self._ending.dismiss()
            except BaseException:
                self.stay = False
                raise
            finally:
                if not self.stay:
                    await self.release()
                await self._tasks.cancel()
                if self.state.ends:
                    self.state.ends.close()
                self._leave_phase()
                if self.state.first_step_at is not None:
                    self.timings["first_step"] = self.state.first_step_at - began
        if self._tasks.error is not None:
            raise self._tasks.error

    async def release(self) -> None:
        """End the workers that have stayed for another attempt, when that attempt is not made."""
        self.stay = False
        await self._ending.release()

    @property
    def fit(self) -> list[str]:
        """Names of the workers that could take part in another attempt: they are connected and run no process.

        A worker that counts as lost is not among them, even if it is connected: it may be about to go. So may all be
        with its machine, on some platforms.
        """
        if not self.platform.machines_fail_alone and any(
            failure.kind is FailureKind.LOST for failure in self.state.failures
        ):
            return []
        # Workers whose agents have ended their ranks are fit: agents do so when horovodrun has lost another worker.
        unfit = self._lost | self.state.preempted
        return [
            name
            for name in self.state.members
            if name in self.pool.connected and name not in unfit and not self.state.processes.run_on(name)
        ]

    @property
    def _lost(self) -> set[str | None]:
        """Names of the workers that count as lost."""
        return {failure.worker for failure in self.state.failures if failure.kind in OF_WORKER}

    async def _launch(self) -> None:
        self._enter("launching")
        self._raise_if_over()
        launcher = await self._asked("said how it launches", self.strategy.launcher_for, self.job, self.facts)
        self._starter = launcher.name if launcher is not None and launcher.starts_ranks else None
        await self._launcher.prestart(launcher)
        try:
            submission = asyncio.ensure_future(self._arrival.launch())
            await self._is_done(submission)
            submission.result()
        except TimeoutError:
            raise await self._workers_missing() from None

    async def _connect(self) -> None:
        self._enter("connecting")
        if not await self._until(lambda: self.state.has_enough, self._arrival.deadline):
            raise await self._workers_missing()
        began, deadline = clock.now(), clock.deadline_in(self.limits.start)  # for workers that the run can do without
        if not await self._until(lambda: not self.state.are_any_missing, lambda: deadline):
            text = f"not there {self.limits.start:g} s after the others"
            self.state.leave_out(self.state.missing, text)
        self._arrival.not_counted += clock.now() - began
        for name in self.state.left_out:  # a worker that connects from now on would not be in the plan
            self._tasks.start(self.pool.give_up(name), f"end of {name}")
        for name, member in self.state.members.items():
            self.state.move(name, Status.RUNNING, address=member.host, running_at=clock.wall_time())

    async def _start(self) -> Milestones:
        self._enter("starting", self._starter)
        members = [self.state.members[name] for name in self.state.specs if name in self.state.members]
        facts = self.facts
        if facts.launcher_at in self.state.left_out:
            facts = replace(facts, launcher_at=members[0].name)
        if self._may_do_without_ssh():
            reachable = await with_reachable_sshd(self.state.members, facts.launcher_at, self.streams)
            self.state.members.update(reachable)
            members = [reachable[member.name] for member in members]
        self.state.is_planned = True
        self.plan = plan = await self._asked("made its plan", self.strategy.plan, self.job, members, facts)
        if not plan.starter:
            self.state.servers = frozenset(plan.processes) - frozenset(plan.completed_by)
        self.state.processes.place(plan.ranks, are_ordered=plan.starter is None)
        await in_thread(self._on_plan, plan)
        for note in plan.notes:
            self.state.emit(events.Note(note))
        self._raise_if_over()
        if self.exchange is not None:
            await self._ship(self.exchange)
        if plan.starter:
            for name, process in plan.processes.items():
                env = self._own_env(name, process.env)
                self.pool.send(name, wire.Expect(process.argv, env, process.cwd, self._splits(name)))
        await self._launcher.give_arguments(plan)
        if not plan.starter:
            for name, rank, process in plan.starts():
                self._start_process(name, rank, process)
        for name, port in plan.servers.items():
            self.pool.send(name, wire.Watch(port))
        milestones = Milestones(plan, self.state, self._launcher, self.limits.stall if self.job.script else None)
        if not await self._until(milestones.is_up, self._arrival.deadline):
            raise await self._reasons.not_up(plan)
        return milestones

    def _start_process(self, worker: str, rank: int | None, process: Process) -> None:
        env = self._own_env(worker, process.env)
        self.pool.send(worker, wire.Start(process.argv, env, process.cwd, rank, self._splits(worker)))

    def _restart_alone(self, failure: Failure, is_allowed: Callable[[Failure], bool]) -> bool:
        """Start a killed process again, if the others can go on without it meanwhile; return whether that was done.

        The others find it at the same address as before. So its agent must still be there.
        """
        plan, worker = self.plan, failure.worker
        if plan is None or worker is None or worker not in plan.restarted_alone or worker not in self.pool.connected:
            return False
        is_killed = failure.kind in (FailureKind.SIGNAL, FailureKind.MEMORY)
        # A platform that ends a whole worker signals all of its processes: the agent ends, too, in a moment.
        is_going = failure.was_asked_to_end or worker in self.state.preempted
        if self._stop_reason or not is_killed or is_going or self.state.failures or not is_allowed(failure):
            return False
        self._start_process(worker, failure.rank, plan.processes[worker])
        self.pool.send(worker, wire.Watch(plan.servers[worker]))
        return True

    def _may_do_without_ssh(self) -> bool:
        """Return whether the strategy can do without ssh if workers' sshd cannot be reached, which they may not be."""
        has_choice = self.strategy.uses_ssh and not self.strategy.needs_ssh and not self.facts.no_ssh
        return has_choice and self.platform.storage is not Storage.ALL  # else all of them are on this machine

    async def _ship(self, exchange: Exchange) -> None:
        """Send the workers all files that they need, and raise as ``_until`` does if the run fails meanwhile."""
        began = clock.now()
        shipping = asyncio.ensure_future(exchange.ship(list(self.state.members), self.state.emit))
        await self._is_done(shipping)  # without a deadline: each transfer limits how long a worker may be silent
        self._arrival.not_counted += clock.now() - began
        error = shipping.exception()
        if error is not None:  # it may be the result of a failure that becomes known only now
            deadline = clock.now() + self.platform.explain_seconds + SETTLE_SECONDS
            await self._until(lambda: False, lambda: deadline)
            raise error

    def _own_env(self, worker: str, env: Mapping[str, str]) -> dict[str, str]:
        """Return those variables of a process that its worker's agent does not have from its own launch."""
        known = self.state.specs[worker].env
        return {name: value for name, value in env.items() if known.get(name) != value}

    def _splits(self, worker: str) -> bool:
        """Return whether each rank of a worker gets a log of its own."""
        return self.state.processes.expected(worker) > 1

    async def _train(self, milestones: Milestones) -> None:
        """Wait until the run is complete; the start of its processes, or of their launcher, was ordered before."""
        deadline = clock.deadline_in(self.limits.run)
        if deadline is not None:
            deadline -= self.context.checked.trained
        processes = self.state.processes
        await self._train_until(lambda: bool(processes.started) or milestones.has_returned(), milestones, deadline)
        self._enter("training")
        await self._train_until(milestones.has_returned, milestones, deadline)
        for name in milestones.plan.processes:
            self.pool.send(name, wire.Release())
        await self._train_until(milestones.is_decided, milestones, deadline)

    async def _train_until(self, done: Callable[[], bool], milestones: Milestones, deadline: float | None) -> None:
        while not await self._until(done, lambda: min(filter(None, (deadline, milestones.stalls_at())), default=None)):
            now = clock.now()
            if deadline and now >= deadline:
                raise await self._reasons.timed_out(await self.stacks())
            # If this process itself was suspended, it has yet to read what the workers sent meanwhile.
            await asyncio.sleep(CATCH_UP_SECONDS)
            stalls_at = milestones.stalls_at()
            if stalls_at and now >= stalls_at:
                raise await self._stalled(milestones.by_silence())

    def _enter(self, phase: str, launcher: str | None = None) -> None:
        self._leave_phase()
        self._phase = (phase, clock.now())
        self.state.emit(events.RunPhase(phase, launcher))

    def _leave_phase(self) -> None:
        if self._phase:
            name, since = self._phase
            self.timings[name] = clock.now() - since
            self._phase = None

    # -- requests while it runs ---------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the run; if the reason is ``AT_ONCE``, give its processes no time to end by themselves."""
        self._stop_reason = reason
        self._ending.is_urgent = reason == AT_ONCE
        self.state.changed.set()

    async def stacks(self) -> dict[str, str]:
        """Return the Python stacks of all processes, by rank or worker."""
        self.state.stacks.clear()
        asked = set(self.state.processes.running)
        for name in {worker for worker, _ in asked}:
            self.pool.send(name, wire.AskStacks())
        # Those that end meanwhile do not answer.
        await self.state.wait_while(
            lambda: not asked.isdisjoint({*self.state.processes.running} - {*self.state.stacks}), STACKS_SECONDS
        )
        return {process_label(*source): with_cells(answer.text) for source, answer in self.state.stacks.items()}

    async def collect(self) -> None:
        """Get the files that workers have written so far, if they share none with the session. Raises PlatformError."""
        if self.exchange is not None:
            lost = self._lost
            gone = [name for name, worker in self.state.workers.items() if worker.status.is_final or name in lost]
            await self.exchange.collect(gone)

    async def get(self, worker: str, path: str, target: Path) -> Path:
        """Get a file or a folder from a worker's working directory into a folder, and return its path there.

        Raises:
            PlatformError: there is no such file, or it cannot be got.
            OSError: it cannot be written.
        """
        if self.exchange is not None:
            return await self.exchange.get(worker, path, target)
        return await in_thread(copy, Path(self.job.cwd, path), target / path)

    async def put(self, source: Path, worker: str, to: str) -> None:
        """Put a file or a folder into a worker's working directory, by the name ``to``. Raises as ``get``."""
        if self.exchange is not None:
            await self.exchange.put(source, worker, to)
        else:
            await in_thread(copy, source, Path(self.job.cwd, to))

    async def open_stream(self, name: str, order: wire.Execute | wire.Dial) -> Stream:
        """Run a command on a worker, with the environment and folder of its script, or connect to one of its ports.

        Args:
            name: name of the worker, or of a rank on it such as ``rank-3``: the command then also gets that rank's own
                environment, as far as the plan knows it. So it does on a worker with only one rank.
            order: the command or the port.

        Raises:
            JobError: there is no such worker.
            PlatformError: the worker does not answer.
        """
        ranks = self.plan.ranks if self.plan else {}
        meant = [rank for rank, on in ranks.items() if name in (f"rank-{rank}", on)]
        worker = ranks[meant[0]] if meant else name
        if worker not in self.state.members:
            known = ", ".join(self.state.members) or "none yet"
            raise JobError(f"Run {self.context.run_id} has no worker {name!r}: there is {known}.")
        process = self.plan.processes.get(worker) if self.plan else None
        if isinstance(order, wire.Execute) and process is not None:
            own = self.plan.rank_env.get(meant[0], {}) if self.plan and len(meant) == 1 else {}
            order = order._replace(env={**process.env, **own, **order.env}, cwd=process.cwd)
        return await self.streams.open(worker, order)

    # -- notifications ------------------------------------------------------------------------------------------------

    def _on_message(self, worker: str, message: Any) -> None:
        kind = type(message)
        if worker in self.state.left_out or (self._is_of_before(worker) and kind is not wire.Hello):
            return
        if kind is wire.LauncherOutput or kind is wire.LauncherExited:
            self._launcher.on_message(worker, message)
        elif kind in wire.OF_STREAMS:
            self.streams.on_message(worker, message)
        else:
            self.state.on_message(worker, message)
            if isinstance(message, wire.Preempted):  # workers can only save a checkpoint together
                for name in self.state.members:
                    self.pool.send(name, wire.Notice())

    def _on_lost(self, worker: str) -> None:
        self.streams.on_lost(worker)
        if not self._is_of_before(worker):
            self.watch.on_lost(worker)

    def _on_cut(self, worker: str) -> None:
        if not self._is_of_before(worker):
            self.watch.on_cut(worker)

    def _on_back(self, worker: str) -> None:
        if not self._is_of_before(worker):
            self.watch.on_back(worker)

    def _is_of_before(self, worker: str) -> bool:
        """Return whether messages of a worker come from a predecessor, left over from the attempt before.

        That one stays connected until it is retired; nothing that it sends concerns this attempt.
        """
        return worker not in self.state.members

    def _launcher_ended(self, code: int, is_heard_out: bool = False) -> None:
        started = self.state.processes.count_started()
        is_done = self.plan is not None and self.plan.starter and started >= len(self.plan.ranks)
        if not code and not is_done and not is_heard_out:  # agents may have yet to report ranks that it started
            asyncio.get_running_loop().call_later(HEARING_SECONDS, self._launcher_ended, code, True)
            return
        if is_heard_out and self.state.ending:
            return
        if code or not is_done:
            signal = -code if code < 0 else None
            launcher = self.plan.launcher if self.plan else None
            if launcher and any(failure.worker == launcher.where for failure in self.state.ended_unasked()):
                self.state.changed.set()
                return  # its agent is ending everything on its own, and the reason for that is reported next
            name = launcher.title if launcher else ""
            exit_code = None if signal else code
            self.state.fail(
                Failure(FailureKind.LAUNCHER, clock.now(), message=name, exit_code=exit_code, signal=signal)
            )
            for worker in self.state.preempted.difference(self.pool.connected):
                self.watch.on_lost(worker)  # once more: it left when its processes had ended well, which said nothing
        self.state.changed.set()

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _asked(self, what: str, function: Callable[..., Answer], *args: Any) -> Answer:
        """Call a method of the strategy on a thread, as a user's strategy may take long; return its answer.

        Args:
            what: words for what the strategy has done once it has answered, for an error.

        Raises:
            StartTimeout: it takes longer than the time limit of a start.
        """
        deadline = clock.deadline_in(self.limits.start)
        answer = asyncio.ensure_future(in_thread(function, *args))
        if await self._is_done(answer, deadline):
            return answer.result()
        name, limit = self.strategy.name, self.limits.start
        raise StartTimeout(
            f"The strategy {name} has not {what} within {limit:g} s.",
            advice=ArgumentText("a longer ", Argument("timeout_seconds"), ", if it needs that"),
        )

    async def _is_done(self, work: asyncio.Future[Any], deadline: float | None = None) -> bool:
        """Wait for ``work`` and return whether it has ended, while failures of the run are still noticed.

        Work that has not ended by the deadline, or when something fails, is cancelled. Raises as ``_until`` does.
        """
        work.add_done_callback(lambda _: self.state.changed.set())
        try:
            return await self._until(work.done, lambda: deadline)
        finally:
            work.cancel()

    async def _until(self, done: Callable[[], bool], get_deadline: Callable[[], float | None]) -> bool:
        """Wait until ``done`` returns true or the deadline, which may change meanwhile; return whether it is done.

        Raises:
            MusterError: something failed meanwhile: the error for the cause; or RunStopped.
        """
        while True:
            self._raise_if_over()
            if self.state.failures:
                raise await self._cause()
            if done():
                return True
            deadline = get_deadline()
            if deadline is not None and clock.now() >= deadline:
                return False
            await self.state.changed.next(deadline)

    def _raise_if_over(self) -> None:
        if self._tasks.error is not None:
            raise self._tasks.error
        if self._stop_reason:
            raise RunStopped(f"The run was stopped ({self._stop_reason}).", log=self._logs())

    # -- errors -------------------------------------------------------------------------------------------------------

    @property
    def _reasons(self) -> Reasons:
        from muster.run.reasons import Reasons

        return Reasons(self.context, self.state)

    async def _cause(self) -> MusterError:
        """Return the error for the failure that explains the others, once it is settled which one that is."""
        settled = self._settling.cause(lambda: bool(self._stop_reason), lambda: self._tasks.error is not None)
        # Look for suspended ranks at once: when one rank gives another one up, a launcher soon ends both.
        stopped, cause = await asyncio.gather(self._stopped(causes.root_cause(self.state.failures)), settled)
        self.cause = cause
        stopped = stopped or await self._stopped(cause)
        if stopped is not None and cause.is_echo:
            return stopped
        return await self._reasons.explain(cause, self.plan)

    async def _stopped(self, cause: Failure | None) -> MusterError | None:
        """Return the error for a process that is suspended; None if none is, or if the cause is no mere consequence."""
        if self._stop_reason or not self._settling.is_hearsay(cause):
            return None
        running = self.state.processes.running
        stacks = await self.stacks()
        for source, process in running.items():
            if source in self.state.stacks and self.state.stacks[source].is_stopped:
                return await self._reasons.stalled([source], stacks, clock.now() - process.heard_at)
        return None

    async def _workers_missing(self) -> MusterError:
        return await self._reasons.workers_missing(self._arrival.submitted_at, self.watch.trouble)

    async def _stalled(self, by_silence: list[tuple[float, Source]]) -> MusterError:
        now, limit = clock.now(), self.limits.stall or 0.0
        silent = [source for heard_at, source in by_silence if now - heard_at >= limit / 2]
        return await self._reasons.stalled(silent, await self.stacks())

    def _log(self, name: str) -> Path:
        return self._logs() / f"{name}.log"

    def _logs(self) -> Path:
        return self.facts.run_dir / "logs"
