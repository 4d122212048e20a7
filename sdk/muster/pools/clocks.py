"""The offset between the clocks of two machines, measured over the connection between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muster.agent import wire
from muster.runtime import clock

GOOD_ENOUGH = 0.002  # seconds of uncertainty
MOST_QUESTIONS = 5  # questions in one measurement


class ClockOffset(NamedTuple):
    """Lead of a worker's monotonic clock over the session's, and the uncertainty of that, both in seconds."""

    offset: float
    error: float


class ClockMeasurement:
    """A measurement of a clock's offset, which asks again a few times if answers take long, and keeps the best one.

    An answer was given at some moment between the question and its arrival. It is assumed to be from the middle, and
    may be wrong by half of that time. Both clocks are monotonic, so that setting a machine's time does not matter.

    Args:
        now: returns the time of the session's monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        self._now = now
        self._asked = 0
        self._asked_at = 0.0
        self.offset: ClockOffset | None = None
        self._told: ClockOffset | None = None

    def question(self) -> wire.Ping:
        """Return the next question, which is to be sent at once."""
        self._asked += 1
        self._asked_at = self._now()
        return wire.Ping(self._asked)

    def answered(self, answer: wire.Clock, came_at: float) -> None:
        """Handle an answer that arrived at ``came_at`` on the session's monotonic clock."""
        if answer.number != self._asked or came_at < self._asked_at:
            return  # it answers no question, or comes twice
        error = (came_at - self._asked_at) / 2
        if self.offset is None or error < self.offset.error:
            self.offset = ClockOffset(answer.monotonic - (self._asked_at + came_at) / 2, error)

    def news(self) -> ClockOffset | None:
        """Return the offset once the measurement has ended, and again when a later answer has improved it."""
        if self.wants_more or self.offset == self._told:
            return None
        self._told = self.offset
        return self.offset

    @property
    def wants_more(self) -> bool:
        """True if another question may reduce the uncertainty."""
        return self._asked < MOST_QUESTIONS and (self.offset is None or self.offset.error > GOOD_ENOUGH)
