"""Interface of dashboards, and of the cluster that one shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from muster.events import Event
from muster.text.frozen import frozen


class Dashboard(Protocol):
    """An observer that shows a run's events until it is closed. It may be called from any thread."""

    def __call__(self, event: Event) -> None:
        """Take one event into account."""
        ...

    def close(self) -> None:
        """Show the last state and release the screen. Idempotent; the event for the end of the run does the same."""
        ...


class Shown(Protocol):
    """The part of a cluster's interface that a dashboard uses."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        ...

    def ask_to_stop(self) -> None:
        """Ask the run to end."""
        ...

    def stacks(self) -> dict[str, str]:
        """Return the current Python stacks of all ranks."""
        ...


@frozen
class Controls:
    """Actions that a viewer of a run can take; None for those that cannot be done from this process.

    Attributes:
        stop: asks the run to end, without waiting for that; raises MusterError if the run does not answer.
        stacks: returns the current Python stacks of all ranks; raises MusterError as well.
        is_own: whether the run ends with this session, and an interrupt of this session ends it.
    """

    stop: Callable[[], None] | None = None
    stacks: Callable[[], dict[str, str]] | None = None
    is_own: bool = False


class NoDashboard:
    """A dashboard that shows nothing."""

    def __call__(self, event: Event) -> None:
        """Ignore the event."""

    def close(self) -> None:
        """Do nothing."""
