"""The state of a run's workers: messages in, events, failures and statuses out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from muster.agent import wire
from muster.events import Event
from muster.failure.causes import root_cause
from muster.failure.diagnosis import explain
from muster.failure.failures import FailureKind
from muster.job import EndCause, Resources, Status, Worker, WorkerSpec
from muster.pools.clocks import ClockOffset
from muster.run.bounds import MOST_METRICS, NOTES_OF_EACH
from muster.run.state import RunState
from muster.run.waits import WAITS_SECONDS
from muster.testing import SimulatedLoop

HELLO = wire.Hello(wire.VERSION, "", "worker-0", 100, "10.0.0.1", cores=2)
LOSS = {"loss": 2.0}
RUNS = [HELLO, wire.Started(7, 0)]


def spec(name: str, index: int) -> WorkerSpec:
    return WorkerSpec(name, "worker", index, "run", Resources(memory=2), Path("log"), Path("scratch"), "/")


class Told:
    """A state, and what it makes of messages of ``worker-0``."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.events: list[Event] = []
        self.state = RunState([spec("worker-0", 0), spec("worker-1", 1)], self.events.append)
        for name in self.state.specs:
            self.state.workers[name] = Worker(name, name)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def call() -> Any:
            return function(*args)

        return self.loop.run(call())

    def hear(self, *messages: Any) -> Told:
        def hear() -> None:
            for message in messages:
                self.state.on_message("worker-0", message)

        self.call(hear)
        return self

    def said(self) -> list[tuple[str, Mapping[str, Any]]]:
        return [(event.kind, event.data) for event in self.events]

    def failures(self) -> list[tuple[str, int | None]]:
        return [(failure.kind, failure.rank) for failure in self.state.failures]


@pytest.fixture
def told(loop: SimulatedLoop) -> Told:
    return Told(loop)


# Messages, what comes of the last of them as events, and the failures that there are then.
MESSAGES: list[tuple[list[Any], list[tuple[str, dict[str, Any]]], list[tuple[str, int | None]]]] = [
    ([HELLO], [("worker_ready", {"host": "10.0.0.1", "ports": (), "cores": 2, "gpus": (), "pid": 100})], []),
    ([*RUNS], [("process_started", {"pid": 7, "rank": 0})], []),
    ([*RUNS, wire.Listening(80)], [("listening", {"port": 80})], []),
    ([*RUNS, wire.Output("words")], [("output", {"text": "words"})], []),
    ([*RUNS, wire.Usage(1.0, 5)], [("usage", {"cpu": 1.0, "memory": 5})], []),
    ([*RUNS, wire.ProcessStacks("here", 0)], [("stacks", {"rank": 0, "text": "here"})], []),
    ([*RUNS, wire.Returned()], [], []),
    ([*RUNS, wire.Progress(0, 1, metrics=LOSS)], [("progress", {"rank": 0, "step": 1, "metrics": LOSS})], []),
    ([*RUNS, wire.HungUp(0)], [], [("hung_up", 0)]),
    ([*RUNS, wire.Broken(127)], [], [("daemon", None)]),
    ([*RUNS, wire.Broken(137)], [], [("daemon", None)]),
    ([*RUNS, wire.Error("cannot")], [], [("lost", None)]),
    (
        [*RUNS, wire.Raised("ValueError", "no", "trace", 0)],
        [("exception", {"rank": 0, "type": "ValueError", "message": "no", "traceback": "trace"})],
        [("exception", 0)],
    ),
    ([*RUNS, wire.Raised("SystemExit", "5", "trace", 0, status=5)], [], [("exit", 0)]),
    ([*RUNS, wire.Raised("SystemExit", "256", "trace", 0, status=0)], [], []),
    ([HELLO, wire.Exited(7, 0, 0)], [], []),
    ([HELLO, "what nobody sends"], [], []),
    ([HELLO, ClockOffset(1.5, 0.1)], [], []),
    (
        [*RUNS, wire.Stage("imports", 2.5, 0)],
        [("stage", {"rank": 0, "stage": "imports", "seconds": 2.5})],
        [],
    ),
    ([*RUNS, wire.Stage("imports", 2.5, 0), wire.Stage("imports", 0.0, 0)], [], []),  # it goes on
    ([*RUNS, wire.Warned("swaps", 0)], [("note", {"text": "rank 0 (worker-0) swaps."})], []),
    ([*RUNS, wire.Warned("swaps", 0), wire.Warned("swaps", 0)], [], []),
]  # fmt: skip
for text in ("5", "--5", "²"):  # what an interpreter prints, and ends with status 1
    told_as: dict[str, Any] = {"rank": 0, "type": "SystemExit", "message": text, "traceback": "trace"}
    MESSAGES.append(
        ([*RUNS, wire.Raised("SystemExit", text, "trace", 0)], [("exception", told_as)], [("exception", 0)])
    )


