"""Who failed first, from facts in every order; and what the user is told about it."""

from __future__ import annotations

import itertools
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from muster.errors import DriverFailed, RunFailed, ScriptFailed, WorkerKilled, WorkerLost, WorkerOutOfMemory
from muster.failure.causes import Failure, alike, root_cause
from muster.failure.diagnosis import explain, not_up, stalled, tail, workers_missing

RAISED = Failure("exception", 10.0, "worker-1", 1, type="ValueError", message="bad luck")
ECHO = Failure("exception", 9.9, "worker-0", 0, type="HorovodInternalError", message="Horovod has been shut down")
EXIT_0 = Failure("exit", 10.1, "worker-0", 0, exit_code=1)
EXIT_1 = Failure("exit", 10.3, "worker-1", 1, exit_code=1)
TERMINATED = Failure("signal", 10.2, "worker-0", 0, signal=signal.SIGTERM)
HUNG_UP = Failure("hung_up", 10.1, "worker-1", 1)
DRIVER = Failure("driver", 10.4, exit_code=1, message="horovodrun")


def test_the_exception_is_the_cause_in_whatever_order_things_are_reported() -> None:
    for order in itertools.permutations([RAISED, ECHO, EXIT_0, EXIT_1, DRIVER]):
        cause = root_cause(order)
        assert cause is not None
        assert (cause.worker, cause.type) == ("worker-1", "ValueError")


def test_the_exit_of_a_process_that_raised_is_no_failure_of_its_own() -> None:
    cause = root_cause([RAISED, EXIT_1])
    assert cause is not None
    assert cause.kind == "exception"
    assert cause.exit_code == 1


def test_of_two_exceptions_the_earlier_one_is_the_cause() -> None:
    later = Failure("exception", 11.0, "worker-0", 0, type="KeyError")
    assert root_cause([later, RAISED]) == RAISED


def test_a_kill_is_the_cause_and_the_peers_that_lost_it_are_not() -> None:
    killed = Failure("signal", 10.0, "worker-1", 1, signal=signal.SIGKILL)
    reset = Failure("exception", 9.5, "worker-0", 0, type="UnknownError", message="Connection reset by peer")
    assert root_cause([reset, killed, DRIVER]) == killed


@pytest.mark.parametrize(
    "broken",
    [
        Failure("exception", 9.9, "worker-0", 0, type="BrokenPipeError", message="[Errno 32] Broken pipe"),
        Failure("signal", 9.9, "worker-0", 0, signal=signal.SIGABRT),
    ],
    ids=["raised", "aborted"],
)
def test_one_whose_own_connection_broke_is_the_cause_unless_somebody_was_killed_in_that_moment(broken: Failure) -> None:
    killed = Failure("signal", 10.0, "worker-1", 1, signal=signal.SIGKILL)
    for kill in (killed, Failure("lost", 10.0, "worker-1"), Failure("memory", 10.0, "worker-1", 1, used=2, limit=1)):
        assert root_cause([broken, kill, DRIVER]) == kill
        assert root_cause([broken, replace(kill, time=11.0), DRIVER]) == broken
    assert root_cause([broken, RAISED, EXIT_1, DRIVER]) == broken
    assert root_cause([replace(broken, time=11.0), EXIT_1]) == replace(broken, time=11.0)


def test_a_broken_pipe_is_the_cause_only_where_nothing_else_is() -> None:
    piped = Failure("signal", 9.9, "worker-0", 0, signal=signal.SIGPIPE)
    killed = Failure("signal", 10.0, "worker-1", 1, signal=signal.SIGKILL)
    for other in (Failure("lost", 10.0, "worker-1"), killed, RAISED, EXIT_1):
        assert root_cause([piped, other, DRIVER]) == other
    assert root_cause([piped, DRIVER]) == piped


def test_memory_wins_over_the_signal_it_was_carried_out_with() -> None:
    killed = Failure("signal", 10.0, "worker-1", 1, signal=signal.SIGKILL)
    memory = Failure("memory", 10.01, "worker-1", 1, used=3_000_000_000, limit=2_000_000_000)
    cause = root_cause([killed, memory])
    assert cause is not None
    assert cause.kind == "memory"


def test_a_lost_agent_takes_its_ranks_along() -> None:
    lost = Failure("lost", 10.0, "worker-1", message="signal 9 (SIGKILL)")
    rank = Failure("signal", 10.1, "worker-1", 1, signal=signal.SIGKILL)
    assert root_cause([lost, rank, ECHO]) == lost
    assert root_cause([replace(rank, time=9.9, signal=signal.SIGPIPE), lost]) == lost


def test_with_nothing_but_echoes_the_earliest_is_named() -> None:
    cause = root_cause([TERMINATED, ECHO, DRIVER])
    assert cause is not None
    assert (cause.worker, cause.type) == ("worker-0", "HorovodInternalError")
    assert root_cause([DRIVER]) == DRIVER
    assert root_cause([]) is None


