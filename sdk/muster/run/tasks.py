"""Background tasks of a run, none of which may fail without the run's noticing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

AGAIN_SECONDS = 1.0  # a task that has caught its cancellation is cancelled again


class Tasks:
    """The tasks of one run.

    Args:
        on_death: called when one of them has raised, or anything else has failed.

    Attributes:
        error: the first error that was raised; None if there was none.
    """

    def __init__(self, on_death: Callable[[], object]) -> None:
        self.error: BaseException | None = None
        self._on_death = on_death
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, object], name: str) -> asyncio.Task[Any]:
        """Run ``work`` as a background task."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._note)
        return task

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended; errors that they raise meanwhile are recorded, too."""
        while tasks := list(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=AGAIN_SECONDS)

    def fail(self, error: BaseException) -> None:
        """Record an error as if a task had raised it."""
        self.error = self.error or error
        self._on_death()

    def _note(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)
