"""The harness behind ``make chaos``: the same seed makes the same faults, and its verdicts can fail."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import __main__ as command
from benchmarks.chaos import faults, harness, kept, lanes, platforms, restarting, shapes
from benchmarks.chaos.faults import Case, Fault, Verdict
from benchmarks.chaos.shapes import Shape
from benchmarks.chaos.surroundings import Clocks, kernel_time

STRATEGIES = ("processes", "servers", "openmpi", "mpich", "horovod", "parameter_server")
KEY_ERROR = Verdict("ScriptFailed", "rank 3", {"kind": "exception", "type": "KeyError"})
SIGKILL = Verdict("WorkerKilled", "rank 0", {"kind": "signal", "signal": 9})
RAISED = Fault("raise KeyError", "rank 3", KEY_ERROR, 7)
KILLED = Fault("send 9", "rank 0", SIGKILL)


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


@pytest.mark.slow
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
    told = json.loads(json.dumps(command.figures(kept.read(results))))
    assert "| all | 1 of 1 |" in command.summary(told), "what was run again counts once"
    assert told["kinds"][-1]["told"]["median"] == pytest.approx(found.told_after, abs=0.001)


@pytest.mark.parametrize("moment", ["ending", ""])
def test_a_fault_whose_moment_never_comes_is_not_put_at_another(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UP_SECONDS", "END_SECONDS"):
        monkeypatch.setattr(harness, name, 0.01)
    struck: list[Fault] = []
    stage = harness.Stage(case(KILLED), platforms.platform_named("local"), tmp_path, tmp_path)
    monkeypatch.setattr(stage, "_strike", struck.append)
    stage.strike(replace(KILLED, moment=moment))
    assert not struck


def test_a_rank_that_leaves_when_it_has_lost_one_that_has_left_alike_is_no_tie(tmp_path: Path) -> None:
    left = Fault("exit-from-c 1", "rank 0", Verdict("ScriptFailed", "rank 0", {"kind": "exit", "exit_code": 1}), 7)
    found = harness.run(replace(case(left), reaction="exit"), tmp_path / "kept")
    assert found.is_right, found.message


def test_a_process_is_shown_the_clock_that_jumps_and_the_harness_measures_by_the_real_one(tmp_path: Path) -> None:
    clocks = Clocks(tmp_path)
    script = "import sys, time\nprint(time.time(), flush=True)\nsys.stdin.read(1)\nprint(time.time())"
    with clocks.shown():
        shown = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert shown.stdin is not None
    assert shown.stdout is not None
    before = float(shown.stdout.readline())
    clocks.jump(-3600)
    after = float(shown.communicate(b"x")[0])
    assert after < before - 1800
    assert abs(kernel_time() - before) < 1800


def test_on_other_platforms_there_are_their_own_faults() -> None:
    def made(platform: str) -> list[Case]:
        return [faults.make(7, number, faults.EVERYWHERE, STRATEGIES, (platform,)) for number in range(100)]

    assert {case.family for case in made("isolated")} == set(faults.ELSEWHERE)
    assert {case.family for case in made("served")} == set(faults.ELSEWHERE)
    assert {case.family for case in made("attacked")} == set(faults.FAMILIES)
    assert {case.family for case in made("hosts")} == {*faults.ELSEWHERE, *faults.ON_HOSTS}
    assert {case.family for case in made("containers")} == {*faults.ELSEWHERE, *faults.IN_CONTAINERS}
    assert made("hosts") == made("hosts")
    turns = [faults.make(7, number, faults.EVERYWHERE, STRATEGIES, ("hosts", "isolated")) for number in range(4)]
    assert [case.platform for case in turns] == ["hosts", "isolated"] * 2


@pytest.mark.slow
@pytest.mark.parametrize("platform", ["attacked", "served", "isolated", "hosts", "containers"], ids="on {}".format)
def test_a_fault_on_another_platform_is_told(platform: str, tmp_path: Path) -> None:
    if platform not in platforms.available():
        pytest.skip("this takes root; unshare, ip and sshd, or Podman")
    shape = Shape("processes", 2, 1)
    verdict = Verdict("WorkerLost", "worker worker-1", {"kind": "lost"})
    fault = Fault("send 9", "agent worker-1", verdict)
    lost = Case(0, "agent", shape, "ring", "raise", (fault,), shape.options({}), platform)
    try:
        found = harness.run(lost, tmp_path / "kept")
    finally:
        platforms.close_all()
    assert found.is_right, found.message
    assert not found.left


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "is_right"), [(KILLED, True), (RAISED, False)], ids=["tried again", "told at once"])
def test_a_training_that_is_tried_again_must_learn_the_very_same(fault: Fault, is_right: bool, tmp_path: Path) -> None:
    shape = Shape("processes", 2, 1)
    hit = replace(fault, victim="rank 1", verdict=replace(fault.verdict, victim="rank 1"))
    options = {**shape.options({}), "restarts": restarting.RESTARTS}
    case = Case(0, "signal", shape, "all", "raise", (hit,), options, restarts=restarting.RESTARTS)
    found = harness.run(case, tmp_path / "kept", restarting.run, restarting.Attempts)
    assert found.is_right is is_right, found.message
    assert not found.left


@pytest.mark.slow
@pytest.mark.elsewhere  # only because it takes long
@pytest.mark.parametrize("strategy", ["openmpi", "mpich", "processes"])
@pytest.mark.parametrize("rank", range(3))
def test_any_worker_that_is_killed_costs_nothing_that_was_learnt(strategy: str, rank: int, tmp_path: Path) -> None:
    """Each of three, at another step: the weights are bit for bit those of a training that nothing interrupts."""
    if strategy not in shapes.available():
        pytest.skip(f"{strategy} cannot be used here")
    shape = Shape(strategy, 3, 1)
    step = (1, 7, 13)[rank]
    fault = Fault("send 9", f"rank {rank}", replace(SIGKILL, victim=f"rank {rank}"), step)
    case = Case(0, "signal", shape, "all", "raise", (fault,), {**shape.options({}), "restarts": 3}, restarts=3)
    found = harness.run(case, tmp_path / "kept", restarting.run, restarting.Attempts)
    assert found.is_right, found.message
    assert not found.left


def test_it_is_known_in_which_words_a_run_tells_each_fault_that_it_is_tried_again_after() -> None:
    cases = [restarting.make(1, number, restarting.FAMILIES, shapes.MPI) for number in range(500)]
    known = {
        words
        for case in cases
        for fault in case.faults
        if not restarting.told_at_once(case.family, fault)
        for words in restarting.reasons_for(fault)
    }
    assert {"was lost", "itself failed", "The launcher dropped"} < known


def test_every_signal_is_drawn_that_ends_a_process_and_those_that_end_none_of_muster_are_told_apart() -> None:
    fatal = {*map(faults.number_of, faults.FATAL), *faults.REAL_TIME}
    mild = {*map(faults.number_of, faults.MILD)}
    stopping = {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    assert not fatal & mild
    assert fatal | mild | stopping == signal.valid_signals()
    drawn = [faults.make(1, number, ("signal",), ("processes",)).faults[0] for number in range(2000)]
    assert {fault.verdict.facts["signal"] for fault in drawn} == fatal


def test_what_is_not_here_is_drawn_as_elsewhere_and_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn() -> list[Case]:
        families, strategies = command.ALL["faults"].split(","), command.ALL["strategies"].split(",")
        return [faults.make(12, number, families, strategies) for number in range(100)]

    everywhere = drawn()
    monkeypatch.setattr(shapes, "available", lambda: ["processes", "servers"])
    assert drawn() == everywhere
    lacking = [case for case in everywhere if command.lacks(case, is_isolated=False)]
    assert {case.shape.strategy for case in everywhere if case not in lacking} == {"processes", "servers"}
    assert not [case for case in everywhere if case not in lacking and case.family in faults.FOR_ROOT]
    narrowed = argparse.Namespace(**{**command.ALL, "faults": "mild signal"}, seed=12, restarts=False)
    assert command.replay(narrowed) == "--seed 12 --faults 'mild signal'"
    assert command.replay(argparse.Namespace(**command.ALL, seed=12, restarts=False)) == "--seed 12"


def test_what_is_left_on_a_platform_is_told_beside_what_is_left_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dirty(platforms.Here):
        def left(self) -> list[str]:
            return ["h1: a file"]

    monkeypatch.setattr(harness, "GONE_SECONDS", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "muster-left").mkdir()
    assert harness.what_is_left("no such run", Dirty()) == [str(tmp_path / "muster-left"), "h1: a file"]
