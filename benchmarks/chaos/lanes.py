"""Run cases in parallel: each lane is a process, in a network of its own, that runs one case after another."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from pathlib import Path

from benchmarks.chaos import harness, platforms, restarting, surroundings
from benchmarks.chaos.faults import Case
from benchmarks.chaos.harness import Outcome, Stage

CASE_SECONDS = 300.0  # time after which a case counts as hung
END_SECONDS = 10.0  # time that a lane may take to end
spawn = multiprocessing.get_context("spawn")


class Lane:
    """A process that runs cases, one after the other."""

    def __init__(self, keep: Path, is_isolated: bool) -> None:
        self.channel, theirs = spawn.Pipe()
        self.case: Case | None = None
        self._began = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-clock-")
        clocks = surroundings.Clocks(Path(self._folder.name))
        self._process = spawn.Process(target=live, args=(theirs, keep, is_isolated, clocks))
        with clocks.shown():  # the lane's process is the session of its cases
            self._process.start()
        theirs.close()

    def begin(self, case: Case) -> None:
        """Make the lane run a case."""
        self.case, self._began = case, time.monotonic()
        self.channel.send(case)

    def take(self) -> tuple[Case, Outcome]:
        """Return the lane's case with its outcome: a failure of the harness if the lane's process has ended."""
        assert self.case is not None
        case, self.case = self.case, None
        try:
            return case, self.channel.recv()
        except EOFError:
            self._process.join()
            return case, failed("the harness", f"its process ended with {self._process.exitcode}")

    @property
    def is_alive(self) -> bool:
        """True unless the lane's process has ended."""
        return self._process.is_alive()

    @property
    def is_late(self) -> bool:
        """True if the lane's case has taken longer than ``CASE_SECONDS``."""
        return self.case is not None and time.monotonic() - self._began > CASE_SECONDS

    def end(self) -> None:
        """End the lane's process: at once if its case hangs, or else after it has removed what its platforms keep."""
        self.channel.close()
        self._process.join(0 if self.is_late else END_SECONDS)
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def run(cases: Sequence[Case], keep: Path, lanes: int, is_isolated: bool) -> Iterator[tuple[Case, Outcome]]:
    """Run the cases, ``lanes`` at a time, and yield each with its outcome when it ends."""
    waiting = list(reversed(cases))
    running = [Lane(keep, is_isolated) for _ in range(min(lanes, len(cases)))]
    try:
        for lane in running:
            lane.begin(waiting.pop())
        while any(lane.case for lane in running):
            told = connection.wait([lane.channel for lane in running if lane.case], timeout=1)
            for number, lane in enumerate(running):
                if lane.channel in told:
                    yield lane.take()
                elif lane.is_late and lane.case:
                    yield lane.case, failed("hung", f"it took longer than {CASE_SECONDS:g} s")
                    lane.end()
                    lane.case = None
                else:
                    continue
                if not lane.is_alive:
                    lane.end()
                    lane = running[number] = Lane(keep, is_isolated)
                if waiting:
                    lane.begin(waiting.pop())
    finally:
        for lane in running:
            lane.end()


def failed(error: str, message: str) -> Outcome:
    """Return the outcome of a case that was not run to its end."""
    return Outcome(False, error, message, None, None, (), "")


def live(channel: connection.Connection, keep: Path, is_isolated: bool, clocks: surroundings.Clocks) -> None:
    """Run the cases that arrive on the channel, until it is closed.

    Args:
        clocks: the clocks that this process sees, and so the session of each case.
    """
    for name in (surroundings.PRELOAD, surroundings.CLOCK):  # only some cases show these clocks
        os.environ.pop(name, None)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # shells make background processes ignore these
        signal.signal(number, signal.SIG_DFL)
    if is_isolated:
        surroundings.isolate()
    while True:
        try:
            case = channel.recv()
        except EOFError:
            platforms.close_all()
            return
        faulthandler.dump_traceback_later(0.9 * CASE_SECONDS)  # so that a hung case shows where it hangs
        within = restarting.run if case.restarts else None
        staged = restarting.Attempts if case.restarts else Stage
        outcome = harness.run(case, keep, within, staged, clocks)
        faulthandler.cancel_dump_traceback_later()
        channel.send(outcome)
