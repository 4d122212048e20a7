"""The failure that came first: a table of cases, each in every order, and histories that Hypothesis makes up."""

from __future__ import annotations

import itertools
import signal
from dataclasses import dataclass, replace
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as some
from muster.agent import ranks
from muster.failure import causes
from muster.failure.causes import alike, root_cause, ties
from muster.failure.failures import Bearing, Failure, FailureKind
from muster.job import EndCause

CHAINED = (
    "Traceback (most recent call last):\nConnectionResetError: [Errno 104]\n\nTraceback:\nRuntimeError: no gradients"
)


def raised(worker: int, time: float, name: str = "ValueError", message: str = "bad luck", **more: object) -> Failure:
    return Failure(FailureKind.EXCEPTION, time, f"worker-{worker}", worker, name, message, **more)  # type: ignore[arg-type]


def broke(worker: int, time: float, name: str = "ConnectionResetError") -> Failure:
    return raised(worker, time, name, "[Errno 104] Connection reset by peer")


def exited(worker: int, time: float, code: int = 1) -> Failure:
    return Failure(FailureKind.EXIT, time, f"worker-{worker}", worker, exit_code=code)


def killed(worker: int, time: float, number: int = signal.SIGKILL) -> Failure:
    return Failure(FailureKind.SIGNAL, time, f"worker-{worker}", worker, signal=number)


def called_exit(worker: int, time: float, code: int, peer_was_gone: bool) -> Failure:
    return replace(exited(worker, time, code), peer_was_gone=peer_was_gone)


def lost(worker: int, time: float, **more: object) -> Failure:
    return Failure(FailureKind.LOST, time, f"worker-{worker}", **more)  # type: ignore[arg-type]


def hung_up(worker: int, time: float) -> Failure:
    return Failure(FailureKind.HUNG_UP, time, f"worker-{worker}", worker)


def stopped(worker: int, time: float) -> Failure:
    return Failure(FailureKind.STOPPED, time, f"worker-{worker}", worker, signal=signal.SIGTERM)


LAUNCHER = Failure(FailureKind.LAUNCHER, 10.6, message="mpiexec", exit_code=1)
LAUNCHER_KILLED = Failure(FailureKind.LAUNCHER, 10.0, message="mpiexec", signal=signal.SIGKILL)
LAUNCHER_ASKED = replace(LAUNCHER_KILLED, signal=signal.SIGTERM)
DAEMON_ASKED = Failure(FailureKind.DAEMON, 10.0, "worker-1", signal=signal.SIGTERM)
DAEMON_KILLED = Failure(FailureKind.DAEMON, 10.1, "worker-1", signal=signal.SIGKILL)
MEMORY = Failure(FailureKind.MEMORY, 10.01, "worker-1", 1, signal=signal.SIGKILL, used=2, limit=1)
SHUT_DOWN = ("HorovodInternalError", "Horovod has been shut down")

