"""Interface of dashboards, and of the cluster that one shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from muster.events import Event


class Dashboard(Protocol):
    """An observer that shows a run's events, until ``close``. It may be called from any thread."""

    def __call__(self, event: Event) -> None:
        """Take one event into account."""
        ...

    def close(self) -> None:
        """Show the last state and release the screen. Idempotent; the end of the run does it as well."""
        ...


class Shown(Protocol):
    """The part of a cluster that a dashboard uses: where it keeps its files, and a way to end it without waiting."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        ...

    def ask_to_stop(self) -> None:
        """Ask the run to end."""
        ...

    def stacks(self) -> dict[str, str]:
        """The Python stacks of all ranks right now."""
        ...


@dataclass(frozen=True)
class Controls:
    """Actions that a viewer of a run can take; None for those that cannot be done from this process.

    Attributes:
        stop: asks the run to end, without waiting for that; raises MusterError if the run does not answer.
        stacks: returns the present Python stacks of all ranks; raises MusterError as well.
        is_own: whether the run ends with this session, and an interrupt of this session ends it.
    """

    stop: Callable[[], None] | None = None
    stacks: Callable[[], dict[str, str]] | None = None
    is_own: bool = False


class NoDashboard:
    """Shows nothing."""

    def __call__(self, event: Event) -> None:
        """Ignore the event."""

    def close(self) -> None:
        """Do nothing."""
