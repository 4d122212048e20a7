"""One run on the background thread: prepares it, watches over it to its end, and records it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import shutil
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from muster.checks.planning import describe_job
from muster.errors import MusterError, PlatformError, RunFailed, RunStopped
from muster.events import Event, EventKind, Observers
from muster.records import runs
from muster.records.journal import Journal
from muster.records.result import Result, exit_codes
from muster.records.scratch import make_scratch
from muster.run.control import Control
from muster.run.orchestrator import AT_ONCE, Orchestrator
from muster.run.preparation import prepare
from muster.run.request import CheckedRun
from muster.runtime import descriptors
from muster.runtime.background import background_loop, in_thread

logger = logging.getLogger("muster")


class Execution:
    """One run.

    Args:
        observers: told of every event.

    Attributes:
        run: its id; empty before it has begun.
        run_dir: its folder.
        orchestrator: None as long as there is nothing to orchestrate.
        up: set once every server listens or every rank runs, and in any case at the end.
        ended: has the result once nothing of it is left.
        stop_reason: why it is to end, if somebody wants it to.
    """

    def __init__(self, observers: Observers) -> None:
        self.run = ""
        self.run_dir = Path()
        self.orchestrator: Orchestrator | None = None
        self.up = threading.Event()
        self.ended: concurrent.futures.Future[Result] = concurrent.futures.Future()
        self.stop_reason: str | None = None
        self._observers = observers
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started_at = 0.0
        self._controlled_by: Control | None = None
        self._shortages: list[str] = []

    @property
    def outcome(self) -> Result | None:
        """The result; None as long as it has not ended."""
        return self.ended.result() if self.ended.done() else None

    def begin(self, checked: CheckedRun) -> None:
        """Start the run on the background thread.

        Raises:
            ResourceError: the platform could never grant what the workers are to have.
            PlatformError: its folders cannot be made.
        """
        self._started_at = time.time()
        self._shortages = checked.shortages()
        journal, scratch = self._make_folders(checked.job.name)
        self.run = self.run_dir.name
        self._loop = background_loop()
        asyncio.run_coroutine_threadsafe(self._live_and_record(checked, journal, scratch), self._loop)

    def ask_to_stop(self, reason: str) -> None:
        """Have the run end, however far it has come, for the first reason given, or ``AT_ONCE``.

        Takes no lock, as interrupts call it.
        """
        if self.stop_reason is None or reason == AT_ONCE:
            self.stop_reason = reason
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._pass_stop_on)

    def _pass_stop_on(self) -> None:
        if self.orchestrator and self.stop_reason:
            self.orchestrator.stop(self.stop_reason)

    async def _live_and_record(self, checked: CheckedRun, journal: Journal, scratch: Path) -> None:
        """Run it to its end, and record it. Whatever fails on the way: ``ended`` is set."""
        result = Result("failed", self.run, self.run_dir)
        try:
            try:
                error = await self._live(checked, journal, scratch)
                result = replace(result, error=error)
                await self._leave_nothing(checked, scratch)
                result = self._sum_up(error)
            except Exception as raised:  # a defect of ours
                result = replace(result, error=result.error or _own_failure(raised))
            await self._record(result, journal)
        except Exception as raised:  # whoever waits for the end must hear of it all the same
            logger.warning("the end of run %s could not be recorded: %r", self.run, raised)
        finally:
            self.ended.set_result(result)
            self.up.set()

    async def _live(self, checked: CheckedRun, journal: Journal, scratch: Path) -> MusterError | None:
        """Run it; return the error that ended it, None where it has succeeded. Nothing of it runs any more."""
        try:
            self._observers.add(journal, first=True)
            job = describe_job(checked.job, checked.strategy)
            asked = {"job": job, "session": runs.this_session(), "python": checked.job.python, "run": self.run}
            self._observers.tell(Event(EventKind.RUN_REQUESTED, data=asked))
            await self._control(scratch)
            for shortage in self._shortages:
                self._observers.tell(Event(EventKind.NOTE, data={"text": shortage}))
            descriptors.make_room(len(checked.members))  # for what the platform starts, too
            checked.platform.warm_up()
            self.orchestrator = await prepare(
                checked, self.run_dir, scratch, emit=self._observers.tell, on_up=self.up.set
            )
            if self.stop_reason:
                self.orchestrator.stop(self.stop_reason)
            await self.orchestrator.run()
        except MusterError as raised:
            return raised
        except OSError as raised:
            return PlatformError(
                f"The session could not go on: {_os_reason(raised)}.",
                log=self.run_dir / "logs",
                advice="if a disk is full, make room, or set MUSTER_HOME and TMPDIR to folders elsewhere",
                details=traceback.format_exc(),
            )
        except (Exception, SystemExit) as raised:  # a defect of ours, a strategy's or a platform's
            return _own_failure(raised)
        return None

    async def _leave_nothing(self, checked: CheckedRun, scratch: Path) -> None:
        """Remove what ends with the run."""
        async with contextlib.AsyncExitStack() as last:  # the last first, and each of them whatever the others do
            for folder in (scratch, runs.library(self.run_dir)):
                last.push_async_callback(in_thread, partial(shutil.rmtree, folder, ignore_errors=True))
            if self._controlled_by is not None:
                last.push_async_callback(self._controlled_by.close)
            if self.orchestrator is None and checked.owns_platform:  # it never came so far that somebody else would
                last.push_async_callback(in_thread, checked.platform.close)

    # -- questions of other processes --------------------------------------------------------------------------------

    async def _control(self, scratch: Path) -> None:
        """Let other processes of the user ask; a run that they cannot ask runs all the same."""
        answers = {"state": self._say_state, "stop": self._stop_for, "stacks": self._say_stacks, "logs": self._say_log}
        self._controlled_by = Control(self.run_dir, answers)
        try:
            await self._controlled_by.open(scratch)
        except OSError as error:
            text = f"Only this session can stop the run: its control socket cannot be made ({error})."
            self._observers.tell(Event(EventKind.NOTE, data={"text": text}))

    async def _say_state(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        workers = self.orchestrator.state.workers if self.orchestrator else {}
        state = {name: worker.status.value for name, worker in workers.items()}
        return {"is_up": self.up.is_set(), "stop_reason": self.stop_reason, "workers": state}

    async def _stop_for(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        self.ask_to_stop(AT_ONCE if request.get("now") else "by request")
        return {}

    async def _say_stacks(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"stacks": await self.orchestrator.stacks() if self.orchestrator else {}}

    async def _say_log(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"lines": runs.Run(self.run_dir).log_end(str(request.get("name")))}

    def _sum_up(self, error: MusterError | None) -> Result:
        orchestrator = self.orchestrator
        stopped = isinstance(error, RunStopped)
        return Result(
            status="stopped" if stopped else "failed" if error else "succeeded",
            run=self.run,
            run_dir=self.run_dir,
            exit_codes=exit_codes(orchestrator.state.exits) if orchestrator else {},
            timings=orchestrator.timings if orchestrator else {},
            seconds=time.time() - self._started_at,
            metrics=orchestrator.state.metrics if orchestrator else {},
            error=error,
        )

    async def _record(self, result: Result, journal: Journal) -> None:
        recorded = result.to_dict()
        try:
            await in_thread(runs.write_json, self.run_dir / "result.json", recorded)
        except OSError as error:  # whoever waits for the end must hear of it all the same
            logger.warning("the end of run %s could not be recorded: %s", self.run, error)
        told = {key: recorded[key] for key in ("status", "error", "reason", "advice")}
        try:
            self._observers.tell(Event(EventKind.RUN_ENDED, recorded["worker"], told))
        finally:
            with contextlib.suppress(OSError):
                journal.close()

    def _make_folders(self, name: str) -> tuple[Journal, Path]:
        """The run's folder, with its journal, and the scratch folder of everything that ends with it."""
        try:
            scratch = make_scratch()
            try:
                self.run_dir = runs.create(name)
                return Journal(self.run_dir / "events.jsonl"), scratch
            except BaseException:
                shutil.rmtree(scratch, ignore_errors=True)
                raise
        except OSError as error:
            raise PlatformError(
                f"The folders of the run cannot be made: {error}.",
                advice="set MUSTER_HOME and TMPDIR to writable folders",
            ) from error


def _own_failure(error: BaseException) -> RunFailed:
    """The error for a defect of ours, or of a platform."""
    trace = "".join(traceback.format_exception(error))
    return RunFailed(f"Muster itself failed: {error!r}", details=trace)


def _os_reason(error: OSError) -> str:
    """Return the system's message; of an error about many files, that about the first."""
    return str(error.args[0][0][2]) if isinstance(error, shutil.Error) else str(error)