@pytest.mark.parametrize(("messages", "events", "failures"), MESSAGES)
def test_messages(
    told: Told,
    messages: list[Any],
    events: list[tuple[str, dict[str, Any]]],
    failures: list[tuple[str, int | None]],
) -> None:
    told.hear(*messages[:-1])
    before = len(told.said())
    told.hear(messages[-1])
    assert told.said()[before:] == events
    assert told.failures() == failures


# How a process ends, the failure that it is, and how its worker has ended.
ENDS: list[tuple[dict[str, Any], str | None, Status]] = [
    ({"exit_code": 0}, None, Status.SUCCEEDED),
    ({"exit_code": 3}, "exit", Status.FAILED),
    ({"signal": 9}, "signal", Status.FAILED),
    ({"signal": 9, "reason": "memory", "memory": 5}, "memory", Status.FAILED),
    ({"signal": 15, "reason": "stopped"}, "stopped", Status.STOPPED),
]


@pytest.mark.parametrize(("how", "failure", "status"), ENDS)
def test_ends(told: Told, how: dict[str, Any], failure: str | None, status: Status) -> None:
    told.hear(*RUNS, wire.Exited(7, 0, **how))
    assert told.failures() == ([(failure, 0)] if failure else [])
    assert told.state.workers["worker-0"].status is status
    assert told.state.processes.is_over("worker-0")
    told.hear(wire.Exited(7, 0, exit_code=1))
    assert told.state.workers["worker-0"].status is status, "a final status never changes"


@pytest.mark.parametrize("code", [None, 7])
def test_a_worker_has_failed_whose_script_raised_or_exited_and_was_stopped_as_its_interpreter_ended(
    told: Told, code: int | None
) -> None:
    told.hear(*RUNS, wire.Raised("ValueError" if code is None else "SystemExit", "7", "trace", 0, status=code))
    told.hear(wire.Exited(7, 0, signal=15, reason="stopped"))
    assert told.state.workers["worker-0"].status is Status.FAILED


@pytest.mark.parametrize("name", ["", " "])
def test_an_exception_without_a_name_is_told_in_words(told: Told, name: str, tmp_path: Path) -> None:
    told.hear(*RUNS, wire.Raised(name, rank=0))
    (failure,) = told.state.failures
    assert explain(failure, tmp_path).message == (
        "rank 0 (worker-0) failed first: an exception without a name: (no message)"
    )
    assert told.said()[-1][1]["type"] == "an exception without a name"


def test_ends_on_a_busy_machine_are_known_less_well(told: Told) -> None:
    told.hear(*RUNS, wire.Exited(7, 0, signal=9, late=0.05))
    assert told.state.failures[0].uncertainty == 0.05


def test_a_server_that_ends_has_failed(told: Told) -> None:
    told.state.servers = frozenset(["worker-0"])
    told.hear(*RUNS, wire.Exited(7, 0, 0))
    assert told.failures() == [("ended", 0)]