def test_a_launcher_that_let_go_of_a_rank_is_the_cause_where_nothing_else_is() -> None:
    stopped = Failure("stopped", 10.3, "worker-1", 1, signal=signal.SIGTERM)
    assert root_cause([DRIVER, stopped, HUNG_UP, Failure("hung_up", 10.2, "worker-0", 0)]) == HUNG_UP
    aborted = Failure("exit", 10.5, "worker-1", 1, exit_code=3)
    assert root_cause([DRIVER, HUNG_UP, aborted]) == aborted
    daemon = Failure("daemon", 10.6, "worker-1", signal=signal.SIGKILL)
    assert root_cause([DRIVER, HUNG_UP, daemon]) == daemon


@pytest.mark.parametrize(
    ("ranks", "total", "words"),
    [
        ([1], 2, "rank 1 (worker-1) failed first: ValueError: bad luck"),
        ([1, 0], 2, "All 2 ranks failed alike, rank 1 (worker-1) first: ValueError: bad luck"),
        ([1, 3], 4, "2 of 4 ranks failed alike, rank 1 (worker-1) first: ValueError: bad luck"),
    ],
)
def test_ranks_that_raise_the_same_are_counted(ranks: list[int], total: int, words: str, tmp_path: Path) -> None:
    raised = [replace(RAISED, worker=f"worker-{rank}", rank=rank, time=10 + n / 100) for n, rank in enumerate(ranks)]
    failures = [*raised, EXIT_0, EXIT_1, DRIVER]
    cause = root_cause(failures)
    assert cause is not None
    assert explain(cause, tmp_path, alike=alike(cause, failures), total=total).message == words


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (RAISED, ScriptFailed, ["rank 1 (worker-1)", "ValueError: bad luck"]),
        (EXIT_1, ScriptFailed, ["rank 1 (worker-1)", "exit status 1"]),
        (Failure("signal", 1.0, "ps-0", signal=11), WorkerKilled, ["ps-0", "signal 11 (SIGSEGV)", "compiled code"]),
        (Failure("signal", 1.0, "worker-0", signal=13), WorkerKilled, ["signal 13 (SIGPIPE)", "other end was closed"]),
        (
            Failure("memory", 1.0, "worker-0", used=int(2.5e9), limit=int(2e9)),
            WorkerOutOfMemory,
            ["2.50 GB", "memory=4"],
        ),
        (Failure("lost", 1.0, "worker-0", message="gone"), WorkerLost, ["worker-0 was lost: gone"]),
        (Failure("ended", 1.0, "ps-0", exit_code=0), ScriptFailed, ["ps-0", "never"]),
        (DRIVER, DriverFailed, ["horovodrun", "exit status 1", "driver.log"]),
        (
            Failure("daemon", 1.0, "worker-1", signal=9),
            DriverFailed,
            ["on worker-1 was ended by signal 9", "driver.log"],
        ),
        (HUNG_UP, DriverFailed, ["let go of rank 1 (worker-1)", "driver.log"]),
    ],
)
def test_the_error_says_what_who_where_and_what_to_try(
    failure: Failure, expected: type[RunFailed], words: list[str], tmp_path: Path
) -> None:
    error = explain(failure, tmp_path)
    assert type(error) is expected
    assert error.worker == failure.worker
    assert error.rank == failure.rank
    assert "Log: " in str(error)
    for word in words:
        assert word in str(error)


LIBRARY = (
    'Current thread 0x1 (most recent call first):\n  File "/v/lib/site-packages/tensorflow/execute.py", line 1 in f'
)
OWN = (
    'Thread 0x2 (most recent call first):\n  File "/v/site-packages/x.py", line 1\n\n'
    'Current thread (most recent call first):\n  File "/me/train.py", line 1 in step'
)


def test_the_rank_that_is_not_waiting_in_a_library_is_the_one_that_hangs(tmp_path: Path) -> None:
    silent = [("worker-0", 0), ("worker-1", 1)]
    stacks = {"rank 0 (worker-0)": LIBRARY, "rank 1 (worker-1)": OWN}
    error = stalled(silent, 5, stacks, tmp_path)
    assert (error.worker, error.rank) == ("worker-1", 1)
    assert stalled(silent, 5, {}, tmp_path).worker == "worker-0"


def test_the_end_of_a_log_is_decoded_leniently(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(5000)) + b"\xff\xfe end\n")
    lines = tail(log, lines=3).splitlines()
    assert lines[0] == "line 4998"
    assert lines[-1].endswith("end")
    assert tail(tmp_path / "none.log") == ""


def test_a_thousand_that_are_late_are_counted_and_a_few_of_them_named(tmp_path: Path) -> None:
    names = [f"worker-{index}" for index in range(1000)]
    missing = workers_missing({**dict.fromkeys(names, "starting"), "worker-8": None}, 1000, 60.0, tmp_path)
    assert "1000 of 1000 workers did not report an address within 60 s: worker-0, " in missing.message
    assert missing.message.endswith("worker-4 and 994 more are starting; worker-8 is not launched.")
    ranks = [(name, rank) for rank, name in enumerate(names)]
    assert "rank 4 (worker-4) and 995 more were not started" in not_up(ranks, "horovodrun", 60.0, tmp_path).message
    assert "After 60 s worker-1 was not listening" in not_up([("worker-1", None)], None, 60.0, tmp_path).message
