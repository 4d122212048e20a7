"""The time that the failed attempts of a run have cost."""

from __future__ import annotations

from collections.abc import Callable

from muster.events import Event, Note, Progress, Reached, RunAttempt
from muster.runtime import clock


class LostTime:
    """The time lost to failed attempts. An observer of the run, which also tells it.

    Where scripts report steps, time is lost from when the training reached its last step until it reaches that step
    again: until somebody notices the failure, workers are replaced, ranks start, and what came after the checkpoint is
    trained once more. Where they report none, it is lost from the end of an attempt until the next one is up.

    Args:
        tell: called with the event of a note.
    """

    def __init__(self, tell: Callable[[Event], None]) -> None:
        self._tell = tell
        self._made_up_for = 0.0  # seconds
        self._attempt = 1
        self._furthest: tuple[Reached, float] | None = None  # of any attempt, and when it was first reported
        self._since: float | None = None  # since when time is being lost; None while none is
        self._ended_at: float | None = None  # when the first of those attempts ended that are not made up for
        self._up_at = 0.0  # when the last attempt was up

    @property
    def seconds(self) -> float:
        """Seconds lost; those of an attempt that never came as far as one before it count until it was up."""
        return self._made_up_for + (0.0 if self._since is None else max(0.0, self._up_at - self._since))

    def __call__(self, event: Event) -> None:
        """Follow how far the training is."""
        if type(event.data) is RunAttempt:
            self._attempt = event.data.attempt
            if self._since is None and self._ended_at is not None:  # now, as last steps may be told late
                self._since = min(self._ended_at, self._furthest[1]) if self._furthest else self._ended_at
        reached = event.data.reached if type(event.data) is Progress else None
        if reached is None:
            return
        if self._since is not None and self._furthest is not None and reached >= self._furthest[0]:
            lost = self._make_up()
            text = f"Attempt {self._attempt} is at {reached}, as far as the training was: {lost:.1f} s were lost."
            self._tell(Event.of(Note(text, lost)))
        if self._furthest is None or reached > self._furthest[0]:
            self._furthest = reached, clock.now()

    def ended(self) -> None:
        """Note that an attempt has ended, and that there is to be another."""
        if self._ended_at is None:
            self._ended_at = clock.now()

    def is_up(self, workers: str) -> None:
        """Note that an attempt is up, on ``workers``, a sentence about them."""
        self._up_at = clock.now()
        if self._ended_at is None:
            return
        if self._furthest is None:
            lost = self._make_up()
            note = Note(f"Attempt {self._attempt} runs: {lost:.1f} s were lost. {workers}", lost)
        else:
            note = Note(
                f"Attempt {self._attempt} runs, {self._up_at - self._ended_at:.1f} s after the failure. {workers}"
            )
        self._tell(Event.of(note))

    def _make_up(self) -> float:
        """Return how many seconds were lost until now, when no more are."""
        lost = clock.now() - (self._since or 0.0)
        self._made_up_for += lost
        self._since = self._ended_at = None
        return lost
