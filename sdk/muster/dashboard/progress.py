"""Progress of one process, and its speed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from muster import events

STILL_SECONDS = 10.0  # after this time without a step, plus that of STILL_STEPS steps, the time left is unknown
STILL_STEPS = 5
BEHIND, STEPS_BEHIND = 0.02, 1  # part of the work, and steps, that a process may be behind without counting as slow
RATE_SECONDS = 10.0  # over which examples per second are averaged


@dataclass
class ProcessProgress:
    """Progress of one process: the numbers it last reported, and its examples per second.

    A script that has ever reported step 0 counts from 0: its step 59 is the sixtieth; likewise epochs. If its step
    falls by more than half, it has begun to count anew: ``earlier`` is the number of steps before that. ``began`` is
    the time of the first report from which the part of the work done is known, and that part; ``moved`` is the time
    when the part last changed, and ``moves`` the number of its changes.
    """

    step: int | None = None
    steps: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    earlier: int = 0
    bytes_sent: int | None = None
    rate: float | None = None
    began: tuple[float, float] | None = None
    moved: float = 0.0
    moves: int = 0
    counts_from_zero: bool = False
    counts_epochs_from_zero: bool = False
    _samples: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=32), repr=False)

    @property
    def has_begun(self) -> bool:
        """True if the script has reported a step or an epoch."""
        return self.step is not None or self.epoch is not None

    @property
    def steps_done(self) -> int | None:
        """Number of steps done, in the epoch if there are epochs; None if the script did not report it."""
        is_one_behind = self.counts_from_zero and self.step is not None and self.step < (self.steps or 0)
        return self.step + 1 if self.step is not None and is_one_behind else self.step

    @property
    def fraction(self) -> float | None:
        """Part of the work that is done, 0 to 1; None if the script did not report how much there is."""
        within = _part(self.steps_done, self.steps)
        if not self.epochs:
            return within
        return None if self.epoch_now is None else _part(self.epoch_now - 1 + (within or 0.0), self.epochs)

    def order(self) -> tuple[float, float]:
        """Return a sort key that puts the process that is furthest behind first."""
        return (self.fraction or 0.0, self.total_step or 0.0)

    @property
    def has_told_its_end(self) -> bool:
        """True if the process has reported its last epoch or, without epochs, its last step, or if that is unknown."""
        if self.epochs:
            return (self.epoch_now or 0) >= self.epochs
        return not self.steps or (self.steps_done or 0) >= self.steps

    def is_well_behind(self, other: ProcessProgress) -> bool:
        """Return whether this process is further behind another one than by chance."""
        if self.total_step is not None and other.total_step is not None:
            steps = other.total_step - self.total_step
            if steps <= STEPS_BEHIND:
                return False
            if self.fraction is None or other.fraction is None:
                return steps > BEHIND * other.total_step
        return (other.fraction or 0.0) - (self.fraction or 0.0) > BEHIND

    @property
    def position(self) -> str:
        """Position in the largest unit that the script reported, such as ``epoch 2/5``."""
        if self.epoch is not None and self.epochs:
            return f"epoch {self.epoch_now}/{self.epochs}"
        if self.step is None:
            return ""
        return f"step {self.steps_done}/{self.steps}" if self.steps else f"step {self.step}"

    @property
    def epoch_now(self) -> int | None:
        """The epoch under way, counted from 1; None if the script did not report it."""
        if self.epoch is None or not self.counts_epochs_from_zero:
            return self.epoch
        return self.epoch + 1 if self.epoch < (self.epochs or self.epoch + 1) else self.epoch

    @property
    def total_step(self) -> float | None:
        """Steps done over all epochs; None if the script did not report a step."""
        if self.step is not None and self.steps and self.epoch_now:
            return self.step + self.steps * (self.epoch_now - 1)
        return None if self.step is None else self.earlier + self.step

    def update(self, when: float, data: events.Progress) -> None:
        """Take the values of one report; those that it leaves out stay as they were."""
        before = self.fraction
        if self.step is not None and data.step is not None and 2 * data.step < self.step:
            is_within = self.steps is not None and self.step <= self.steps
            self.earlier += (self.steps or 0) if is_within else self.step + (data.step == 0)
        for name in ("step", "steps", "epoch", "epochs", "bytes_sent"):
            if (value := getattr(data, name)) is not None:
                setattr(self, name, value)
        self.counts_from_zero |= data.step == 0
        self.counts_epochs_from_zero |= data.epoch == 0
        if data.examples is not None:
            self._sample(when, data.examples)
        fraction = self.fraction
        if fraction is not None and (self.began is None or when < self.moved):  # the latter: the clock was set back
            self.began, self.moved, self.moves = (when, fraction), when, 0
        elif fraction != before:
            self.moved, self.moves = when, self.moves + 1

    def time_left(self, now: float) -> float | None:
        """Return the seconds until the work is done, at the average pace since it began; None if that is unknown.

        It is unknown, too, if the process has made no progress for much longer than its steps have taken.
        """
        fraction = self.fraction
        if self.began is None or fraction is None or fraction <= self.began[1] or now <= self.began[0]:
            return None
        if now - self.moved > STILL_SECONDS + STILL_STEPS * (self.moved - self.began[0]) / max(self.moves, 1):
            return None
        return (now - self.began[0]) * (1 - fraction) / (fraction - self.began[1])

    def _sample(self, when: float, examples: int) -> None:
        if self._samples and (examples < self._samples[-1][1] or when < self._samples[-1][0]):
            self._samples.clear()  # the script began to count anew, or the clock was set back
        if not self._samples or when - self._samples[-1][0] >= RATE_SECONDS / 40:
            self._samples.append((when, examples))
        while len(self._samples) > 2 and when - self._samples[0][0] > RATE_SECONDS:
            self._samples.popleft()
        then, before = self._samples[0]
        if when > then:
            self.rate = (examples - before) / (when - then)


def _part(done: float | None, total: int | None) -> float | None:
    return min(max(done / total, 0.0), 1.0) if done is not None and total else None
