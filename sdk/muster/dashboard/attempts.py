"""The attempts of a run, as rows of a table: when each began, how far it came, what it cost, and what ended it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster.events import Reached
from muster.text.shown import duration

COLUMNS = ("attempt", "began after", "took", "from", "to", "lost", "ended by")
MOST = 16  # attempts that are shown, the newest ones


@dataclass
class AttemptView:
    """One attempt of a run.

    Attributes:
        number: its number, from 1.
        began: when it began, in seconds since the epoch.
        ended: when the next one began, or the run ended; None while it is under way.
        first, furthest: the least and the greatest step that any process has reported in it; None where none has.
        lost: the seconds that were lost until it was as far as the attempts before it; None as long as it is not, and
            of the first attempt.
        ended_by: what ended it; of the last attempt the status of the run, or ``running``.
        reason: the note that says so.
    """

    number: int
    began: float
    ended: float | None = None
    first: Reached | None = None
    furthest: Reached | None = None
    lost: float | None = None
    ended_by: str = "running"
    reason: str = ""

    def came_to(self, reached: Reached) -> None:
        """Note how far a process has come."""
        self.first = reached if self.first is None else min(self.first, reached)
        self.furthest = reached if self.furthest is None else max(self.furthest, reached)


def table(attempts: Sequence[AttemptView], started: float) -> list[list[str]]:
    """Return the cells of the table, its titles first; nothing where there was but one attempt.

    Args:
        attempts: the attempts, in order.
        started: when the run began.
    """
    if len(attempts) < 2:
        return []
    rows = [
        [
            str(attempt.number),
            duration(max(attempt.began - started, 0.0)),
            "" if attempt.ended is None else duration(max(attempt.ended - attempt.began, 0.0)),
            _words(attempt.first),
            "" if attempt.ended is None else _words(attempt.furthest),  # while it lasts the progress is shown elsewhere
            "" if attempt.lost is None else duration(attempt.lost),
            attempt.ended_by,
        ]
        for attempt in attempts
    ]
    return [[*COLUMNS], *rows]


def as_data(attempt: AttemptView) -> dict[str, Any]:
    """Return an attempt as plain data; what is not known is None."""
    return {
        "attempt": attempt.number,
        "began_at": attempt.began,
        "seconds": None if attempt.ended is None else max(attempt.ended - attempt.began, 0.0),
        "from": _position(attempt.first),
        "to": _position(attempt.furthest),
        "lost": attempt.lost,
        "ended_by": None if attempt.ended is None else attempt.ended_by,
    }


def _position(reached: Reached | None) -> dict[str, int | None] | None:
    return reached and {"step": reached.step, "epoch": reached.epoch if reached.epoch >= 0 else None}


def _words(reached: Reached | None) -> str:
    return "" if reached is None else str(reached)
