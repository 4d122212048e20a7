"""Runs cases side by side: each lane is a process that runs one after the other, in a network of its own."""

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

CASE_SECONDS = 300.0  # after which a case counts as hung
END_SECONDS = 10.0  # that a lane may take to end
spawn = multiprocessing.get_context("spawn")


class Lane:
    """One process that runs cases."""

    def __init__(self, keep: Path, is_isolated: bool) -> None:
        self.channel, theirs = spawn.Pipe()
        self.case: Case | None = None
        self._began = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="chaos-clock-")
        clocks = surroundings.Clocks(Path(self._folder.name))
        self._process = spawn.Process(target=live, args=(theirs, keep, is_isolated, clocks))
        with clocks.shown():  # the sessions of its cases are in this process
            self._process.start()
        theirs.close()

    def begin(self, case: Case) -> None:
        """Have it run a case."""
        self.case, self._began = case, time.monotonic()
        self.channel.send(case)

    def take(self) -> tuple[Case, Outcome]:
        """The outcome of its case, which it has told, or has ended without."""
        assert self.case is not None
        case, self.case = self.case, None
        try:
            return case, self.channel.recv()
        except EOFError:
            self._process.join()
            return case, failed("the harness", f"its process ended with {self._process.exitcode}")

    @property
    def is_alive(self) -> bool:
        """True unless its process has ended."""
        return self._process.is_alive()

    @property
    def is_late(self) -> bool:
        """True if its case takes longer than any may."""
        return self.case is not None and time.monotonic() - self._began > CASE_SECONDS

    def end(self) -> None:
        """End its process, once it has removed what it keeps, unless it hangs."""
        self.channel.close()
        self._process.join(0 if self.is_late else END_SECONDS)
        self._process.kill()
        self._process.join()
        self._folder.cleanup()


def run(cases: Sequence[Case], keep: Path, lanes: int, is_isolated: bool) -> Iterator[tuple[Case, Outcome]]:
    """Run the cases, so many at a time, and yield each as it ends."""
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
    """The outcome of a case that was not run to its end."""
    return Outcome(False, error, message, None, None, (), "")


def live(channel: connection.Connection, keep: Path, is_isolated: bool, clocks: surroundings.Clocks) -> None:
    """Run cases as they come, until there are no more.

    Args:
        clocks: those that this process is shown, and with it the session of each case.
    """
    for name in (surroundings.PRELOAD, surroundings.CLOCK):  # which others see only where their case is one of clocks
        os.environ.pop(name, None)
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # which shells ignore in what they run aside
        signal.signal(number, signal.SIG_DFL)
    if is_isolated:
        surroundings.isolate()
    while True:
        try:
            case = channel.recv()
        except EOFError:
            platforms.close_all()
            return
        faulthandler.dump_traceback_later(0.9 * CASE_SECONDS)  # where it hangs is told, too
        within = restarting.run if case.restarts else None
        staged = restarting.Attempts if case.restarts else Stage
        outcome = harness.run(case, keep, within, staged, clocks)
        faulthandler.cancel_dump_traceback_later()
        channel.send(outcome)
