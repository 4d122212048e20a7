"""The harness behind ``make chaos``: the same seed makes the same faults, and its verdicts can fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from muster.errors import ScriptFailed, WorkerKilled

from benchmarks.chaos import __main__ as command
from benchmarks.chaos import faults, harness
from benchmarks.chaos.faults import Case, Fault, Verdict

RAISED = Fault("raise KeyError", "rank 3", Verdict("ScriptFailed", "rank 3", "KeyError"), 7)
KILLED = Fault("send 9", "rank 0", Verdict("WorkerKilled", "rank 0", "signal 9 (SIGKILL)"))


def case(*wrong: Fault) -> Case:
    return Case(0, "exception", "processes", "ring", 2, 2, "raise", wrong)


def test_the_same_seed_and_number_make_the_same_case() -> None:
    def made(seed: int) -> list[Case]:
        return [faults.make(seed, number, tuple(faults.FAMILIES), ("processes", "mpi")) for number in range(60)]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert {found.family for found in made(1)} == set(faults.FAMILIES)


def test_only_the_right_worker_and_the_right_kind_count_as_told_right() -> None:
    right = ScriptFailed("rank 3 (worker-1) failed first: KeyError: 'learning_rate'", worker="worker-1")
    right.rank = 3
    neighbour = ScriptFailed("rank 2 (worker-1) failed first: KeyError: 'learning_rate'", worker="worker-1")
    neighbour.rank = 2
    other_kind = WorkerKilled("rank 3 (worker-1) was ended by signal 9 (SIGKILL).", worker="worker-1")
    other_kind.rank = 3
    assert harness.is_right(case(RAISED), right)
    assert harness.is_right(case(KILLED, RAISED), right)
    assert not harness.is_right(case(RAISED), neighbour)
    assert not harness.is_right(case(RAISED), other_kind)
    assert not harness.is_right(case(RAISED), None)
    assert harness.is_right(case(Fault("slow", "link", Verdict(""))), None)


@pytest.mark.parametrize("fault", [RAISED, KILLED], ids=["from inside", "from outside"])
def test_a_fault_in_a_real_run_is_told_and_measured(fault: Fault, tmp_path: Path) -> None:
    found = harness.run(case(fault), tmp_path / "kept")
    assert found.is_right, found.message
    assert not found.left
    assert found.told_after is not None
    assert found.gone_after is not None
    assert found.gone_after >= found.told_after > 0
    assert not (tmp_path / "kept").exists()
    assert "| all | 1 of 1 |" in command.table([(case(fault), found)])