def test_a_worker_is_over_when_all_its_ranks_are(told: Told) -> None:
    told.state.processes.place({0: "worker-0", 1: "worker-0"}, are_ordered=True)
    told.hear(HELLO, wire.Started(7, 0), wire.Exited(7, 0, 0))
    assert not told.state.processes.is_over("worker-0")
    told.hear(wire.Started(8, 1))
    assert told.state.processes.run_on("worker-0")
    told.hear(wire.Returned())
    assert told.state.processes.have_returned("worker-0")
    assert not told.state.processes.is_over("worker-0")
    told.hear(wire.Exited(8, 1, 0))
    assert told.state.processes.exits == {("worker-0", 0): 0, ("worker-0", 1): 0}
    assert told.state.processes.is_over("worker-0")


def test_a_process_is_heard_of_by_rank_or_with_all_of_its_worker(told: Told) -> None:
    told.hear(HELLO, wire.Started(7, 0), wire.Started(8, 1))
    started = told.loop.time()
    told.loop.pass_time(10)
    told.hear(wire.Progress(1, 5))
    heard = {rank: process.heard_at for (_, rank), process in told.state.processes.running.items()}
    assert heard == pytest.approx({0: started, 1: started + 10})
    told.hear(wire.Output("words"))
    assert {process.heard_at for process in told.state.processes.running.values()} == {told.loop.time()}


def test_metrics_are_kept_by_name_and_not_without_end(told: Told) -> None:
    told.hear(*RUNS, *(wire.Progress(0, metrics={f"m{number}": 1.0}) for number in range(MOST_METRICS + 10)))
    told.hear(wire.Progress(0, metrics={"m0": 2.0}))
    assert len(told.state.metrics) == MOST_METRICS
    assert told.state.metrics["m0"] == 2.0


