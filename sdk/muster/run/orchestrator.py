"""The orchestrator of one run, from launch to the last process gone, on the session's event loop.

launching   the platform launches one agent per worker
connecting  the agents say hello with their addresses
starting    the strategy plans every process; they are started, and servers must listen
training    until those that decide have ended, or something fails
ending      all that is left is stopped, and the platform releases everything
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from muster.agent import wire
from muster.agent.places import resolve
from muster.errors import MusterError, RunStopped
from muster.events import EventKind
from muster.failure import causes
from muster.failure.causes import Failure, FailureKind
from muster.failure.diagnosis import who
from muster.job import Plan, Process, Status
from muster.pools.pool import Pool
from muster.run.ending import Ending
from muster.run.exchange import Exchange
from muster.run.launcher import LauncherProcess
from muster.run.reasons import Reasons
from muster.run.request import RunContext
from muster.run.state import RunState, Source
from muster.run.tasks import Tasks
from muster.run.watch import PlatformWatch
from muster.runtime import clock
from muster.runtime.background import in_thread
from muster.security.ssh import write_private

logger = logging.getLogger("muster")

SETTLE_SECONDS = 1.0  # how long a first failure waits for one that explains it, and longer while the platform is asked
STACKS_SECONDS = 2.0
CATCH_UP_SECONDS = 0.1  # how long it takes to read what has come
AT_ONCE = "at once"  # reason of a stop that leaves processes no time to end by themselves


class Orchestrator:
    """One run.

    Args:
        context: what to run, with its folders and the specs of its workers.
        pool: the workers that it borrows.
        state: what is known of the workers.
        exchange: brings files to workers that share none with the session, and back; None where they share them.
        on_plan: called with the plan once it is made, on a thread.
        on_up: called when every server listens or every rank runs.

    Attributes:
        state: what is known of its workers.
        plan: everything it starts; None until the workers' addresses are known.
        watch: learns from the platform what the workers cannot say.
        timings: seconds that each phase took.
    """

    def __init__(
        self,
        context: RunContext,
        pool: Pool,
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
        self.timings: dict[str, float] = {}
        self._on_plan = on_plan
        self._on_up = on_up
        self._tasks = Tasks(state.changed.set)
        self._launcher = LauncherProcess(self._log("driver"), self._launcher_ended, self._tasks)
        self._stop_reason: str | None = None
        self._submitted_at = 0.0
        self._phase: tuple[str, float] | None = None
        self._reasons = Reasons(context, state)
        self._ending = Ending(pool, state, self._launcher)
        self._exchange = exchange
        if exchange is not None:
            self._ending.collect = self.collect
        self.watch = PlatformWatch(pool, state)
        pool.listen(state.on_message, self.watch.on_lost, self.watch.on_cut, self.watch.on_back, self._tasks.fail)

    # -- the phases ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run it from launch to its end. Returns when it has succeeded and nothing of it is left.

        Raises:
            MusterError: whatever ended the run otherwise, once nothing of it is left.
            Exception: a defect of Muster's, also where it has ended a task beside this one.
        """
        began = clock.now()
        watching = self._tasks.start(self.watch.run(), "watch over the platform")
        try:
            await self._launch()
            await self._connect()
            await self._start()
            self._on_up()
            await self._train()
        finally:
            watching.cancel()
            self._enter("ending")
            try:
                await self._ending.stop_processes(self.plan)
            finally:
                await self._ending.release()
                await self._tasks.cancel()
                self._leave_phase()
                if self.state.first_step_at is not None:
                    self.timings["first_step"] = self.state.first_step_at - began
        if self._tasks.error is not None:
            raise self._tasks.error

    async def _launch(self) -> None:
        self._enter("launching")
        self._raise_if_over()
        launcher = self.strategy.launcher(self.job, self.facts)
        if launcher:
            await self._launcher.start(Process(self._resolved(launcher.prestart), launcher.env, launcher.cwd))

        self._submitted_at = clock.now()
        try:
            specs = list(self.state.specs.values())
            submission = asyncio.ensure_future(self.pool.submit(specs, self.context.run_id, self.limits.start))
            submission.add_done_callback(lambda _: self.state.changed.set())
            try:
                await self._until(submission.done, lambda: None)
                await submission
            finally:
                submission.cancel()
        except TimeoutError:
            raise await self._workers_missing() from None
        self.state.submitted(self.pool.handles, self._submitted_at)

    async def _connect(self) -> None:
        self._enter("connecting")
        if not await self._until(lambda: not self.state.missing, self._start_deadline):
            raise await self._workers_missing()
        for name, member in self.state.members.items():
            self.state.move(name, Status.RUNNING, address=member.host, running_at=clock.wall_time())

    def _start_deadline(self) -> float | None:
        """Return the time at which the start will have taken too long.

        The limit of each worker that has not said hello counts from when the platform had a place for it; once all
        have, that of the last counts. Workers that are queued have a limit of their own; but a platform that cannot be
        asked about them for as long as a start may take counts as lost.
        """
        queued, missing = self.state.queued, self.state.missing
        deadlines = [self._submitted_at + self.limits.queue] if queued and self.limits.queue else []
        if self.limits.start:
            if queued and self.watch.silent_since is not None:
                deadlines.append(self.watch.silent_since + self.limits.start)
            placed = [self.state.placed_at(name) for name in missing or self.state.specs if name not in queued]
            chosen = min if missing else max
            deadlines += [chosen(placed) + self.limits.start] if placed else []
        return min(deadlines, default=None)

    async def _start(self) -> None:
        self._enter("starting")
        self.plan = plan = self.strategy.plan(
            self.job, [self.state.members[name] for name in self.state.specs], self.facts
        )
        if not plan.launcher:
            self.state.servers = frozenset(plan.processes) - frozenset(plan.decides)
        self.state.expected = Counter(plan.ranks.values())
        await in_thread(self._write_files, plan)
        self._raise_if_over()
        if self._exchange is not None:
            await self._ship(self._exchange)
        if plan.launcher:
            for name, process in plan.processes.items():
                self.pool.send(name, wire.Expect(process.argv, dict(process.env), process.cwd, self._splits(name)))
            self._launcher.go(self._resolved(plan.launcher.argv))
        else:
            for name, rank, process in plan.starts():
                order = wire.Start(process.argv, dict(process.env), process.cwd, rank, self._splits(name))
                self.pool.send(name, order)
        for name, port in plan.servers.items():
            self.pool.send(name, wire.Watch(port))
        if not await self._until(self._is_up, self._start_deadline):
            raise await self._reasons.not_up(plan)

    async def _ship(self, exchange: Exchange) -> None:
        """Have everything brought to the workers that these need, while it is watched how they are."""
        shipping = asyncio.ensure_future(exchange.ship())
        shipping.add_done_callback(lambda _: self.state.changed.set())
        try:
            if not await self._until(shipping.done, self._start_deadline):
                raise await self._reasons.not_up(self._planned())
            error = shipping.exception()
            if error is not None:  # it may be the echo of a failure that is heard of next
                deadline = clock.now() + self.platform.explain_seconds + SETTLE_SECONDS
                await self._until(lambda: False, lambda: deadline)
                raise error
        finally:
            shipping.cancel()

    def _resolved(self, argv: Sequence[str]) -> tuple[str, ...]:
        """A command line for the launcher, which runs here, with the paths of the places that it names."""
        return tuple(resolve(word, self.facts.places) for word in argv)

    def _splits(self, worker: str) -> bool:
        """Return whether each rank of a worker gets a log of its own."""
        return self.state.expected.get(worker, 1) > 1

    def _write_files(self, plan: Plan) -> None:
        for path, text in plan.files.items():
            write_private(self.facts.scratch / path, text)
        self._on_plan(plan)

    async def _train(self) -> None:
        self._enter("training")
        deadline = clock.deadline_in(self.limits.run)
        await self._train_until(self._has_returned, deadline)
        for name in self._planned().processes:
            self.pool.send(name, wire.Release())
        await self._train_until(self._is_decided, deadline)

    async def _train_until(self, done: Callable[[], bool], deadline: float | None) -> None:
        while not await self._until(done, lambda: min(filter(None, (deadline, self._stalls_at())), default=None)):
            now = clock.now()
            if deadline and now >= deadline:
                raise await self._reasons.timed_out(await self.stacks())
            # Where this process itself was suspended it has yet to read what the workers said meanwhile.
            await asyncio.sleep(CATCH_UP_SECONDS)
            stalls_at = self._stalls_at()
            if stalls_at and now >= stalls_at:
                raise await self._stalled()

    def _enter(self, phase: str) -> None:
        self._leave_phase()
        self._phase = (phase, clock.now())
        self.state.emit(EventKind.RUN_PHASE, phase=phase)

    def _leave_phase(self) -> None:
        if self._phase:
            name, since = self._phase
            self.timings[name] = clock.now() - since
            self._phase = None

    # -- requests while it runs ---------------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the run; with ``AT_ONCE`` as the reason, without time for its processes to end by themselves."""
        self._stop_reason = reason
        self._ending.is_urgent = reason == AT_ONCE
        self.state.changed.set()

    async def stacks(self) -> dict[str, str]:
        """Python stacks of all processes, by rank or worker."""
        self.state.stacks.clear()
        asked = set(self.state.running)
        for name in {worker for worker, _ in asked}:
            self.pool.send(name, wire.AskStacks())
        await self.state.wait_while(lambda: len(self.state.stacks) < len(asked), STACKS_SECONDS)
        return {who(*source): answer.text for source, answer in self.state.stacks.items()}

    async def collect(self) -> None:
        """Get what workers that share no files with the session have written so far. Raises PlatformError."""
        if self._exchange is not None:
            gone = [name for name, worker in self.state.workers.items() if worker.status.is_final]
            await self._exchange.collect(gone)

    # -- notifications ------------------------------------------------------------------------------------------------

    def _launcher_ended(self, code: int) -> None:
        has_started_all = self.plan is not None and len(self.state.started) >= len(self.plan.ranks)
        if code or not has_started_all:
            signal = -code if code < 0 else None
            name = self.plan.launcher.name if self.plan and self.plan.launcher else ""
            exit_code = None if signal else code
            self.state.fail(
                Failure(FailureKind.LAUNCHER, clock.now(), message=name, exit_code=exit_code, signal=signal)
            )
        self.state.changed.set()

    # -- waiting ------------------------------------------------------------------------------------------------------

    async def _until(self, done: Callable[[], bool], get_deadline: Callable[[], float | None]) -> bool:
        """Wait until ``done``, or until the deadline has passed, which may change meanwhile; whether it is done.

        Raises:
            MusterError: the cause of a failure meanwhile; RunStopped.
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

    def _is_up(self) -> bool:
        plan, state = self._planned(), self.state
        has_all_ranks = {rank for _, rank in state.started} >= set(plan.ranks)
        if plan.launcher:
            return has_all_ranks
        has_started = has_all_ranks and {worker for worker, _ in state.started} >= set(plan.processes)
        # One that has ended well is no failure, and nobody needs to reach it any more.
        return has_started and all(name in state.listening or state.is_over(name) for name in plan.servers)

    def _has_returned(self) -> bool:
        plan, state = self._planned(), self.state
        if plan.launcher:
            return self._is_decided()
        return bool(plan.decides) and all(state.has_returned(name) for name in plan.decides)

    def _is_decided(self) -> bool:
        plan, state = self._planned(), self.state
        if plan.launcher:
            return self._launcher.has_succeeded and len(state.exits) >= len(plan.ranks)
        return bool(plan.decides) and all(state.is_over(name) for name in plan.decides)

    def _by_silence(self) -> list[tuple[float, Source]]:
        """The processes that train and when each was last heard of, longest ago first."""
        plan = self._planned()
        decisive = plan.decides or tuple(plan.processes)
        heard = [
            (process.heard_at, source)
            for source, process in self.state.running.items()
            if source[0] in decisive and not process.has_returned
        ]
        return sorted(heard, key=lambda item: item[0])

    def _stalls_at(self) -> float | None:
        """Return when the run will count as stalled if nothing more is heard of some process that trains."""
        silent = self._by_silence() if self.limits.stall and self.job.script else None
        return silent[0][0] + self.limits.stall if silent and self.limits.stall else None

    def _planned(self) -> Plan:
        assert self.plan is not None, "the plan is made before anything is started"
        return self.plan

    # -- errors -------------------------------------------------------------------------------------------------------

    async def _cause(self) -> MusterError:
        """The error for the failure that explains the others.

        It comes after a moment in which a better explanation may come: a longer one where this looks like the echo of
        another failure, or its process is about to exit; and not before the platform has had its time to say why
        workers have hung up, for which nobody waits who stops the run.
        """
        first_seen = clock.now()
        while True:
            cause = causes.root_cause(self.state.failures)
            is_open = cause is None or cause.is_echo or self._will_exit(cause)
            settled_at = first_seen + (SETTLE_SECONDS if is_open else SETTLE_SECONDS / 4)
            if not self._stop_reason:
                settled_at = max(settled_at, self.watch.explains_until)
            if clock.now() >= settled_at or self._tasks.error:
                break
            await self.state.changed.next(settled_at)
        assert cause is not None, "only called once something has failed"
        return await self._reasons.explain(cause, self.plan)

    def _will_exit(self, failure: Failure) -> bool:
        """Return whether it is an exception whose process has yet to exit, and whose agent will tell."""
        is_running = (failure.worker, failure.rank) in self.state.running
        return failure.kind is FailureKind.EXCEPTION and is_running and failure.worker in self.pool.connected

    async def _workers_missing(self) -> MusterError:
        return await self._reasons.workers_missing(self._submitted_at, self.watch.trouble)

    async def _stalled(self) -> MusterError:
        now, limit = clock.now(), self.limits.stall or 0.0
        silent = [source for heard_at, source in self._by_silence() if now - heard_at >= limit / 2]
        return await self._reasons.stalled(silent, await self.stacks())

    def _log(self, name: str) -> Path:
        return self._logs() / f"{name}.log"

    def _logs(self) -> Path:
        return self.facts.run_dir / "logs"
