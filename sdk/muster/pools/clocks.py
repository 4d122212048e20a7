"""The offset between the clocks of two machines, measured over the connection between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from muster.agent import wire
from muster.runtime import clock

GOOD_ENOUGH = 0.002  # seconds of uncertainty
MOST_QUESTIONS = 5  # that are asked for a better answer


class ClockOffset(NamedTuple):
    """Lead of a worker's monotonic clock over the session's, and how wrong that may be, in seconds."""

    offset: float
    error: float


class ClockMeasurement:
    """Asks for the time of another clock, a few times where the answer takes long, and keeps the best answer.

    The answer was given at some moment between question and arrival; so it is taken for that of the middle, and may be
    wrong by half of the time between them. Monotonic clocks, so that nobody's setting of a clock matters.

    Args:
        now: the session's monotonic clock.
    """

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        self._now = now
        self._asked = 0
        self._asked_at = 0.0
        self.offset: ClockOffset | None = None

    def question(self) -> wire.Ping:
        """The next question, to be sent at once."""
        self._asked += 1
        self._asked_at = self._now()
        return wire.Ping(self._asked)

    def answered(self, answer: wire.Clock, came_at: float) -> None:
        """Take an answer that came at ``came_at`` on the session's monotonic clock."""
        if answer.number != self._asked or came_at < self._asked_at:
            return  # to nothing that was asked, or twice
        error = (came_at - self._asked_at) / 2
        if self.offset is None or error < self.offset.error:
            self.offset = ClockOffset(answer.monotonic - (self._asked_at + came_at) / 2, error)

    @property
    def wants_more(self) -> bool:
        """True if another question may find out more."""
        return self._asked < MOST_QUESTIONS and (self.offset is None or self.offset.error > GOOD_ENOUGH)