def test_no_worker_takes_the_names_of_metrics_of_another(told: Told) -> None:
    many = [wire.Progress(0, metrics={f"m{number}": 1.0}) for number in range(MOST_METRICS + 10)]
    told.hear(*RUNS, *many)
    told.call(told.state.on_message, "worker-1", wire.Started(8, 1))
    for number in range(MOST_METRICS):
        told.call(told.state.on_message, "worker-1", wire.Progress(1, metrics={f"loss{number}": 1.0}))
    told.hear(*many)
    kept = Counter(name.rstrip("0123456789") for name in told.state.metrics)
    assert kept == {"m": MOST_METRICS // 2, "loss": MOST_METRICS // 2}
    assert {"m0", "loss0"} <= set(told.state.metrics)


def test_clocks_are_kept_with_the_member(told: Told) -> None:
    told.hear(HELLO, ClockOffset(1.5, 0.1))
    member = told.state.members["worker-0"]
    assert (member.clock_offset, member.clock_error) == (1.5, 0.1)


def test_nothing_fails_any_more_once_all_is_being_ended(told: Told) -> None:
    told.state.ending = True
    told.hear(*RUNS, wire.Exited(7, 0, 3), wire.Error("cannot"))
    assert told.failures() == []


@pytest.mark.parametrize(
    ("status", "connected", "failures"),
    [
        (Status.RUNNING, [], []),
        (Status.FAILED, [], [("lost", None)]),
        (Status.FAILED, ["worker-0"], []),
        (Status.SUCCEEDED, [], [("lost", None)]),
    ],
)
def test_what_the_platform_says(
    told: Told, status: Status, connected: list[str], failures: list[tuple[str, int | None]]
) -> None:
    told.call(told.state.polled, [Worker("worker-0", "worker-0", status)], connected)
    assert told.failures() == failures
    assert told.state.workers["worker-0"].status is status
    assert told.state.missing == ["worker-0", "worker-1"]


@pytest.mark.parametrize(("step", "at"), [(7, " at step 7"), (None, "")])
def test_a_loss_that_is_no_number_is_said_once(told: Told, step: int | None, at: str) -> None:
    told.hear(*RUNS, *(wire.Progress(0, step, metrics={"val_loss": float("nan")}) for _ in range(3)))
    notes = [data["text"] for kind, data in told.said() if kind == "note"]
    assert notes == [f"rank 0 (worker-0) reports val_loss nan{at}: its training diverges."]


def test_threads_that_fail_are_kept_for_the_error(told: Told) -> None:
    told.hear(*RUNS, wire.Warned("lost a thread", 0, True), wire.Warned("swaps", 0))
    assert told.state.lost_threads == ["rank 0 (worker-0) lost a thread"]


def test_what_workers_wait_for_is_said_once(told: Told) -> None:
    waits = Worker("worker-0", "worker-0", Status.SCHEDULING, reason="The queue is full.")
    for _ in range(2):
        told.call(told.state.polled, [waits], [])
    assert told.state.queued == ["worker-0"]
    assert told.state.waits_of(["worker-0"]) == ["The queue is full."]
    assert [data.get("reason") for kind, data in told.said() if kind == "worker_state"] == ["The queue is full."]


def test_what_workers_wait_for_is_said_no_more_often_than_people_can_read(told: Told) -> None:
    def poll(reason: str) -> list[str]:
        waits = Worker("worker-0", "worker-0", Status.SCHEDULING, reason=reason)
        told.call(told.state.polled, [waits], [])
        return [data["reason"] for kind, data in told.said() if kind == "worker_state"]

    assert poll("8 jobs are before it.") == poll("7 jobs are before it.") == ["8 jobs are before it."]
    told.loop.run(asyncio.sleep(WAITS_SECONDS))
    assert poll("6 jobs are before it.") == ["8 jobs are before it.", "6 jobs are before it."]


@pytest.mark.parametrize(
    ("cause", "kind"), [(None, FailureKind.LOST), *((cause, FailureKind(cause)) for cause in EndCause)]
)
def test_the_platform_says_what_ended_a_worker(told: Told, cause: EndCause | None, kind: FailureKind) -> None:
    worker = Worker("worker-0", "worker-0", Status.FAILED, reason="why", cause=cause, advice="what to try")
    told.call(told.state.polled, [worker], [])
    assert [(failure.kind, failure.message, failure.advice) for failure in told.state.failures] == [
        (kind, "why", "what to try")
    ]


@pytest.mark.parametrize(
    ("offset", "time", "uncertainty"),
    [
        (ClockOffset(50.0, 0.5), 850.0, 0.5),
        (ClockOffset(0.1, 0.5), 900.0, 0.0),
        (ClockOffset(-500.0, 0.5), 1000.0, 0.5),
    ],
    ids=["another machine's clock", "the same clock", "a time that is yet to come"],
)
@pytest.mark.parametrize("message", [wire.Exited(7, 0, 3, monotonic=900.0), wire.HungUp(0, 900.0)], ids=["end", "drop"])
def test_the_time_of_an_end_is_told_by_the_clock_of_the_session(
    told: Told, offset: ClockOffset, time: float, uncertainty: float, message: Any
) -> None:
    told.hear(*RUNS, offset, message)
    (failed,) = told.state.failures
    assert (failed.time, failed.uncertainty) == (time, uncertainty)


TOO_MUCH: list[tuple[Callable[[int], Any], str]] = [
    (lambda _: wire.Raised("ValueError", "no", "trace", 0), "more failures"),
    (lambda _: wire.Raised("SystemExit", "5", "trace", 0, status=5), "more failures"),
    (lambda _: wire.HungUp(0), "more failures"),
    (lambda rank: wire.Broken(137), "more failures"),
    (lambda rank: wire.Error(f"no {rank}"), "more failures"),
    (lambda rank: wire.Started(7, rank), "more processes"),
    (lambda rank: wire.Exited(7, rank, 3), "has not started"),
    (lambda rank: wire.Exited(7, 0, 3), "does not run"),
    (lambda rank: wire.ProcessStacks("here", rank), "has not started"),
]


@pytest.mark.parametrize(("say", "warned"), TOO_MUCH)
def test_an_agent_that_tells_without_end_is_heard_to_an_end(
    told: Told, say: Callable[[int], Any], warned: str, caplog: pytest.LogCaptureFixture
) -> None:
    told.hear(*RUNS, *map(say, range(500)))
    kept = len(told.state.failures) + len(told.state.processes.of("worker-0")) + len(told.state.stacks)
    assert 2 <= kept < 400
    assert len(told.events) < 400
    assert [warned in record.getMessage() for record in caplog.records] == [True]
    before = len(told.state.failures)
    told.call(told.state.polled, [Worker("worker-1", "worker-1", Status.FAILED)], [])
    assert len(told.state.failures) == before + 1, "others are heard all the same"


def test_the_warnings_of_one_worker_leave_room_for_those_of_others(told: Told) -> None:
    told.hear(*RUNS, *(wire.Warned(f"says {number}", 0) for number in range(100)))
    for message in (wire.Started(8, 1), wire.Warned("swaps", 1)):
        told.call(told.state.on_message, "worker-1", message)
    notes = [str(data["text"]) for kind, data in told.said() if kind == "note"]
    assert notes[-1] == "rank 1 (worker-1) swaps."
    assert notes.count("rank 0 (worker-0) says 0.") == 1
    assert len(notes) == 1 + NOTES_OF_EACH


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_of_several_ranks_the_lowest_tells_the_metrics(told: Told, order: tuple[int, ...]) -> None:
    told.hear(HELLO, *(wire.Started(7 + rank, rank) for rank in order))
    told.hear(*(wire.Progress(rank, 1, metrics={"loss": float(rank)}) for rank in order))
    assert told.state.metrics == {"loss": 0.0}


MANY = 2400  # of a kind, as a worker that means no good sends them
FLOODS: dict[str, Callable[[int], Any]] = {
    "starts of more ranks than there are": lambda number: wire.Started(7, number),
    "starts of one": lambda number: wire.Started(7, 0),
    "ends of one": lambda number: wire.Exited(7, 0, exit_code=1),
    "ends of what was never started": lambda number: wire.Exited(7, 5, exit_code=1),
    "exceptions of one": lambda number: wire.Raised("ValueError", "x", "x" * 1000, rank=0),
    "exceptions of many": lambda number: wire.Raised("ValueError", "x", "x" * 1000, rank=number),
    "lost launchers": lambda number: wire.HungUp(number),
    "broken daemons": lambda number: wire.Broken(1),
    "own errors": lambda number: wire.Error("no"),
    "stacks of one": lambda number: wire.ProcessStacks("x" * 1000, 0),
    "stacks of many": lambda number: wire.ProcessStacks("x" * 1000, number),
    "progress of many": lambda number: wire.Progress(number, 1, metrics={}),
    "suspensions": lambda number: wire.Suspended(0, number % 2 == 0),
    "stages": lambda number: wire.Stage(f"stage {number}", 0.0, 0),
    "ports": lambda number: wire.Listening(80 + number),
    "warnings": lambda number: wire.Warned(f"has {number} troubles", 0),
    "news of nobody": lambda number: wire.Leaving(),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_what_one_worker_says_again_and_again_costs_little(
    told: Told, flood: str, caplog: pytest.LogCaptureFixture
) -> None:
    told.hear(HELLO, wire.Started(7, 0))
    told.hear(*map(FLOODS[flood], range(MANY)))
    state = told.state
    kept = [state.failures, state.processes.of("worker-0"), state.stacks, state.listening, told.events, caplog.records]
    assert [len(one) < MANY // 2 for one in kept] == [True] * len(kept), [len(one) for one in kept]
    root_cause(state.failures)  # which compares each with all others


def test_a_worker_may_have_as_many_ranks_as_are_planned(told: Told) -> None:
    told.state.processes.place(dict.fromkeys(range(MANY), "worker-0"), are_ordered=True)
    told.hear(HELLO, *(wire.Started(7, number) for number in range(MANY)))
    assert len(told.state.processes.of("worker-0")) == MANY


@pytest.mark.parametrize("are_ordered", [True, False])
@pytest.mark.parametrize("comes_first", [True, False])
def test_an_agent_does_not_speak_for_another_workers_rank(told: Told, are_ordered: bool, comes_first: bool) -> None:
    """Such a claim never counts, whether it comes before anything is planned or later, with or without a launcher."""
    lies = [
        wire.Started(8, 1),
        wire.Progress(1, 1, metrics={"loss": -1.0}),
        wire.Stage("importing tensorflow", 2.5, 1),
        wire.Warned("swaps", 1),
        wire.Suspended(1),
        wire.HungUp(1),
        wire.Raised("ValueError", "forged", "", 1),
        wire.Exited(8, 1, 9),
    ]
    told.hear(HELLO)
    if comes_first:
        told.hear(*lies)
    told.call(lambda: told.state.processes.place({0: "worker-0", 1: "worker-1"}, are_ordered=are_ordered))
    told.call(lambda: told.state.on_message("worker-1", HELLO._replace(worker="worker-1")))
    if comes_first:
        told.hear(*lies)
    told.state.failures.clear()  # until another worker starts the rank, a launcher may have placed it there
    told.events.clear()
    for message in (wire.Started(9, 1), wire.Progress(1, 1, metrics=LOSS)):
        told.call(lambda message=message: told.state.on_message("worker-1", message))
    told.hear(*lies)
    assert told.state.failures == []
    assert not {"stage", "note", "script_raised", "silence"} & {kind for kind, _ in told.said()}
    told.call(lambda: told.state.on_message("worker-1", wire.Exited(9, 1, 3)))
    assert told.state.processes.exits == {("worker-1", 1): 3}
    assert told.state.metrics == LOSS


@pytest.mark.parametrize("comes_first", [True, False])
@pytest.mark.parametrize(
    ("ranks", "are_ordered", "own", "lies"),
    [
        ({0: "worker-0"}, True, 0, [5, None]),
        ({0: "worker-0"}, False, 0, [5, None]),
        ({}, True, None, [0, 5]),
    ],
    ids=["ranks", "ranks of a launcher", "servers"],
)
def test_processes_that_nobody_has_asked_for_do_not_keep_a_worker_going(
    told: Told,
    ranks: dict[int, str],
    are_ordered: bool,
    own: int | None,
    lies: list[int | None],
    comes_first: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told.hear(HELLO)
    if comes_first:
        told.hear(*(wire.Started(8, rank) for rank in lies))
    told.call(lambda: told.state.processes.place(ranks, are_ordered=are_ordered))
    told.hear(wire.Started(7, own), *(wire.Started(8, rank) for rank in lies), wire.Exited(7, own, 0))
    assert told.state.workers["worker-0"].status is Status.SUCCEEDED
    assert told.state.processes.is_over("worker-0")
    assert not told.state.processes.run_on("worker-0")
    assert len(caplog.records) == 1


def test_a_launcher_may_place_ranks_otherwise_than_planned(told: Told) -> None:
    told.call(lambda: told.state.processes.place({0: "worker-1", 1: "worker-0"}, are_ordered=False))
    told.hear(*RUNS, wire.Progress(0, 1, metrics=LOSS), wire.Exited(7, 0, 3))
    assert told.state.processes.exits == {("worker-0", 0): 3}
    assert told.state.metrics == LOSS


def test_stacks_are_told_each_time_that_they_are_asked_for(told: Told) -> None:
    told.hear(*RUNS)
    for number in range(3):
        told.state.stacks.clear()
        told.hear(wire.ProcessStacks(f"here {number}", 0))
    assert [data["text"] for kind, data in told.said() if kind == "stacks"] == ["here 0", "here 1", "here 2"]
