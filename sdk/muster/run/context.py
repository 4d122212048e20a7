"""A run that is ready to launch, with its folders and its workers (RunContext)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from muster.job import Job, Limits, WorkerSpec
from muster.platforms.base import Platform
from muster.run.checked import CheckedRun
from muster.strategies.base import Facts, Strategy
from muster.text.frozen import frozen


@frozen
class RunContext:
    """One run that is ready to launch: its folders have been made, and nothing has been launched.

    Attributes:
        checked: the run, with its platform and its limits.
        facts: the facts for planning: the run's id, its folders, the environment of its processes.
        specs: the workers to launch, in launch order.
    """

    checked: CheckedRun
    facts: Facts
    specs: Sequence[WorkerSpec]

    @property
    def run_id(self) -> str:
        """Id of the run; it marks every process of the run."""
        return self.facts.run_id

    @property
    def submission(self) -> str:
        """Key under which its workers are submitted, different in each attempt."""
        return f"{self.run_id}.{self.checked.attempt_number}"

    @property
    def run_dir(self) -> Path:
        """The run's folder, which keeps logs and results."""
        return self.facts.run_dir

    @property
    def job(self) -> Job:
        """The job that runs."""
        return self.checked.job

    @property
    def strategy(self) -> Strategy:
        """The strategy that plans it."""
        return self.checked.strategy

    @property
    def platform(self) -> Platform:
        """The platform that its workers run on."""
        return self.checked.platform

    @property
    def owns_platform(self) -> bool:
        """True if the platform ends with the run."""
        return self.checked.owns_platform

    @property
    def limits(self) -> Limits:
        """Time limits of the run."""
        return self.checked.limits
