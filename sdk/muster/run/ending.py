"""The end of a run, whatever its cause: processes, agents and workers are ended in the order of their dependencies."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from muster import events
from muster.agent import wire
from muster.errors import MusterError
from muster.job import Plan, Status
from muster.pools.pool import AgentPool
from muster.run.launcher import RunLauncher
from muster.run.state import RunState
from muster.runtime import clock

logger = logging.getLogger("muster")

STOP_GRACE = 1.5  # seconds between asking processes to end and killing them; short, as a stop is to be quick
LEAST_GRACE = 0.5  # least seconds of grace for processes that are asked after others
KILL_SECONDS = 1.0  # how long to wait for the report that a killed process has ended
HANG_UP_SECONDS = 1.0  # how long agents may take to leave
COLLECT_SECONDS = 300.0  # how long it may take to get the files that workers without shared files have written


class Ending:
    """Ends everything of a run.

    Args:
        pool, state, launcher: the run's workers, their state, and the launcher of their ranks.

    Attributes:
        collect: gets the files that workers have written, before their agents leave; None where that is not needed.
        is_urgent: whether processes get no time to end by themselves; may also be set while they have that time.
    """

    def __init__(self, pool: AgentPool, state: RunState, launcher: RunLauncher) -> None:
        self.is_urgent = False
        self.collect: Callable[[], Awaitable[None]] | None = None
        self._pool = pool
        self._state = state
        self._launcher = launcher

    async def stop_processes(self, plan: Plan | None) -> None:
        """Stop all processes: first those of workers that complete the run, then those that they depend on."""
        self._state.ending = True
        deadline = clock.now() + STOP_GRACE
        serves = plan is not None and plan.starter is None  # ranks depend on such a launcher: it is stopped last
        if not serves:
            await self._stop_launcher(deadline)
        completing = dict.fromkeys((plan.completed_by or plan.processes) if plan else ())  # in order, quick to look up
        for names in (completing, [name for name in self._state.members if name not in completing]):
            await self._stop_those_of(names, deadline)
        if serves:
            await self._stop_launcher(max(deadline, clock.now() + LEAST_GRACE))

    async def dismiss(self) -> None:
        """Get the workers' files and remaining output, and have their agents leave."""
        if self.collect is not None and not self.is_urgent:
            await self._collect(self.collect)
        keeps_logs = self.collect is not None and not self.is_urgent
        for name in self._state.members:
            self._pool.send(name, wire.End(after_output=keeps_logs))
        await self._state.wait_while(lambda: bool(self._pool.connected), HANG_UP_SECONDS)
        if keeps_logs:
            await self._hear_out()

    async def _hear_out(self) -> None:
        """Wait for agents as long as they send output; report the workers whose logs may lack their ends."""

        def is_told() -> bool:
            is_heard = clock.now() - self._state.heard_at() < HANG_UP_SECONDS
            return bool(self._pool.connected) and is_heard and not self.is_urgent

        deadline = clock.now() + COLLECT_SECONDS
        while is_told() and clock.now() < deadline:
            await self._state.wait_while(is_told, HANG_UP_SECONDS)
        for name in sorted(self._pool.connected & self._state.members.keys()):
            text = f"What {name} printed last may be missing: its agent has not said that this was all."
            self._state.emit(events.Note(text))

    async def _collect(self, collect: Callable[[], Awaitable[None]]) -> None:
        """Get the files that workers have written, as far as the workers still answer; report failures in a note."""
        collecting = asyncio.ensure_future(collect())
        collecting.add_done_callback(lambda _: self._state.changed.set())
        await self._state.wait_while(lambda: not (collecting.done() or self.is_urgent), COLLECT_SECONDS)
        why = "the run was to end at once" if self.is_urgent else f"it took longer than {COLLECT_SECONDS:g} s"
        try:
            if collecting.cancel():
                await asyncio.wait([collecting], timeout=KILL_SECONDS)
            else:
                collecting.result()
                return
        except Exception as error:  # no error here changes how the run has ended
            why = str(error) or repr(error)
            if not isinstance(error, (MusterError, OSError)):
                logger.warning("the results of the workers could not be got", exc_info=error)
        self._state.emit(events.Note(f"Not all results of the workers could be got: {why}"))

    async def release(self) -> None:
        """End the workers, and close the platform if the run owns it. Never raises."""
        try:
            await self._pool.close()
        except Exception as error:  # foreign code, and the error that ended the run is the one that counts
            self._state.emit(events.Note(f"The platform did not release the workers as it should: {error}"))
            logger.warning("the platform did not release the workers as it should: %r", error)
        ended = clock.wall_time()
        for name in self._state.workers:
            self._state.move(name, Status.STOPPED, finished_at=ended)

    async def _stop_launcher(self, deadline: float) -> None:
        remaining = deadline - clock.now()
        self._launcher.terminate(remaining)
        await self._state.wait_while(lambda: self._launcher.is_running and not self.is_urgent, remaining)
        await self._launcher.kill()

    async def _stop_those_of(self, workers: Collection[str], deadline: float) -> None:
        """End all processes of these workers, with a time of grace unless the end is urgent."""
        processes, not_over = self._state.processes, list(workers)

        def are_running() -> bool:  # as far as is known: processes of a lost agent are gone too
            while not_over and processes.is_over(not_over[-1]):  # once each: else the end of many would be quadratic
                not_over.pop()
            return any(name in self._pool.connected and processes.run_on(name) for name in reversed(not_over))

        grace = max(deadline - clock.now(), LEAST_GRACE)
        left = list(workers)
        if not self.is_urgent:
            for name in workers:
                self._pool.send(name, wire.Stop(grace))
            await self._state.wait_while(lambda: are_running() and not self.is_urgent, grace)
            left = [name for name in workers if processes.run_on(name)]
        if are_running():
            for name in left:
                self._pool.send(name, wire.Stop(0))
            await self._state.wait_while(are_running, KILL_SECONDS)