CASES = {
    "an exception, and what it led to": (
        raised(1, 10.0),
        [raised(0, 10.02, *SHUT_DOWN), broke(2, 10.01), exited(0, 10.03), exited(1, 10.05), LAUNCHER],
    ),
    "an exception whose peers said so before it came out": (raised(1, 10.3), [raised(0, 10.0, *SHUT_DOWN)]),
    "the earlier of two exceptions": (raised(1, 10.0), [raised(0, 10.1, "KeyError")]),
    "an exception in a process whose peers were still there": (
        raised(1, 10.0, peer_was_gone=False), [killed(0, 10.01, signal.SIGABRT), exited(1, 10.03)],
    ),
    "an exit without a word, known after the connections that it broke": (
        exited(1, 10.004, 7), [broke(0, 10.001), exited(0, 10.02), broke(2, 10.002), exited(2, 10.03)],
    ),
    "an exit without a word, beside somebody who did not expect it": (
        exited(1, 10.004, 7), [raised(0, 10.001, "error", "unpack requires a buffer"), exited(0, 10.02)],
    ),
    "an exit, beside exceptions that came of a broken connection": (
        exited(1, 10.3, 7), [raised(0, 10.0, "RuntimeError", "no gradients", traceback=CHAINED)],
    ),
    "an exit, beside one that was left alone": (
        exited(1, 10.3, 7), [raised(0, 10.0, "RuntimeError", "no gradients", peer_was_gone=True)],
    ),
    "a call of sys.exit whose interpreter takes long, beside those who say that all is shut down": (
        exited(1, 10.0, 7), [raised(0, 10.2, *SHUT_DOWN), exited(1, 11.5, 7), raised(2, 10.1, *SHUT_DOWN)],
    ),
    "an exit, and much later an exception": (exited(1, 10.0, 7), [raised(0, 12.0)]),
    "a kill, known late": (killed(1, 10.4), [broke(0, 10.0), exited(0, 10.02), exited(2, 10.01)]),
    "a kill, beside libraries that ended their processes": (
        killed(1, 10.01), [exited(0, 10.0), killed(2, 10.0, signal.SIGABRT)],
    ),
    "a crash, beside one that aborted for it": (killed(1, 10.01, signal.SIGILL), [killed(0, 10.0, signal.SIGABRT)]),
    "a status of its own, beside the one of a library": (exited(1, 10.01, 42), [exited(0, 10.0, 1)]),
    "SIGTERM from somebody, beside those who lost it": (
        killed(1, 10.003, signal.SIGTERM), [broke(0, 10.0), exited(2, 10.0)],
    ),
    "a database that refuses one process, which its peers then miss": (
        broke(0, 10.0, "ConnectionRefusedError"),
        [exited(0, 10.02), exited(1, 10.021), killed(2, 10.022, signal.SIGABRT), raised(3, 10.025, "error", "short")],
    ),
    "a broken connection, and a kill long after": (broke(0, 10.0), [exited(0, 10.02), killed(1, 11.0)]),
    "a broken connection, and an exception long after": (broke(0, 10.0), [raised(1, 10.1)]),
    "a lost worker takes its ranks along": (lost(1, 10.0), [killed(1, 10.1), broke(0, 10.05)]),
    "a lost worker that was last heard of before its peers timed out": (
        lost(1, 30.0, since=5.0), [raised(0, 15.0, "TimeoutError", "timed out")],
    ),
    "a lost worker whose last words a busy session read after its peer had missed it": (
        lost(1, 10.2, since=10.1), [broke(0, 10.0)],
    ),
    "a lost worker, though its rank had broken a pipe": (lost(1, 10.0), [killed(1, 9.9, signal.SIGPIPE)]),
    "a lost worker, whose rank had been asked to end before": (lost(1, 10.3), [killed(1, 10.0, signal.SIGTERM)]),
    "a lost worker, whose ranks were asked to end long before it had left": (
        lost(1, 11.0), [killed(1, 10.0, signal.SIGTERM), broke(0, 10.002), exited(0, 10.02)],
    ),
    "a lost worker, though the launcher had been asked to end before": (lost(1, 10.3), [LAUNCHER_ASKED]),
    "a lost worker, though a daemon of the launcher had been asked to end before": (lost(1, 10.3), [DAEMON_ASKED]),
    "a rank that was asked to end, over another worker lost later": (
        killed(0, 10.0, signal.SIGTERM), [lost(1, 12.0)],
    ),
    "a launcher that was asked to end, over what it left behind": (
        LAUNCHER_ASKED, [hung_up(0, 10.01), stopped(0, 10.2), killed(1, 10.1, signal.SIGTERM)],
    ),
    "memory, over the signal that ended it": (MEMORY, [killed(1, 10.0), broke(0, 10.0)]),
    "a broken pipe where there is nothing else": (killed(0, 9.9, signal.SIGPIPE), [LAUNCHER]),
    "an exit, however late, over a broken pipe": (exited(1, 10.9), [killed(0, 9.9, signal.SIGPIPE), LAUNCHER]),
    "a killed launcher, over what it left behind": (
        LAUNCHER_KILLED, [hung_up(0, 10.01), stopped(0, 10.2), killed(1, 10.1, signal.SIGTERM)],
    ),
    "a launcher that lets its ranks go, which then lose each other": (
        hung_up(1, 10.0), [hung_up(0, 10.01), stopped(1, 10.21), broke(0, 10.2), LAUNCHER],
    ),
    "a rank that failed first, under a launcher that then lets go of another": (
        broke(0, 10.0, "ConnectionRefusedError"), [exited(0, 10.02), hung_up(1, 10.1), stopped(1, 10.3), LAUNCHER],
    ),
    "a killed daemon of the launcher": (DAEMON_KILLED, [hung_up(1, 10.05), LAUNCHER, stopped(1, 10.3)]),
    "a rank that its launcher dropped, where there is nothing else": (
        hung_up(1, 10.1), [LAUNCHER, stopped(1, 10.3), hung_up(0, 10.2)],
    ),
    "a launcher that lets its ranks go, which then abort as they lose each other": (
        hung_up(1, 10.0), [hung_up(0, 10.01), stopped(1, 10.2), killed(0, 10.21, signal.SIGABRT), LAUNCHER],
    ),
    "a launcher that lets its ranks go, whose collectives then fail": (
        hung_up(1, 10.0), [hung_up(0, 10.01), stopped(1, 10.2), raised(0, 10.005, *SHUT_DOWN), LAUNCHER],
    ),
    "a rank that crashed, over a launcher that lets all go when it hears of that": (
        killed(0, 10.0, signal.SIGSEGV), [hung_up(1, 10.01), stopped(1, 10.2), LAUNCHER],
    ),
    "a rank that crashed, over a launcher that heard of it before its agent did": (
        replace(killed(1, 10.003, signal.SIGSEGV), place=0), [hung_up(0, 10.0), stopped(0, 10.2), LAUNCHER],
    ),
    "a rank that was asked to end, over a launcher that heard of it before its agent did": (
        replace(killed(1, 10.003, signal.SIGTERM), place=0), [hung_up(0, 10.0), stopped(0, 10.2), LAUNCHER],
    ),
    "a rank that aborted, over a launcher that heard of it, and dropped all, before its agent did": (
        replace(killed(1, 10.045, signal.SIGABRT), place=0, uncertainty=0.016),
        [hung_up(1, 10.0), hung_up(0, 10.015), stopped(0, 10.2), LAUNCHER],
    ),
    "a crash that was noticed late on another machine, over what its peers' ends had led to": (
        replace(killed(0, 10.1, signal.SIGSEGV), uncertainty=0.09),
        [replace(killed(1, 10.02, signal.SIGABRT), uncertainty=0.09), hung_up(2, 10.06), stopped(2, 10.3), LAUNCHER],
    ),
    "a crash that was noticed late here, over what its peers' ends had led to": (
        replace(killed(0, 10.1, signal.SIGSEGV), uncertainty=0.09, place=0),
        [replace(killed(1, 10.02, signal.SIGABRT), place=1), hung_up(2, 10.06), stopped(2, 10.3), LAUNCHER],
    ),
    "a rank that aborted, over a launcher that lets all go": (exited(1, 10.5, 3), [LAUNCHER, hung_up(1, 10.1)]),
    "the launcher, where there is nothing else": (LAUNCHER, []),
}  # fmt: skip


