"""Recorded runs, and requests to those that are under way in any process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from muster.errors import JobError, RunInterrupted, RunLost, RunUnreachable, StillRunning, without_inner_frames
from muster.options.values import plain_seconds
from muster.records import control
from muster.records.record import LOST_ADVICE, RunRecord
from muster.records.result import Result
from muster.records.sessions import WAKE, is_out_of_sight, suspended, wake, words_for_suspended
from muster.runtime.interrupts import cancelled
from muster.text.cleaning import clean
from muster.text.shown import Stacks, Text, duration

POLL_SECONDS = 0.2  # between two looks at whether a run has ended


class Run(RunRecord):
    """A recorded run. One that is still under way, in any process, can be waited for, queried and stopped."""

    @without_inner_frames
    def wait(self, timeout: float | None = None) -> Result:
        """Wait until the run has ended, in whatever process it lives, and return its result.

        An interrupt ends the wait, and not the run.

        Args:
            timeout: seconds to wait; None for no limit.

        Raises:
            RunFailed, RunStopped, ...: the error that ended the run, as ``run_cluster`` raises it.
            RunLost: its session is gone and left no result.
            StillRunning: it has not ended after ``timeout`` seconds, and goes on. A ``TimeoutError``.
        """
        timeout = None if timeout is None else plain_seconds("timeout", timeout)
        try:
            self._block_until_end(timeout)
        except KeyboardInterrupt:
            raise RunInterrupted(self._words_for_interrupt()) from None
        return self._came_to()

    @property
    @without_inner_frames
    def values(self) -> list[Any]:
        """Values that the function returned on each rank, as in the ``Result`` of ``wait()``, once the run has ended.

        Raises:
            JobError: the run has not ended.
            RunFailed, RunStopped, RunLost, ...: the error that ended the run, as ``wait()`` raises it.
        """
        return self._came_to().values

    @property
    @without_inner_frames
    def value(self) -> Any:
        """Value that the function returned on the first rank; None for scripts. Raises as ``values``."""
        return self._came_to().value

    @property
    @without_inner_frames
    def metrics(self) -> Mapping[str, float]:
        """Numbers that the script last reported, by name. Raises as ``values``; ``result`` has a failed run's, too."""
        return self._came_to().metrics

    def _came_to(self) -> Result:
        """Return the result of a run that has ended, or raise the error that ended it."""
        if self.status == "running":
            raise JobError(f"Run {self.run_id} has not ended.", advice="wait() for it first, which returns the result")
        if self.result is None:
            raise RunLost(
                f"Run {self.run_id} was lost: its session is gone and left no result.",
                log=self.run_dir / "logs",
                advice=LOST_ADVICE,
            )
        result = Result.from_dict(self.result, self.run_id, self.run_dir)
        if result.error is not None:
            raise result.error
        return result

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait for the end as ``wait`` does, without blocking the event loop."""
        return self._await_end().__await__()

    async def _await_end(self) -> Result:
        try:
            while self.status == "running":
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            raise cancelled(self._words_for_interrupt()) from None
        return self.wait()

    def _block_until_end(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.status == "running":
            if deadline is not None and time.monotonic() > deadline:
                raise StillRunning.after(timeout or 0.0, self.run_id)
            time.sleep(POLL_SECONDS)

    def _words_for_interrupt(self) -> str:
        ways = f"wait() waits again; stop() ends it, or in a terminal: muster stop {self.run_id}"
        return f"The wait was interrupted; run {self.run_id} goes on. {ways}"

    @without_inner_frames
    def stop(self, timeout: float = 60.0, *, now: bool = False) -> None:
        """End a run under way, in whatever process, and wait until nothing of it is left; do nothing if it has ended.

        Args:
            timeout: seconds to wait for the end.
            now: whether to give its processes no time to end by themselves.

        Raises:
            RunUnreachable: its session does not answer.
            StillRunning: it has not ended in time, but is still ending. A ``TimeoutError``.
        """
        deadline = time.monotonic() + plain_seconds("timeout", timeout)
        self.ask_to_stop(now=now)
        while self.status == "running":
            if time.monotonic() > deadline:
                raise StillRunning.after(timeout, self.run_id)
            time.sleep(0.05)

    def ask_to_stop(self, *, now: bool = False) -> None:
        """Ask a run that is under way to end, without waiting for that. Raise RunUnreachable as ``stop`` does.

        A suspended session, as after Ctrl-Z, is resumed first: it could not end its run otherwise.
        """
        wake(self.session)
        self._ask("stop", now=now)

    @without_inner_frames
    def stacks(self) -> Stacks:
        """Return the present Python stacks of all ranks or tasks, by rank or worker; empty once the run has ended.

        Raises:
            RunUnreachable: its session does not answer.
        """
        return Stacks(self._ask("stacks").get("stacks", {}))

    @without_inner_frames
    def usage(self) -> dict[str, list[Any]]:
        """Return each worker's present use: busy cores, memory in bytes, busy GPUs, GPU memory. Empty after the end.

        Raises:
            RunUnreachable: its session does not answer.
        """
        return dict(self._ask("usage").get("usage", {}))

    def _ask(self, question: str, **details: object) -> dict[str, Any]:
        """Send a request to the run's session, and return the answer; empty if the run has ended."""
        if self.status != "running":
            return {}
        pid = suspended(self.session)
        if pid is not None:
            text = f"Run {self.run_id} does not answer: {words_for_suspended(pid)}."
            raise RunUnreachable(text, advice=WAKE.format(pid))
        try:
            return control.ask(self.run_dir, question, **details)
        except RunUnreachable:
            if self.status != "running":  # it has ended meanwhile
                return {}
            if is_out_of_sight(self.session):
                where = f"on {self.session.get('host') or 'another machine'}, or in a container there"
                raise RunUnreachable(
                    f"Run {self.run_id} cannot be asked from here: its session is {where}.",
                    advice="ask it there, by the same command",
                ) from None
            raise

    def explain(self, write: Callable[[str], str] = str) -> Text:
        """Return an explanation of the run: what failed first and why, the end of its log, and what to try.

        ``write`` converts the advice, an ``ArgumentText`` if it names arguments, to text.
        """
        from muster.records.explanation import explanation

        return Text(clean(explanation(self, write)))

    def __repr__(self) -> str:
        return f"<Run {self.run_id} {self.status} {duration(self.seconds)}>"
