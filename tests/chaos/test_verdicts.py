"""The verdict of ``make chaos`` on crafted ends of runs: only what is at fault may be named, and only as what it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from muster.errors import MusterError, RunTimeout
from muster.failure.diagnosis import did_not_come_up, explain, stalled
from muster.failure.failures import Failure, FailureKind
from muster.failure.waiting import Verdict as Blocker

from benchmarks.chaos.faults import GUARD_GONE, KILL, Case, Fault, Verdict
from benchmarks.chaos.shapes import Shape
from benchmarks.chaos.verdicts import is_right

NOWHERE = Path("/no/such/folder")
RAISED = Fault("raise KeyError", "rank 3", Verdict("ScriptFailed", "rank 3", {"kind": "exception", "type": "KeyError"}))
EXITED = Fault("_exit 7", "rank 0", Verdict("ScriptFailed", "rank 0", {"kind": "exit", "exit_code": 7}))
KILLED = Fault(KILL, "rank 0", Verdict("WorkerKilled", "rank 0", {"kind": "signal", "signal": 9}))
LAUNCHER = Fault(KILL, "launcher", Verdict("LauncherFailed", "launcher", {"kind": "launcher", "signal": 9}))
GUARD = Fault(KILL, "guard", Verdict("WorkerLost", "guard", {"kind": "lost", "message": GUARD_GONE}))
CUT = Fault("cut", "link 0 2", Verdict("RunStalled", facts={"kind": "stalled"}))

EXCEPTION_3 = Failure(FailureKind.EXCEPTION, 1.0, "worker-1", 3, type="KeyError", message="'rate'")
EXIT_0 = Failure(FailureKind.EXIT, 1.0, "worker-0", 0, exit_code=7)
EXIT_2 = Failure(FailureKind.EXIT, 1.0, "worker-1", 2, exit_code=1)
KILL_0 = Failure(FailureKind.SIGNAL, 1.0, "worker-0", 0, signal=9)
LAUNCHER_KILLED = Failure(FailureKind.LAUNCHER, 1.0, message="mpiexec", signal=9)
LOST = Failure(FailureKind.LOST, 1.0, "worker-1", message="its agent closed the connection")
GUARDLESS = replace(LOST, message=GUARD_GONE)


def told(failure: Failure, *ties: Failure) -> MusterError:
    return explain(failure, NOWHERE, ties=ties)


def judged(error: MusterError | None, *faults: Fault, shape: Shape = Shape("openmpi", 2, 2)) -> bool:  # noqa: B008
    return is_right(Case(0, "exit", shape, "ring", "raise", faults), error)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [(RAISED, EXCEPTION_3), (EXITED, EXIT_0), (KILLED, KILL_0), (LAUNCHER, LAUNCHER_KILLED), (GUARD, GUARDLESS)],
)
def test_what_is_at_fault_is_right(fault: Fault, failure: Failure) -> None:
    assert judged(told(failure), fault)
    assert not judged(None, fault)
    assert not judged(RunTimeout("The run took longer than its 120 s."), fault)


def test_a_launcher_that_was_asked_to_end_may_be_told_by_a_rank_that_it_let_go() -> None:
    asked = Fault("send 15", "launcher", Verdict("LauncherFailed", "launcher and ranks that it lets go"))
    let_go = told(Failure(FailureKind.HUNG_UP, 1.0, "worker-1", 3))
    assert judged(let_go, asked)
    assert judged(told(replace(LAUNCHER_KILLED, signal=None, exit_code=1)), asked)
    assert not judged(let_go, LAUNCHER), "which was killed"
    assert not judged(told(EXIT_2), asked)


@pytest.mark.parametrize(
    ("fault", "failure"),
    [
        (RAISED, replace(EXCEPTION_3, rank=2)),
        (RAISED, replace(EXCEPTION_3, type="ConnectionResetError", message="after a KeyError")),
        (RAISED, Failure(FailureKind.EXIT, 1.0, "worker-1", 3, exit_code=1)),
        (EXITED, replace(EXIT_0, exit_code=1)),
        (EXITED, EXIT_2),
        (KILLED, replace(KILL_0, signal=15)),
        (KILLED, replace(KILL_0, worker="worker-1", rank=2)),
        (LAUNCHER, replace(LAUNCHER_KILLED, signal=None, exit_code=137)),
        (LAUNCHER, Failure(FailureKind.HUNG_UP, 1.0, "worker-1", 3)),
        (LAUNCHER, Failure(FailureKind.DAEMON, 1.0, "worker-1", signal=9)),
        (LAUNCHER, LOST),
        (GUARD, LOST),
    ],
)
def test_another_one_or_another_kind_is_wrong(fault: Fault, failure: Failure) -> None:
    assert not judged(told(failure), fault)


def test_a_tie_with_an_innocent_is_wrong_whoever_comes_first() -> None:
    assert not judged(told(EXIT_0, EXIT_2), EXITED)
    assert not judged(told(EXIT_2, EXIT_0), EXITED)
    assert not judged(told(EXIT_0, EXIT_2), EXITED, RAISED), "nothing was done to rank 2"
    other = Fault("_exit 1", "rank 2", Verdict("ScriptFailed", "rank 2", {"kind": "exit", "exit_code": 1}))
    assert judged(told(EXIT_0, EXIT_2), EXITED, other)


def test_where_peers_abort_as_the_one_that_they_lost_did_a_tie_must_have_it_among_them() -> None:
    aborted = Failure(FailureKind.SIGNAL, 1.0, "worker-0", 0, signal=6)
    other, third = replace(aborted, rank=1), replace(aborted, worker="worker-1", rank=2)
    fault = Fault("abort", "rank 0", Verdict("WorkerKilled", "rank 0", {"kind": "signal", "signal": 6}))

    def judged_beside(reaction: str, error: MusterError) -> bool:
        return is_right(Case(0, "signal", Shape("openmpi", 2, 2), "ring", reaction, (fault,)), error)

    assert judged_beside("abort", told(other, aborted))
    assert not judged_beside("raise", told(other, aborted))
    assert not judged_beside("abort", told(other, third))


def test_where_peers_abort_as_they_have_lost_one_that_crashed_a_tie_must_name_that_one_first() -> None:
    crashed = Failure(FailureKind.SIGNAL, 1.0, "worker-0", 0, signal=4)
    aborted = replace(crashed, rank=1, signal=6)
    fault = Fault("send 4", "rank 0", Verdict("WorkerKilled", "rank 0", {"kind": "signal", "signal": 4}))
    killed = replace(fault, verdict=Verdict("WorkerKilled", "rank 0", {"kind": "signal", "signal": 9}))

    def judged_as(fault: Fault, error: MusterError) -> bool:
        return is_right(Case(0, "signal", Shape("openmpi", 2, 2), "ring", "abort", (fault,)), error)

    assert judged_as(fault, told(crashed, aborted))
    assert not judged_as(fault, told(aborted, crashed))
    assert not judged_as(killed, told(replace(crashed, signal=9), aborted)), "a kill is no crash"
    assert judged_as(EXITED, told(EXIT_0, aborted))
    assert not judged_as(EXITED, told(aborted, EXIT_0))


def test_of_two_faults_one_is_right_and_a_third_is_not() -> None:
    assert judged(told(KILL_0), KILLED, RAISED)
    assert judged(told(EXCEPTION_3), KILLED, RAISED)
    assert not judged(told(EXIT_2), KILLED, RAISED)
    assert not judged(told(replace(EXCEPTION_3, worker="worker-0", rank=0)), KILLED, RAISED)


def test_a_cut_link_takes_both_ends_and_a_hang_one() -> None:
    def ends(*named: tuple[str, int]) -> MusterError:
        return stalled(Blocker(named[0], "", *named[1:]), 3.0, {}, NOWHERE)

    hang = Fault("hang", "rank 0", Verdict("RunStalled", "rank 0", {"kind": "stalled", "others": []}))
    assert judged(ends(("worker-0", 0), ("worker-1", 2)), CUT)
    assert judged(ends(("worker-1", 2), ("worker-0", 0)), CUT)
    assert not judged(ends(("worker-0", 0)), CUT)
    assert not judged(ends(("worker-0", 0), ("worker-1", 3)), CUT)
    assert judged(ends(("worker-0", 0)), hang)
    assert not judged(ends(("worker-0", 0), ("worker-1", 2)), hang)


def test_a_worker_that_is_lost_may_have_been_refused_where_its_fault_says_so_and_a_server_has_no_rank() -> None:
    servers = Shape("servers", 3, 1)
    facts = {"kind": "lost"}
    lost = Fault(KILL, "agent ps-0", Verdict("WorkerLost or LaunchRefused", "worker ps-0", facts))
    of_server = replace(LOST, worker="ps-0")
    for error in (told(of_server), did_not_come_up(of_server, NOWHERE)):
        assert judged(error, lost, shape=servers)
        only_lost = replace(lost, verdict=replace(lost.verdict, error="WorkerLost"))
        assert judged(error, only_lost, shape=servers) is (type(error).__name__ == "WorkerLost")
    assert not judged(told(LOST), lost, shape=servers)
    assert judged(told(replace(KILL_0, worker="ps-0", rank=None)), KILLED, shape=servers)
    assert not judged(told(replace(KILL_0, rank=None)), KILLED, shape=servers)


def test_a_worker_beside_the_victim_counts_on_hosts_and_one_of_another_does_not() -> None:
    hosts = Shape("processes", 4, 1)
    fault = Fault(KILL, "guard worker-0", Verdict("WorkerLost", "beside worker-0", {"kind": "lost"}))
    assert judged(told(LOST), fault, shape=hosts)
    assert not judged(told(replace(LOST, worker="worker-2")), fault, shape=hosts)


def test_where_a_run_may_come_to_its_end_both_are_right() -> None:
    may = Fault(KILL, "guard", Verdict("WorkerLost or nothing", "guard"))
    assert judged(None, may)
    assert judged(told(LOST), may)
    assert not judged(told(KILL_0), may)


def test_what_ends_nothing_is_right_only_where_the_run_succeeds() -> None:
    slow = Fault("slow", "link 0 1", Verdict(""))
    assert judged(None, slow)
    assert not judged(told(EXIT_0), slow)