def named(failure: Failure | None) -> tuple[object, ...]:
    assert failure is not None
    return failure.kind, failure.worker, failure.rank, failure.type, failure.exit_code or failure.signal


@pytest.mark.parametrize("case", CASES)
def test_the_cause_is_found_in_whatever_order_things_become_known(case: str) -> None:
    cause, others = CASES[case]
    failures = [cause, *others]
    for order in (failures, failures[::-1], *itertools.permutations(failures[:4])):
        found = root_cause([*order, *failures[len(order) :]])
        assert found is not None
        assert (found.kind, found.worker, found.rank, found.type) == (cause.kind, cause.worker, cause.rank, cause.type)


def test_the_end_of_a_process_that_raised_is_no_failure_of_its_own() -> None:
    cause = root_cause([raised(1, 10.0), exited(1, 10.1)])
    assert cause is not None
    assert (cause.kind, cause.exit_code, cause.ended) == (FailureKind.EXCEPTION, 1, 10.1)
    assert root_cause([]) is None


@pytest.mark.parametrize(
    ("failure", "bearing"),
    [
        (raised(0, 1.0), Bearing.RAISED),
        (raised(0, 1.0, peer_was_gone=False), Bearing.OWN),
        (raised(0, 1.0, peer_was_gone=True), Bearing.BROKEN),
        (raised(0, 1.0, "RuntimeError", "failed", traceback=CHAINED), Bearing.BROKEN),
        (raised(0, 1.0, "EOFError", "Ran out of input"), Bearing.BROKEN),
        (raised(0, 1.0, "UnknownError", "Connection reset by peer"), Bearing.BROKEN),
        (raised(0, 1.0, "RuntimeError", "[pair.cc:598] Connection closed by peer [10.0.0.1]:4711"), Bearing.COLLECTIVE),
        (raised(0, 1.0, *SHUT_DOWN), Bearing.COLLECTIVE),
        (raised(0, 1.0, "UnknownError", "Step was cancelled by an explicit call"), Bearing.COLLECTIVE),
        (raised(0, 1.0, "_Rendezvous", "Socket closed"), Bearing.COLLECTIVE),
        (raised(0, 1.0, "RuntimeError", "order 5 was Cancelled by the customer"), Bearing.RAISED),
        (raised(0, 1.0, "LookupError", "session 12 of the dataset is not found"), Bearing.RAISED),
        (killed(0, 1.0), Bearing.OWN),
        (killed(0, 1.0, signal.SIGSEGV), Bearing.CRASHED),
        (killed(0, 1.0, signal.SIGPIPE), Bearing.COLLECTIVE),
        (exited(0, 1.0), Bearing.SILENT),
        (hung_up(0, 1.0), Bearing.NOBODY),
        (LAUNCHER, Bearing.NOBODY),
        (LAUNCHER_KILLED, Bearing.OWN),
    ],
    ids=lambda value: value.name if isinstance(value, Bearing) else value.type or str(value.kind),
)
def test_what_a_peers_end_has_to_do_with_a_failure(failure: Failure, bearing: Bearing) -> None:
    assert failure.bearing is bearing


