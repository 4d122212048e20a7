"""The message to the user about the failure that came first."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from muster.errors import (
    LauncherFailed,
    MusterError,
    RunFailed,
    ScriptFailed,
    WorkerKilled,
    WorkerLost,
    WorkerOutOfMemory,
)
from muster.failure.advice import advice_on_launcher, advice_on_loss
from muster.failure.causes import alike, root_cause
from muster.failure.diagnosis import did_not_come_up, explain, not_up, stalled, workers_missing
from muster.failure.failures import Failure, FailureKind
from muster.failure.logs import crash_report, mark_attempt, tail
from muster.failure.waiting import Verdict
from muster.records.result import Result, read_record


def killed(worker: str, number: int) -> Failure:
    return Failure(FailureKind.SIGNAL, 1.0, worker, signal=number)


RAISED = Failure(FailureKind.EXCEPTION, 10.0, "worker-1", 1, type="ValueError", message="bad luck")
EXIT_0 = Failure(FailureKind.EXIT, 10.1, "worker-0", 0, exit_code=1)
EXIT_1 = Failure(FailureKind.EXIT, 10.3, "worker-1", 1, exit_code=1)
HUNG_UP = Failure(FailureKind.HUNG_UP, 10.1, "worker-1", 1)
LAUNCHER = Failure(FailureKind.LAUNCHER, 10.4, exit_code=1, message="horovodrun")


@pytest.mark.parametrize(
    ("ranks", "total", "words"),
    [
        ([1], 2, "rank 1 (worker-1) failed first: ValueError: bad luck"),
        ([1, 0], 2, "Both ranks failed alike, rank 1 (worker-1) first: ValueError: bad luck"),
        ([1, 0, 2], 3, "All 3 ranks failed alike, rank 1 (worker-1) first: ValueError: bad luck"),
        ([1, 3], 4, "2 of 4 ranks failed alike, rank 1 (worker-1) first: ValueError: bad luck"),
    ],
)
def test_ranks_that_raise_the_same_are_counted(ranks: list[int], total: int, words: str, tmp_path: Path) -> None:
    raised = [replace(RAISED, worker=f"worker-{rank}", rank=rank, time=10 + n / 100) for n, rank in enumerate(ranks)]
    failures = [*raised, EXIT_0, EXIT_1, LAUNCHER]
    cause = root_cause(failures)
    assert cause is not None
    assert explain(cause, tmp_path, alike=alike(cause, failures), total=total).message == words


@pytest.mark.parametrize(
    ("signals", "words"),
    [
        ([-3, -3], "Both ranks ended with exit status 3, rank 0 (worker-0) first."),
        ([-3, -4], "rank 0 (worker-0) ended with exit status 3."),
        ([11], "rank 0 (worker-0) was ended by signal 11 (SIGSEGV)."),
        ([11, 11], "Both ranks were ended by signal 11 (SIGSEGV), rank 0 (worker-0) first."),
        ([9, 9], "rank 0 (worker-0) was ended by signal 9 (SIGKILL)."),
        ([11, 11, 6], "2 of 3 ranks were ended by signal 11 (SIGSEGV), rank 0 (worker-0) first."),
    ],
)
def test_ranks_that_end_alike_are_counted(signals: list[int], words: str, tmp_path: Path) -> None:
    failures = [
        Failure(FailureKind.SIGNAL, 10 + rank / 10, f"worker-{rank}", rank, signal=number)
        if number > 0
        else Failure(FailureKind.EXIT, 10 + rank / 10, f"worker-{rank}", rank, exit_code=-number)
        for rank, number in enumerate(signals)
    ]
    cause = root_cause([*failures, LAUNCHER])
    assert cause == failures[0]
    found = explain(cause, tmp_path, alike=alike(cause, failures), total=len(signals))
    assert found.message == words


def test_advice_on_a_program_does_not_speak_of_python(tmp_path: Path) -> None:
    for failure in (replace(EXIT_1, exit_code=7), killed("worker-0", 11)):
        advice = explain(failure, tmp_path, is_python=False).advice or ""
        assert "program" in advice
        assert not re.search("[Pp]ython|sys|exception", advice)
    assert explain(killed("worker-0", 2), tmp_path, is_python=False).advice == "somebody sent it; run again"
    (tmp_path / "launcher.log").write_text(
        "RuntimeError: Horovod detected that one or more processes exited with non-zero"
    )
    assert not explain(EXIT_1, tmp_path).details


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (RAISED, ScriptFailed, ["rank 1 (worker-1)", "ValueError: bad luck"]),
        (EXIT_1, ScriptFailed, ["rank 1 (worker-1)", "exit status 1"]),
        (
            killed("ps-0", 11),
            WorkerKilled,
            ["ps-0", "signal 11 (SIGSEGV)", "compiled code"],
        ),
        (
            killed("worker-0", 2),
            WorkerKilled,
            ["signal 2 (SIGINT)", "the script raised KeyboardInterrupt itself, or somebody sent the signal"],
        ),
        (
            killed("worker-0", 13),
            WorkerKilled,
            ["signal 13 (SIGPIPE)", "other end was closed"],
        ),
        (
            Failure(FailureKind.MEMORY, 1.0, "worker-0", used=int(2.5e9), limit=int(2e9)),
            WorkerOutOfMemory,
            ["2.50 GB", "memory=4"],
        ),
        (
            Failure(FailureKind.MEMORY, 1.0, "worker-0", used=300_400_000, limit=300_000_000),
            WorkerOutOfMemory,
            ["used 0.31 GB of memory and was given 0.3 GB"],
        ),
        (Failure(FailureKind.LOST, 1.0, "worker-0", message="gone"), WorkerLost, ["worker-0 was lost: gone"]),
        (Failure(FailureKind.ENDED, 1.0, "ps-0", exit_code=0), ScriptFailed, ["ps-0", "never"]),
        (LAUNCHER, LauncherFailed, ["horovodrun", "exit status 1", "launcher.log"]),
        (
            Failure(FailureKind.DAEMON, 1.0, "worker-1", signal=9),
            LauncherFailed,
            ["on worker-1 was ended by signal 9", "launcher.log"],
        ),
        (HUNG_UP, LauncherFailed, ["dropped rank 1 (worker-1)", "launcher.log"]),
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


def test_the_error_has_what_failed_as_data_which_the_record_keeps(tmp_path: Path) -> None:
    tied = explain(EXIT_0, tmp_path, ties=[replace(EXIT_1, time=10.101)])
    others = [{"worker": "worker-1", "rank": 1}]
    assert tied.failure == {"kind": "exit", "worker": "worker-0", "rank": 0, "exit_code": 1, "others": others}
    alone = explain(RAISED, tmp_path)
    assert alone.failure == {"kind": "exception", "worker": "worker-1", "rank": 1, "type": "ValueError", "others": []}
    lost = explain(Failure(FailureKind.LOST, 1.0, "worker-0", message="\x1b[2Jgone"), tmp_path)
    assert lost.failure["message"] == "gone"
    refused = did_not_come_up(Failure(FailureKind.LOST, 1.0, "worker-0", message="gone"), tmp_path)
    assert refused.failure == lost.failure
    for error in (tied, lost, refused, MusterError("something else")):
        kept = json.loads(json.dumps(Result("failed", "run", tmp_path, error=error).to_dict()))
        found = Result.from_dict(read_record(kept), "run", tmp_path).error
        assert found is not None
        assert (found.failure, getattr(found, "rank", None)) == (error.failure, getattr(error, "rank", None))
    damaged = {"error": "WorkerKilled", "failure": {"kind": "signal", "rank": "one"}}
    found = Result.from_dict(read_record(damaged), "run", tmp_path).error
    assert found is not None
    assert not found.failure


def test_a_run_in_which_nothing_moves_names_who_holds_it_up(tmp_path: Path) -> None:
    error = stalled(Verdict(("worker-1", 1), "It sleeps."), 5, {"rank 0 (worker-0)": "a stack"}, tmp_path)
    assert (error.worker, error.rank, error.message) == (
        "worker-1",
        1,
        "rank 1 (worker-1) has shown no progress for 5 s. It sleeps.",
    )
    assert error.failure == {"kind": "stalled", "worker": "worker-1", "rank": 1, "others": []}
    cut = stalled(Verdict(("worker-1", 1), "It is cut.", ("worker-0", 0)), 5, {}, tmp_path)
    assert cut.failure["others"] == [{"worker": "worker-0", "rank": 0}]
    assert "a stack" in str(error)
    assert "nothing else runs any more" in str(error)
    two = {"rank 0 (worker-0)": "a stack", "rank 10 (worker-5)": "b", "rank 9 (worker-4)": "c"}
    several = stalled(Verdict(("worker-1", 1)), 5, two, tmp_path)
    assert "holds up the others" in str(several.advice)
    assert re.findall(r"--- rank (\d+)", str(several)) == ["0", "9", "10"]
    pair = stalled(Verdict(("worker-1", 1), "", ("worker-2", 2)), 5, {}, tmp_path).message
    assert pair == "rank 1 (worker-1) and rank 2 (worker-2) have shown no progress for 5 s."


def test_the_end_of_a_log_is_decoded_leniently(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(5000)) + b"\xff\xfe end\n")
    lines = tail(log, lines=3).splitlines()
    assert lines[0] == "line 4998"
    assert lines[-1].endswith("end")
    assert tail(tmp_path / "none.log") == ""


CRASH = """Fatal Python error: Aborted

