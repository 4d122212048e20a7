"""The execution of one run on the background thread: it is prepared, watched to its end, and recorded."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from muster import events
from muster.agent.removal import remove_folder
from muster.checks.planning import describe_job
from muster.errors import MusterError, PlatformError, RunFailed, RunStopped
from muster.events import Event
from muster.events.observers import Observers
from muster.platforms.base import Platform
from muster.pools.calls import CLOSE_SECONDS, PlatformCalls
from muster.records import folders, sessions
from muster.records.journal import Journal
from muster.records.result import Result, discard_values, exit_codes
from muster.records.scratch import make_scratch
from muster.run.answers import Answers
from muster.run.attempts import Attempts
from muster.run.checked import CheckedRun
from muster.run.control import Control
from muster.run.lost_time import LostTime
from muster.run.request import AT_ONCE
from muster.runtime.background import background_loop, in_thread
from muster.runtime.imports import import_at_once
from muster.runtime.latch import Latch
from muster.runtime.log import has_told
from muster.text.system_errors import NO_ROOM, in_words, is_of_user, naming

if TYPE_CHECKING:  # imported while the platform warms up
    from muster.run.orchestrator import Orchestrator

logger = logging.getLogger("muster")

OBSERVERS_SECONDS = 5.0  # how long the end of a run waits for observers that have not taken all events
LOG_SECONDS = 0.5  # how long it waits for log handlers that have not handled all records
MOST_STEP = 0.05  # longest time in seconds between two checks of them


class Execution:
    """Drives one run from its launch to its record.

    Args:
        observers: told of every event.

    Attributes:
        run_id: id of the run; empty before it has begun.
        run_dir: folder of the run.
        orchestrator: the orchestrator of the present attempt; None until one is prepared.
        up: set once every server listens or every rank runs, and in any case at the end.
        ended: holds the result once nothing of the run is left.
        stop_reason: why the run was asked to end; None if it was not.
    """

    def __init__(self, observers: Observers) -> None:
        self.run_id = ""
        self.run_dir = Path()
        self.orchestrator: Orchestrator | None = None
        self.up: Latch[bool] = Latch()
        self.ended: Latch[Result] = Latch()
        self.stop_reason: str | None = None
        self._observers = observers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_at = 0.0  # seconds since 1970
        self._began = 0.0  # the same moment by the monotonic clock
        self._controlled_by: Control | None = None
        self._scratch = Path()
        self._attempts = Attempts()
        self._again: events.RunAttempt | None = None  # the attempt after the present one, once that has failed
        self._lost_time = LostTime(observers.tell)
        self._metrics: dict[str, float] = {}  # metrics of the attempts before
        self._remarks: list[str] = []

    @property
    def outcome(self) -> Result | None:
        """The result of the run; None before it has ended."""
        return self.ended.value

    def begin(self, checked: CheckedRun) -> None:
        """Start the run on the background thread.

        Raises:
            ResourceError: the platform could never grant what the workers are to have.
            PlatformError: its folders cannot be made.
        """
        self._started_at, self._began = time.time(), time.monotonic()
        self._remarks = checked.remarks()
        journal, self._scratch = self._make_folders(checked.job.name)
        self.run_id = self.run_dir.name
        sessions.note_begun(self.run_id)
        self._loop = background_loop()
        asyncio.run_coroutine_threadsafe(self._live_and_record(checked, journal), self._loop)

    def ask_to_stop(self, reason: str) -> None:
        """Ask the run to end, whatever phase it is in. The first reason counts, unless a later one is ``AT_ONCE``.

        Takes no lock, since signal handlers call it.
        """
        if self.stop_reason is None or reason == AT_ONCE:
            self.stop_reason = reason
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._pass_stop_on)

    def _pass_stop_on(self) -> None:
        if self.orchestrator and self.stop_reason:
            self.orchestrator.stop(self.stop_reason)

    async def _live_and_record(self, checked: CheckedRun, journal: Journal) -> None:
        """Run to the end, and record the result. ``ended`` is set whatever fails."""
        result = Result("failed", self.run_id, self.run_dir)
        try:
            journaling = asyncio.create_task(journal.keep_up(), name="journal")
            try:
                error = await self._live(checked, journal)
                result = replace(result, error=error)
                await self._leave_nothing(checked)
                result = self._sum_up(error)
            except Exception as raised:  # a defect of ours
                result = replace(result, error=result.error or _own_failure(raised))
            finally:
                journaling.cancel()
            await self._record(result, journal)
        except Exception as raised:  # those who wait for the end must be woken all the same
            logger.warning("the end of run %s could not be recorded: %r", self.run_id, raised)
        finally:
            try:
                await self._release_observers()
            finally:
                self.ended.set(result)
                self.up.set(True)

    async def _live(self, checked: CheckedRun, journal: Journal) -> MusterError | None:
        """Run all attempts; return the error that ended the run, or None. Nothing of it runs any more then."""
        try:
            self._observers.add(journal, first=True)
            job = describe_job(checked.job, checked.strategy)
            until = self._started_at + checked.limits.detached if checked.limits.detached is not None else None
            session = sessions.this_session()
            asked = events.RunRequested(
                job, session, checked.job.python, self.run_id, detached_until=until, platform=checked.platform.name
            )
            self._observers.tell(Event.of(asked, when=self._started_at))
            await self._control()
            for remark in self._remarks:
                self._observers.tell(Event.of(events.Note(remark)))
            await self._attempt_until_done(checked)
        except MusterError as raised:
            return raised
        except OSError as raised:
            return PlatformError(
                f"The session could not go on: {in_words(raised)}.",
                log=self.run_dir / "logs",
                advice="if a disk is full, make room, or set MUSTER_HOME and TMPDIR to folders elsewhere",
                details=None if is_of_user(raised) else traceback.format_exc(),
            )
        except (Exception, SystemExit) as raised:  # a defect of ours, a strategy's or a platform's
            return _own_failure(raised)
        return None

    async def _attempt_until_done(self, checked: CheckedRun) -> None:
        """Run attempts until one succeeds or the policy allows no more. Raises the error that ended the last one."""
        trained = 0.0
        self._observers.add(self._attempts)
        self._observers.add(self._lost_time)
        self._attempts.policy = checked.restart_policy
        orchestrator = await self._prepare(checked, trained)
        while True:
            try:
                await self._attempt(orchestrator)
                return
            except MusterError as error:
                if self._again is None:
                    raise
                trained += orchestrator.timings.get("training", 0.0)
                self._metrics.update(orchestrator.state.metrics)
                self._observers.tell(Event.of(self._again, error.worker))
            orchestrator = await self._next(orchestrator, checked, trained)

    async def _attempt(self, orchestrator: Orchestrator) -> None:
        """Run one attempt. Raises the error that ended it; ``_again`` then has the event of the next one, if any."""
        self._again = None

        def is_tried_again(error: MusterError) -> bool:
            reason = None if self.stop_reason else self._attempts.another(error, orchestrator.cause)
            if reason is None:
                return False
            self._again = events.RunAttempt(self._attempts.number, reason, error.message)
            self._lost_time.ended()
            return orchestrator.strategy.keeps_workers

        await orchestrator.run(is_tried_again, self._attempts.alone)

    def _is_up(self) -> None:
        """Record that an attempt is up."""
        self.up.set(True)
        if self.orchestrator is not None:
            self._lost_time.is_up(self.orchestrator.state.said_of_workers())

    async def _next(self, before: Orchestrator, checked: CheckedRun, trained: float) -> Orchestrator:
        """Prepare the next attempt: on the workers that have stayed, or on new ones if none have."""
        from muster.run.preparation import prepare_again

        if not before.stay:
            await self._clear_up()
            return await self._prepare(checked, trained)
        try:
            await self._forget_results()
            emit = self._observers.tell
            self.orchestrator = prepare_again(before, self._attempts.number, trained, emit=emit, on_up=self._is_up)
        except BaseException:
            await before.release()
            raise
        self._pass_stop_on()
        return self.orchestrator

    async def _clear_up(self) -> None:
        """Remove what an attempt has left behind. The next one gets a scratch folder that late agents do not know."""
        before, self._scratch = self._scratch, await in_thread(make_scratch)
        await self._control()  # its socket must be in the new folder: a guard removes only one, should the session die
        for folder in (before, folders.library(self.run_dir)):
            await in_thread(remove_folder, folder)
        await self._forget_results()

    async def _forget_results(self) -> None:
        """Remove the values that an attempt has returned, and mark in the logs where the next one begins."""
        from muster.failure.logs import mark_attempt

        await in_thread(discard_values, self.run_dir)
        await in_thread(mark_attempt, self.run_dir / "logs", self._attempts.number)

    async def _prepare(self, checked: CheckedRun, trained: float) -> Orchestrator:
        """Prepare an attempt on workers that have yet to be launched."""
        self.orchestrator = None
        attempt = await in_thread(checked.attempt, self._attempts.number, trained)
        calls = PlatformCalls(self.run_id)
        calls.warm_up(attempt.platform)  # meanwhile, as it may take long
        try:
            self.orchestrator = await self._prepared(attempt, calls)
        except BaseException:
            await calls.abandon()
            raise
        finally:
            if self.orchestrator is None and attempt.owns_platform:  # an orchestrator would have closed it
                await self._close(attempt.platform)
        self._pass_stop_on()
        return self.orchestrator

    async def _prepared(self, attempt: CheckedRun, calls: PlatformCalls) -> Orchestrator:
        """Return the attempt's orchestrator. Its modules are imported on a thread, as the first time takes long."""
        await in_thread(import_at_once, "muster.run.preparation")
        from muster.run.preparation import prepare

        emit = self._observers.tell
        with naming(self._scratch):
            return await prepare(attempt, self.run_dir, self._scratch, calls, emit=emit, on_up=self._is_up)

    async def _leave_nothing(self, checked: CheckedRun) -> None:
        """Remove everything that is to end with the run."""
        async with contextlib.AsyncExitStack() as last:  # calls all in reverse order, whatever any of them raises
            for folder in (self._scratch, folders.library(self.run_dir)):
                last.push_async_callback(in_thread, remove_folder, folder)
            if self._controlled_by is not None:
                last.push_async_callback(self._controlled_by.close)
            if self.orchestrator is None and checked.owns_platform:  # an orchestrator would have closed it
                last.push_async_callback(self._close, checked.platform)

    async def _close(self, platform: Platform) -> None:
        """Close a platform that no pool has used. An error there is logged, since it did not end the run."""
        calls = PlatformCalls(self.run_id)
        try:
            await calls.call(platform.close, seconds=CLOSE_SECONDS)
        except Exception as error:  # foreign code
            logger.warning("the platform did not release everything as it should: %r", error)
        finally:
            calls.close()

    async def _control(self) -> None:
        """Open the control socket for other processes of the user; without one the run goes on all the same."""
        if self._controlled_by is not None:
            await self._controlled_by.close()
        self._controlled_by = Control(self.run_dir, Answers(self).by_request())
        try:
            await self._controlled_by.open(self._scratch)
        except OSError as error:
            text = f"Only this session can stop the run: its control socket cannot be made ({error})."
            self._observers.tell(Event.of(events.Note(text)))

    def _sum_up(self, error: MusterError | None) -> Result:
        orchestrator = self.orchestrator
        stopped = isinstance(error, RunStopped)
        return Result(
            status="stopped" if stopped else "failed" if error else "succeeded",
            run_id=self.run_id,
            run_dir=self.run_dir,
            exit_codes=exit_codes(orchestrator.state.processes.exits) if orchestrator else {},
            timings=self._timings(),
            seconds=round(time.monotonic() - self._began, 3),
            metrics={**self._metrics, **(orchestrator.state.metrics if orchestrator else {})},
            error=error,
        )

    def _timings(self) -> dict[str, float]:
        """Seconds that the phases of the last attempt took, and those that were lost to the attempts before it."""
        timings = dict(self.orchestrator.timings) if self.orchestrator else {}
        if self._lost_time.seconds:
            timings["lost"] = self._lost_time.seconds
        return {phase: round(seconds, 3) for phase, seconds in timings.items()}

    async def _record(self, result: Result, journal: Journal) -> None:
        recorded = result.to_dict()
        try:
            # The values that functions have returned are on the disk by now, and are of no use without this file.
            await in_thread(folders.write_json_durably, self.run_dir / "result.json", recorded)
        except OSError as error:  # those who wait for the end must be woken all the same
            logger.warning("the end of run %s could not be recorded: %s", self.run_id, error)
        keys = ("status", "reason", "advice", "error", "advice_parts")
        told = events.RunEnded(*(recorded[key] for key in keys))
        try:
            # Whoever shows the run counts its time from event to event: that is to be the time in the record.
            self._observers.tell(Event.of(told, recorded["worker"], self._started_at + result.seconds))
        finally:
            with contextlib.suppress(OSError):
                journal.close()

    async def _release_observers(self) -> None:
        """Give observers and log handlers a limited time to handle what is left; observers get no events after that."""
        self._observers.close()
        await self._wait_for(self._observers.are_done, OBSERVERS_SECONDS)
        self._observers.end()
        await self._wait_for(has_told, LOG_SECONDS)

    async def _wait_for(self, is_done: Callable[[], bool], seconds: float) -> None:
        """Wait until ``is_done`` returns true, at most ``seconds``, and not at all if the run is to end ``AT_ONCE``."""
        deadline, step = time.monotonic() + seconds, 0.001
        while not is_done() and time.monotonic() < deadline and self.stop_reason != AT_ONCE:
            await asyncio.sleep(step)
            step = min(2 * step, MOST_STEP)

    def _make_folders(self, name: str) -> tuple[Journal, Path]:
        """Make the run's folder and its scratch folder, which ends with it; return the journal and the latter."""
        try:
            scratch = make_scratch()
            try:
                run_dir = folders.make_run_folder(name)
                try:
                    with naming(run_dir):
                        journal = Journal(run_dir / "events.jsonl")
                except BaseException:
                    remove_folder(run_dir)
                    raise
            except BaseException:
                remove_folder(scratch)
                raise
            self.run_dir = run_dir
            return journal, scratch
        except OSError as error:
            raise PlatformError(
                f"The folders of the run cannot be made: {in_words(error)}.",
                advice="make room there, or set MUSTER_HOME and TMPDIR to writable folders"
                if error.errno in NO_ROOM
                else "set MUSTER_HOME and TMPDIR to writable folders",
            ) from error


def _own_failure(error: BaseException) -> RunFailed:
    """Return the error for a defect of Muster, of a strategy or of a platform."""
    trace = "".join(traceback.format_exception(error))
    return RunFailed(f"Muster itself failed: {error!r}", details=trace)