def test_what_nothing_tells_apart_is_a_tie() -> None:
    failures = [exited(1, 10.0, 7), exited(2, 10.002, 7), exited(0, 10.5, 7), broke(3, 10.001)]
    cause = root_cause(failures)
    assert cause == failures[0]
    assert ties(cause, failures) == [failures[1]]
    by_other_clocks = [replace(raised(1, 10.0), uncertainty=0.2), replace(raised(2, 10.3), uncertainty=0.2)]
    assert ties(by_other_clocks[0], by_other_clocks) == [by_other_clocks[1]]
    assert ties(raised(1, 10.0), [raised(1, 10.0), raised(2, 10.3)]) == []


def test_those_that_raised_the_same_are_counted() -> None:
    failures = [raised(0, 10.0), raised(1, 10.1), broke(2, 10.1), exited(0, 10.2)]
    assert alike(failures[0], failures) == 2
    assert alike(exited(0, 10.0, 3), [exited(0, 10.0, 3), exited(1, 10.01, 3), exited(2, 10.02, 4)]) == 2
    assert alike(exited(1, 10.0, 1), [exited(1, 10.0, 1), broke(0, 10.0), exited(0, 10.1, 1)]) == 1


# -- histories that are true, and how they are seen -------------------------------------------------------------------


@dataclass(frozen=True)
class Host:
    """A machine: how far its clock is off, how far what is measured of that is off, and by how much that may be."""

    offset: float
    mistake: float
    uncertainty: float

    def seen(self, failure: Failure) -> Failure:
        """A failure as the session sees it: by this host's clock, put right by what was measured."""
        measured = self.offset + self.mistake
        by_own_clock = failure.time + self.offset
        return replace(failure, time=by_own_clock - measured, uncertainty=self.uncertainty)


@some.composite
def hosts(draw: some.DrawFn) -> Host:
    uncertainty = draw(some.floats(0, 0.004))
    return Host(draw(some.floats(-1e6, 1e6)), draw(some.floats(-1, 1)) * uncertainty, uncertainty)


