"""What came out of a run."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster.errors import MusterError
from muster.events import metrics_to_json

OWN = re.compile(r"(rank|chief|worker|ps)-\d+")  # the script may keep files of its own beside them


def exit_codes(exits: Mapping[tuple[str, int | None], int]) -> dict[str, int]:
    """Exit status by ``rank 0`` or worker name, from those by worker and rank."""
    ordered = sorted(exits.items(), key=lambda item: (item[0][1] or 0, item[0][0]))
    return {worker if rank is None else f"rank {rank}": code for (worker, rank), code in ordered}


@dataclass(frozen=True)
class Result:
    """What came out of a run.

    Attributes:
        status: ``succeeded``, ``failed`` or ``stopped``.
        run, run_dir: the run's id, and the folder that keeps its events, logs and results.
        exit_codes: exit status by ``rank 0`` or worker name; minus the number of a signal that ended it.
        timings: seconds that each phase took; and ``first_step``, from the start to the first step that was reported.
        seconds: all of them together.
        metrics: what the script last reported, by name.
        error: what went wrong, where something did.
    """

    status: str
    run: str
    run_dir: Path
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: MusterError | None = field(default=None, repr=False)

    @property
    def values(self) -> list[Any]:
        """What the function returned on each rank (or on each worker that ran it), in order; empty for scripts."""
        paths = [path for path in (self.run_dir / "results").glob("*.pkl") if OWN.fullmatch(path.stem)]
        return [pickle.loads(path.read_bytes()) for path in sorted(paths, key=_rank_of)]

    @property
    def value(self) -> Any:
        """What the function returned on the first rank; None for scripts."""
        return next(iter(self.values), None)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, as ``result.json`` keeps it."""
        error = self.error
        return {
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "exit_codes": dict(self.exit_codes),
            "timings": {phase: round(seconds, 3) for phase, seconds in self.timings.items()},
            "metrics": metrics_to_json(self.metrics),
            "error": type(error).__name__ if error else None,
            "reason": error.message if error else None,
            "advice": error.advice if error else None,
            "worker": error.worker if error else None,
            "details": error.details if error else None,
        }


def _rank_of(path: Path) -> tuple[str, int]:
    """``rank-10.pkl`` comes after ``rank-9.pkl``."""
    role, _, number = path.stem.rpartition("-")
    return role, int(number) if number.isdigit() else 0