Thread 0x00007f5556f236c0 (most recent call first):
  File "/tmp/muster-39redykq/{library}/muster/training/stages.py", line 182 in watch

{thread} 0x00007f55583bdb80 (most recent call first):
  File "/home/ann/runner.py", line 3 in step
  File "/usr/lib/python3.8/runpy.py", line 87 in _run_code
  File "/tmp/muster-39redykq/{library}/muster/runner/modes.py", line 68 in run_program
  File "/tmp/muster-39redykq/{library}/runner.py", line 22 in <module>

Extension modules: numpy.core._multiarray_umath (total: 1)
"""


@pytest.mark.parametrize("thread", ["Current thread", "Thread"])  # the latter where a thread without Python crashed
@pytest.mark.parametrize("library", ["lib", "library"])  # where workers share files, and where they do not
def test_of_a_crash_the_calls_of_the_script_are_quoted(thread: str, library: str, tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text(f"step 1\n{CRASH.format(thread=thread, library=library)}")
    assert crash_report(log).splitlines() == [
        "Fatal Python error: Aborted",
        f"{thread} 0x00007f55583bdb80 (most recent call first):",
        '  File "/home/ann/runner.py", line 3 in step',
    ]


def test_a_thousand_that_are_late_are_counted_and_a_few_of_them_named(tmp_path: Path) -> None:
    names = [f"worker-{index}" for index in range(1000)]
    missing = workers_missing({**dict.fromkeys(names, "starting"), "worker-8": None}, 1000, 60.0, tmp_path)
    assert "1000 of 1000 workers did not report an address within 60 s: worker-0, " in missing.message
    assert missing.message.endswith("worker-4 and 994 more are starting; worker-8 is not launched.")
    ranks = [(name, rank) for rank, name in enumerate(names)]
    assert "rank 4 (worker-4) and 995 more were not started" in not_up(ranks, "horovodrun", 60.0, tmp_path).message
    assert "After 60 s worker-1 was not listening" in not_up([("worker-1", None)], None, 60.0, tmp_path).message


def test_workers_that_a_busy_machine_brings_up_slowly_are_not_said_to_be_out_of_reach(tmp_path: Path) -> None:
    late = {f"worker-{index}": None for index in range(246, 500)}
    here = workers_missing(late, 500, 60.0, tmp_path, is_here=True).advice
    assert here == "timeout_seconds=240, or fewer workers: this machine brought up 246 in 60 s"
    assert workers_missing(late, 254, 60.0, tmp_path).advice == (
        "fewer workers, or a longer timeout_seconds: the platform is slow"
    )
    waits = ["Its image could not be pulled and is tried again: no such host."]
    known = workers_missing({"worker-1": "starting"}, 2, 60.0, tmp_path, waits=waits)
    assert waits[0] in known.message
    assert known.advice == "see to what they wait for, or a longer timeout_seconds"
    elsewhere = workers_missing({"worker-1": "starting"}, 2, 60.0, tmp_path).advice
    assert "whether workers can reach the session (session_address)" in str(elsewhere)


def test_who_may_as_well_have_been_first_is_told(tmp_path: Path) -> None:
    tie = replace(EXIT_0, time=EXIT_1.time + 0.002, exit_code=7)
    message = explain(EXIT_1, tmp_path, ties=[tie]).message
    assert (
        "rank 1 (worker-1) ended with exit status 1. Within 2 ms rank 0 (worker-0) ended with exit status 7" in message
    )
    assert message.endswith("nothing tells which of them came first.")
    of_all = explain(
        EXIT_1, tmp_path, ties=[replace(EXIT_1, rank=0, time=EXIT_1.time + 0.01)], alike=2, total=2
    ).message
    assert of_all.startswith("Both ranks ended with exit status 1. Within 10 ms rank ")
    assert " first. " not in of_all
    assert "Within" not in explain(RAISED, tmp_path, ties=[replace(RAISED, rank=0)], alike=2, total=2).message


def test_workers_that_are_lost_together_are_told_as_one_loss(tmp_path: Path) -> None:
    """When a guard is killed all of its workers are lost within milliseconds, and none of them has failed itself."""
    gone = Failure(FailureKind.LOST, 10.0, "worker-1", message="The guard is gone.")
    others = [replace(gone, worker=name, time=10.005) for name in ("worker-2", "worker-0")]
    error = explain(gone, tmp_path, ties=others)
    assert error.message == "worker-0, worker-1 and worker-2 were lost: The guard is gone."
    assert error.worker == "worker-1"
    assert [other["worker"] for other in error.failure["others"]] == ["worker-2", "worker-0"]
    tie = replace(gone, worker="worker-3", message="Its agent was ended by SIGKILL.")
    assert explain(gone, tmp_path, ties=[*others, tie]).message == (
        "worker-0, worker-1 and worker-2 were lost: The guard is gone. "
        "Within 1 ms worker-3 failed; nothing tells which of them came first."
    )
    cut = replace(gone, message="its connection ended")
    told = explain(cut, tmp_path, ties=[replace(cut, worker=name) for name in ("worker-10", "worker-2")]).message
    assert told == "worker-1, worker-2 and worker-10 were lost; of each, its connection ended"


ADVICE = [
    ("AttributeError", "module 'muster' has no attribute 'run_cluster'", "", "workers have muster.training alone"),
    ("EOFError", "EOF when reading a line", "line 3\n    name = input()", "no standard input"),
    ("bdb.BdbQuit", "", "", "leave the debugger out"),
    ("BdbQuit", "", "", "leave the debugger out"),
    ("RuntimeError", "breakpoint() has no debugger here, since ...", "", "leave the debugger out"),
    ("TypeError", "what the function returned, of type lock, cannot be sent back: ...", "", "MUSTER_RESULTS"),
    ("OSError", "[Errno 28] No space left on device", "", "make room"),
    ("OSError", "[Errno 122] Disk quota exceeded: '/home/me/x'", "", "make room"),
    ("OSError", "1048576 requested and 158704 written", "", "make room"),  # NumPy's, of an array
    ("ResourceExhaustedError", "{{function_node}} /ckpt/x.tempstate; No space left on device", "", "make room"),
    ("OSError", "[Errno 98] Address already in use", "  File train.py\n    server.bind(('', 8000))", "bind port 0"),
    ("OSError", "[Errno 98] Address already in use", "    self.socket.bind(self.server_address)", "bind port 0"),
    ("UnknownError", "Could not start gRPC server", "tensorflow/python/training/server_lib.py", "worker_ports="),
    ("AttributeError", "no attribute 'ref'", 'File "/x/horovod/_keras/callbacks.py"', "muster.training import keras"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: '/data/x.csv'", "", "see that it is there on worker-0"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'data/x.csv'", "", "an absolute path"),
    (
        "NameError",
        "name 'x' is not defined",
        "NameError: name 'x' is not defined. Did you mean: 'xs'?\n",
        "xs in place of x",
    ),
    ("NameError", "name 'np' is not defined", "", "import numpy as np, in the script or function itself"),
    ("NameError", "name 'os' is not defined", "", "import os, in"),
    ("NameError", "name 'model' is not defined", "", "define or import model in"),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'x'", "in _execute_child", "this program is installed"),
    ("KeyError", "'RANK'", "", 'strategy="processes" sets'),
    ("KeyError", "'LOCAL_RANK'", "", "hvd.rank()"),
    ("ValueError", "Horovod has not been initialized; use hvd.init().", "", "hvd.init()"),
]


@pytest.mark.parametrize(("kind", "message", "traceback", "words"), ADVICE)
def test_what_a_script_raised_has_advice_of_its_own(
    kind: str, message: str, traceback: str, words: str, tmp_path: Path
) -> None:
    failure = Failure(FailureKind.EXCEPTION, 0.0, "worker-0", type=kind, message=message, traceback=traceback)
    assert words in (explain(failure, tmp_path).advice or "")


@pytest.mark.parametrize(
    ("code", "words"), [(3, "sys.exit(3)"), (2, "arguments of the script (args=)"), (127, "not there")]
)
def test_an_exit_that_raised_nothing_has_advice(code: int, words: str, tmp_path: Path) -> None:
    failure = Failure(FailureKind.EXIT, 0.0, "worker-0", exit_code=code)
    assert words in (explain(failure, tmp_path).advice or "")


def test_what_earlier_attempts_have_printed_is_no_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text("Abort(3) on node 0 and a line that is torn")
    mark_attempt(tmp_path, 2)
    assert tail(log) == ""
    with log.open("a") as file:
        file.write("second\n")
    assert tail(log) == "second"
    assert log.read_text().splitlines()[1:] == ["--- attempt 2 ---", "second"]


@pytest.mark.parametrize(
    ("why", "advice"),
    [
        ("Resource temporarily unavailable", "ulimit -u"),
        ("no such file or directory", "the working directory are there"),
    ],
)
def test_advice_on_a_program_that_cannot_be_started_follows_the_reason(why: str, advice: str) -> None:
    assert advice in advice_on_loss(f"cannot start python: python: {why}")


@pytest.mark.parametrize("why", ["Connection timed out", "Connection refused", "No route to host"])
def test_where_horovodrun_cannot_log_in_to_a_worker_agents_can_start_the_ranks(why: str) -> None:
    said = f"ssh not successful for host gpu2:\nssh: connect to host gpu2 port 2222: {why}\n"
    advice = str(advice_on_launcher(said + "RuntimeError: could not connect to some hosts via ssh"))
    assert "port 2222" in advice
    assert 'launcher="agents"' in advice
    assert "launcher=" not in str(advice_on_launcher("could not connect to some hosts via ssh"))