@some.composite
def histories(draw: some.DrawFn) -> tuple[Failure, list[Failure]]:
    """A failure that came first, and everything that becomes known of it and of those that lost it."""
    known_late = some.floats(0, 0.018)
    root, ended = draw(
        some.sampled_from(
            [
                ([raised(0, 100.0, peer_was_gone=False)], 100.03),
                ([raised(0, 100.0, "KeyError", "'lr'", peer_was_gone=False)], 100.2),
                ([exited(0, 100.0, 7)], 100.0),
                ([killed(0, 100.0)], 100.0),
                ([killed(0, 100.0, signal.SIGSEGV)], 100.0),
                ([killed(0, 100.0, signal.SIGTERM)], 100.0),
                ([lost(0, 100.0)], 100.0),
            ]
        )
    )
    failures = [replace(failure, time=failure.time + _lateness(failure, draw(known_late))) for failure in root]
    if root[0].kind is FailureKind.EXCEPTION:
        failures.append(exited(0, ended + draw(known_late)))
    for peer in range(1, draw(some.integers(1, 4)) + 1):
        at = ended + draw(some.floats(0.0005, 0.3))
        failures += draw(
            some.sampled_from(
                [
                    [broke(peer, at), exited(peer, at + 0.02 + draw(known_late))],
                    [
                        raised(peer, at, "error", "short", peer_was_gone=True),
                        exited(peer, at + 0.02 + draw(known_late)),
                    ],
                    [raised(peer, at, *SHUT_DOWN)],
                    [killed(peer, at + draw(known_late), signal.SIGABRT)],
                    [exited(peer, at + draw(known_late), 1)],
                    [killed(peer, at + draw(known_late), signal.SIGPIPE)],
                ]
            )
        )
    return root[0], draw(some.permutations(failures))


def _lateness(failure: Failure, seconds: float) -> float:
    """An exception is reported by who raises it, an end is noticed by another."""
    return 0.0 if failure.kind is FailureKind.EXCEPTION else seconds


def test_ends_that_a_busy_machine_noticed_late_are_told_as_a_tie() -> None:
    first = replace(exited(0, 10.0, 1), uncertainty=0.03)
    late = replace(exited(1, 10.06, 1), uncertainty=0.03)
    assert [failure.rank for failure in ties(first, [first, late])] == [1]
    assert not ties(first, [first, replace(late, uncertainty=0.0)])


@pytest.mark.slow
@given(histories(), some.lists(hosts(), min_size=5, max_size=5))
def test_of_any_history_the_first_is_named_whatever_the_clocks_of_the_hosts_show(
    history: tuple[Failure, list[Failure]], machines: list[Host]
) -> None:
    root, failures = history
    seen = [machines[int(str(failure.worker).rpartition("-")[2])].seen(failure) for failure in failures]
    cause = root_cause(seen)
    assert cause is not None
    assert (cause.worker, cause.kind) == (root.worker, root.kind)


kinds = some.sampled_from([raised, broke, exited, killed, lost, hung_up, stopped])


@given(
    some.lists(
        some.builds(lambda make, worker, time: make(worker, time), kinds, some.integers(0, 3), some.floats(0, 1))
    ),
    some.randoms(),
)
def test_the_order_in_which_failures_come_never_changes_the_verdict(failures: list[Failure], dice: object) -> None:
    shuffled = list(failures)
    dice.shuffle(shuffled)  # type: ignore[attr-defined]
    assert root_cause(shuffled) == root_cause(failures)


def test_of_two_that_may_explain_each_other_the_one_that_speaks_more_for_itself_is_named() -> None:
    """An end that became known 16 ms late, beside a connection that broke for it, by clocks that are 4 ms off."""
    own = replace(exited(0, 100.016, 7), uncertainty=0.004)
    broken = [replace(failure, uncertainty=0.004) for failure in (broke(1, 100.0005), exited(1, 100.0205))]
    cause = root_cause([own, *broken])
    assert cause is not None
    assert cause.source == own.source


def test_no_message_takes_long_to_be_weighed() -> None:
    began = process_time()
    for name in ("ValueError", "NotFoundError"):
        assert raised(0, 1.0, name, "session " * 20_000).bearing is Bearing.RAISED
    assert raised(0, 1.0, "NotFoundError", "session 17f is not found.").bearing is Bearing.COLLECTIVE
    assert process_time() - began < 2  # twenty seconds where each word is looked for behind each other one


