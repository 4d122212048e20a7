"""The harness behind ``make chaos``: the same seed makes the same faults, and its verdicts can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.errors import LaunchRefused, ScriptFailed, WorkerKilled, WorkerLost

from benchmarks.chaos import __main__ as command
from benchmarks.chaos import faults, harness, kept, lanes, platforms, restarting
from benchmarks.chaos.faults import Case, Fault, Verdict
from benchmarks.chaos.shapes import Shape

STRATEGIES = ("processes", "servers", "openmpi", "mpich", "horovod", "parameter_server")
RAISED = Fault("raise KeyError", "rank 3", Verdict("ScriptFailed", "rank 3", "KeyError"), 7)
KILLED = Fault("send 9", "rank 0", Verdict("WorkerKilled", "rank 0", "signal 9 (SIGKILL)"))


def case(*wrong: Fault) -> Case:
    shape = Shape("processes", 2, 2)
    return Case(0, "exception", shape, "ring", "raise", wrong, shape.options({}))


def test_the_same_seed_and_number_make_the_same_case() -> None:
    def made(seed: int) -> list[Case]:
        return [faults.make(seed, number, tuple(faults.FAMILIES), STRATEGIES) for number in range(200)]

    assert made(1) == made(1)
    assert made(1) != made(2)
    assert {found.family for found in made(1)} == set(faults.FAMILIES)
    assert {found.shape.strategy for found in made(1)} == set(STRATEGIES)
    assert sum(found.shape.strategy == "horovod" for found in made(1)) <= 20, "they take long"


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


def test_of_two_kinds_of_error_either_counts_and_a_server_has_no_rank() -> None:
    shape = Shape("servers", 3, 1)
    lost = Fault("send 9", "agent ps-0", Verdict("WorkerLost or LaunchRefused", "ps-0"))
    killed = Fault("send 9", "rank 0", Verdict("WorkerKilled", "rank 0", "signal 9 (SIGKILL)"))
    for fault, error in ((lost, WorkerLost), (lost, LaunchRefused), (killed, WorkerKilled)):
        of_server = Case(0, "start", shape, "servers", "raise", (fault,))
        assert harness.is_right(of_server, error("ps-0 was ended by signal 9 (SIGKILL).", worker="ps-0"))
        assert not harness.is_right(of_server, error("It was ended by signal 9 (SIGKILL).", worker="worker-0"))


def test_a_lane_whose_process_ends_counts_as_wrong_and_the_others_go_on(tmp_path: Path) -> None:
    no_names: Any = {1: 2}
    good, bad = case(RAISED), replace(case(RAISED), number=1, options=no_names)
    found = {made.number: outcome for made, outcome in lanes.run([bad, good], tmp_path, 1, is_isolated=False)}
    assert not found[1].is_right
    assert "process ended with 1" in found[1].message
    assert found[0].is_right


@pytest.mark.parametrize("fault", [RAISED, KILLED], ids=["from inside", "from outside"])
def test_a_fault_in_a_real_run_is_told_and_measured(fault: Fault, tmp_path: Path) -> None:
    found = harness.run(case(fault), tmp_path / "kept")
    assert found.is_right, found.message
    assert not found.left
    assert found.told_after is not None
    assert found.gone_after is not None
    assert found.gone_after >= found.told_after > 0
    assert not (tmp_path / "kept").exists()
    results = tmp_path / "results"
    for outcome in (replace(found, is_right=False), found):
        kept.add(results, kept.Kept.of(7, case(fault), outcome))
    assert "| all | 1 of 1 |" in command.table(kept.read(results)), "what was run again counts once"


def test_on_other_platforms_there_are_their_own_faults() -> None:
    def made(platform: str) -> list[Case]:
        return [faults.make(7, number, faults.EVERYWHERE, STRATEGIES, (platform,)) for number in range(100)]

    assert {case.family for case in made("isolated")} == set(faults.ELSEWHERE)
    assert {case.family for case in made("hosts")} == {*faults.ELSEWHERE, *faults.ON_HOSTS}
    assert made("hosts") == made("hosts")
    turns = [faults.make(7, number, faults.EVERYWHERE, STRATEGIES, ("hosts", "isolated")) for number in range(4)]
    assert [case.platform for case in turns] == ["hosts", "isolated"] * 2


def test_a_worker_beside_the_victim_counts_on_hosts_and_one_of_another_does_not() -> None:
    shape = Shape("processes", 4, 1)
    fault = Fault("send 9", "guard worker-0", Verdict("WorkerLost", "beside worker-0", "on h1 has ended"))
    of_hosts = Case(0, "guard", shape, "ring", "raise", (fault,), platform="hosts")
    error = WorkerLost("worker-1 was lost: the process that guards its workers on h1 has ended.", worker="worker-1")
    assert harness.is_right(of_hosts, error)
    error.worker = "worker-2"
    assert not harness.is_right(of_hosts, error)


@pytest.mark.parametrize("platform", ["isolated", "hosts"])
def test_a_fault_on_another_platform_is_told(platform: str, tmp_path: Path) -> None:
    if platform not in platforms.available():
        pytest.skip("this takes root, unshare, ip and sshd")
    shape = Shape("processes", 2, 1)
    verdict = Verdict("WorkerLost", "worker-1", "worker-1 was lost")
    fault = Fault("send 9", "agent worker-1", verdict)
    lost = Case(0, "agent", shape, "ring", "raise", (fault,), shape.options({}), platform)
    try:
        found = harness.run(lost, tmp_path / "kept")
    finally:
        platforms.close_all()
    assert found.is_right, found.message
    assert not found.left


@pytest.mark.parametrize(("fault", "is_right"), [(KILLED, True), (RAISED, False)], ids=["tried again", "told at once"])
def test_a_training_that_is_tried_again_must_learn_the_very_same(fault: Fault, is_right: bool, tmp_path: Path) -> None:
    shape = Shape("processes", 2, 1)
    hit = replace(fault, victim="rank 1", verdict=replace(fault.verdict, victim="rank 1"))
    options = {**shape.options({}), "restarts": restarting.RESTARTS}
    case = Case(0, "signal", shape, "all", "raise", (hit,), options, restarts=restarting.RESTARTS)
    found = harness.run(case, tmp_path / "kept", restarting.run, restarting.Attempts)
    assert found.is_right is is_right, found.message
    assert not found.left
