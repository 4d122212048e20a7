"""Results of cases in a file, one per line, so that many cases can be run in pieces."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.chaos.faults import Case
from benchmarks.chaos.harness import Outcome


@dataclass(frozen=True)
class Kept:
    """The outcome of one case, as plain data.

    Attributes:
        seed, number: seed and number of the case.
        told_after, gone_after: seconds, as in ``Outcome``.
        left: number of things that were left behind.
        load: the machine's load average when the case had ended.
    """

    seed: int
    number: int
    family: str
    shape: str
    is_right: bool
    told_after: float | None
    gone_after: float | None
    left: int
    load: float

    @classmethod
    def of(cls, seed: int, case: Case, outcome: Outcome) -> Kept:
        """Return the outcome of a case that has just ended, as plain data."""
        times = outcome.told_after, outcome.gone_after
        told = case.label, str(case.shape), outcome.is_right, *times, len(outcome.left), os.getloadavg()[0]
        return cls(seed, case.number, *told)


def add(path: Path, result: Kept) -> None:
    """Add a result to the file."""
    with path.open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def read(path: Path) -> list[Kept]:
    """Read the results of a file; of a case that was run several times, only the last."""
    found = [Kept(**json.loads(line)) for line in path.read_text().splitlines()]
    return [*{(result.seed, result.number): result for result in found}.values()]