def test_of_workers_that_are_ended_for_the_memory_of_one_that_one_is_the_cause() -> None:
    ended = [Failure(FailureKind(EndCause.PEER), 1.0, "worker-0"), Failure(FailureKind.MEMORY, 1.2, "worker-1")]
    for failures in (ended, ended[::-1]):
        cause = root_cause(failures)
        assert cause is not None
        assert cause.worker == "worker-1"


@pytest.mark.parametrize("noticed", [(1.000, 1.001), (1.012, 1.001)], ids=["in their order", "the other way round"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (killed(0, 0, signal.SIGKILL), killed(1, 0, signal.SIGKILL)),
        (exited(0, 0, 1), killed(1, 0, signal.SIGABRT)),
        (killed(0, 0, signal.SIGBUS), exited(1, 0, 1)),
        (killed(0, 0, signal.SIGBUS), killed(1, 0, signal.SIGABRT)),
    ],
)
def test_the_order_in_which_the_kernel_saw_processes_end_tells_which_came_first(
    first: Failure, second: Failure, noticed: tuple[float, float]
) -> None:
    ends = [replace(first, time=noticed[0], place=4), replace(second, time=noticed[1], place=5)]
    unordered = [replace(end, place=None) for end in ends]
    for failures in itertools.permutations(ends):
        cause = root_cause(failures)
        assert cause is not None
        assert cause.worker == "worker-0"
        assert ties(cause, failures) == []
    cause = root_cause(unordered)
    assert cause is not None
    assert len(ties(cause, unordered)) == 1, "without that it is a tie"


def test_a_rank_that_leaves_as_it_has_lost_another_may_count_as_ended_before_that() -> None:
    left = replace(exited(0, 1.005), place=1)
    call, end = called_exit(1, 1.0, 1, peer_was_gone=True), replace(exited(1, 1.004), place=0)
    for failures in itertools.permutations([left, call, end]):
        cause = root_cause(failures)
        assert cause is not None
        assert cause.worker == "worker-0"
        assert ties(cause, failures) == []


@pytest.mark.parametrize("how", [1, -signal.SIGABRT], ids=["exit status 1", "SIGABRT"])
def test_ends_that_a_lost_peer_may_have_led_to_alike_are_a_tie(how: int) -> None:
    """A process's connections are closed before it counts as ended: a peer that then ends alike may overtake it."""
    made = [exited(rank, 1.0, how) if how > 0 else killed(rank, 1.0, -how) for rank in (0, 1)]
    ends = [replace(made[0], place=4), replace(made[1], time=1.004, place=5)]
    cause = root_cause(ends)
    assert cause is not None
    assert len(ties(cause, ends)) == 1


def test_an_end_that_came_first_and_is_more_like_an_echo_than_the_next_ties_with_it() -> None:
    crashed = replace(killed(0, 1.003, signal.SIGBUS), place=5)
    overtaking = replace(exited(1, 1.001, 1), place=4)
    for failures in itertools.permutations([crashed, overtaking]):
        cause = root_cause(failures)
        assert cause is not None
        assert cause.worker == "worker-0"
        assert [other.worker for other in ties(cause, failures)] == ["worker-1"]


def test_a_call_of_exit_while_all_peers_stood_is_the_own_failure_of_a_process_and_an_echo_where_one_was_gone() -> None:
    own = called_exit(0, 1.000, 1, peer_was_gone=False)
    silent = exited(1, 1.001, 1)
    for failures in itertools.permutations([own, exited(0, 1.03, 1), silent]):
        cause = root_cause(failures)
        assert cause is not None
        assert cause.worker == "worker-0"
        assert ties(cause, failures) == []
    echo = called_exit(0, 1.000, 7, peer_was_gone=True)
    for failures in itertools.permutations([echo, exited(0, 1.03, 7), silent]):
        cause = root_cause(failures)
        assert cause is not None
        assert cause.worker == "worker-1"
        assert ties(cause, failures) == []
    cause = root_cause([echo, exited(0, 1.03, 7)])
    assert cause is not None
    assert cause.exit_code == 7, "where nothing else has failed"


def test_ranks_that_their_launcher_drops_are_given_the_time_that_is_reckoned_with() -> None:
    assert causes.DROPPED == ranks.HANG_UP_DELAY
