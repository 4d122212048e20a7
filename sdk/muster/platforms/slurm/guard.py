"""The guard of jobs: a process that outlives the session and cancels its jobs, queued ones too.

Agents end by themselves a lease after they have lost the session, but a queued job has no agents yet.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.agent import linux, slurm_site
from muster.errors import PlatformError
from muster.platforms.session_guard import SessionGuard
from muster.platforms.slurm.site import HERE
from muster.platforms.slurm.submissions import Submission

STEP_SECONDS = 5.0  # time that agents may take to end their processes and remove their files


class JobGuard(SessionGuard):
    """The guard of a session's jobs, which this object starts. Raises OSError."""

    def __init__(self) -> None:
        self._labels: list[str] = []
        self._folders: list[str] = []
        self._steps: list[tuple[int, int]] = []
        super().__init__(__name__, {"labels": [], "folders": [], "steps": []})

    def watch_folder(self, folder: Path) -> None:
        """Have the guard remove a submission's folder after the session's end."""
        self._folders.append(str(folder))
        self.tell({"folders": self._folders})

    def watch(self, label: str) -> None:
        """Have the guard cancel the jobs of this name after the session's end."""
        self._labels.append(label)
        self.tell({"labels": self._labels})

    def watch_step(self, pid: int) -> None:
        """Have the guard end a step after the session's end, given the id of the srun process that started it."""
        self._steps.append((pid, linux.start_of(pid)))
        self.tell({"steps": self._steps})


def clean_up(facts: dict[str, Any]) -> None:
    """End steps, cancel jobs, and remove files.

    Raises:
        OSError: Slurm does not answer.
    """
    for pid, start in facts["steps"]:
        if linux.is_running(pid, start):
            _end_step(pid, start, [*map(Path, facts["folders"])])
    slurm_site.clean_up(facts["labels"], facts["folders"])


def _end_step(pid: int, start: int, folders: Sequence[Path]) -> None:
    """End the agents of a step with SIGTERM, or else its srun process, which then kills them."""
    for made in filter(None, map(Submission.found, folders)):
        if made.is_step and made.step:
            with contextlib.suppress(PlatformError):
                HERE.cancel("--signal=TERM", made.step)
    deadline = time.monotonic() + STEP_SECONDS
    while linux.is_running(pid, start):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGTERM)
            return
        time.sleep(0.05)
