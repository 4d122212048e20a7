"""The guard of jobs: outlives the session, and cancels its jobs, queued ones too, when that is gone.

Agents end by themselves a lease after they have lost the session. But a job that is queued has none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.agent import linux
from muster.agent.removal import remove_folder
from muster.errors import PlatformError
from muster.platforms.session_guard import SessionGuard, serve
from muster.platforms.slurm import commands
from muster.platforms.slurm.submissions import Submission

AGAIN_SECONDS = 2.0  # between two tries
STEP_SECONDS = 5.0  # that agents get to end their processes and remove their files
LATE_SECONDS = 10.0  # for which jobs are looked for that were being submitted when the session ended


class JobGuard(SessionGuard):
    """The session's end of a guard of jobs. Raises OSError."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._folders: list[str] = []
        self._steps: list[tuple[int, int]] = []
        super().__init__(__name__, {"labels": [], "folders": [], "steps": []})

    def watch_folder(self, folder: Path) -> None:
        """Have it remove a submission's folder, should the session end."""
        self._folders.append(str(folder))
        self.tell({"folders": self._folders})

    def watch(self, label: str) -> None:
        """Have it cancel the jobs of this name, should the session end."""
        self._labels.append(label)
        self.tell({"labels": self._labels})

    def watch_step(self, pid: int) -> None:
        """Have it end the process that has started a step, should the session end."""
        self._steps.append((pid, linux.start_of(pid)))
        self.tell({"steps": self._steps})


def clean_up(facts: dict[str, Any]) -> None:
    """End steps, cancel jobs, and remove files; a job whose submission was under way at the end comes a moment later.

    Raises:
        PlatformError: Slurm does not answer.
    """
    for pid, start in facts["steps"]:
        if linux.is_running(pid, start):
            _end_step(pid, start, [*map(Path, facts["folders"])])
    began = time.monotonic()
    while facts["labels"]:
        commands.cancel("--me", f"--name={','.join(facts['labels'])}")
        if time.monotonic() > began + LATE_SECONDS:
            break
        time.sleep(AGAIN_SECONDS)
    for folder in facts["folders"]:  # of jobs that never began, it has what only they were to know
        remove_folder(folder)


def _end_step(pid: int, start: int, folders: Sequence[Path]) -> None:
    """Have agents end that lose their session anyway, or what has started them kill them."""
    for made in filter(None, map(Submission.found, folders)):
        if made.is_step and made.step:
            with contextlib.suppress(PlatformError):
                commands.cancel("--signal=TERM", made.step)
    deadline = time.monotonic() + STEP_SECONDS
    while linux.is_running(pid, start):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGTERM)
            return
        time.sleep(0.05)


if __name__ == "__main__":
    serve(clean_up)
