"""Messages from agents to a run's endpoint, and its reactions; over connections in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from muster.agent import frames, wire
from muster.errors import JobError, PlatformError, WorkerLost, WorkerPreempted, WorkersMissing
from muster.job import Limits, Status
from muster.pools import connection, endpoint
from muster.pools.endpoint import Endpoint
from muster.pools.listener import HELLO_SECONDS
from muster.testing import Outcome, Scene, ScriptedPlatform, SimulatedLoop


def play(hello: dict[str, Any]) -> tuple[Outcome, list[tuple[str, dict[str, Any]]]]:
    with Scene(limits=Limits(start=5)) as scene:
        scene.workers["worker-1"].behaviour.hello = hello
        outcome = scene.play()
        return outcome, [order for order in scene.workers["worker-1"].orders if order[0] == "refused"]


@pytest.mark.parametrize(
    ("hello", "why"),
    [
        ({"token": "guessed"}, "not the token"),
        ({"token": None}, "not the token"),
        ({"version": 99}, "version"),
        ({"version": "x"}, "another version"),
        ({"worker": "worker-9"}, "not the token"),
        ({"worker": "worker-0"}, "not the token"),
        ({"host": "*\n  ProxyCommand evil"}, "makes no sense"),
    ],
)
def test_a_hello_that_is_refused(hello: dict[str, Any], why: str) -> None:
    outcome, refused = play(hello)
    assert isinstance(outcome.error, WorkersMissing)
    assert outcome.error.worker == "worker-1"
    assert len(refused) == 1
    assert why in refused[0][1]["text"]


def test_who_does_not_say_hello_is_not_kept_for_long() -> None:
    with Scene() as scene:
        silent = scene.workers["worker-0"]
        scene.at(0.05, setattr, silent, "say", lambda *_, **__: None)
        scene.start()
        scene.advance(1)
        assert silent.is_connected
        scene.advance(HELLO_SECONDS)
        assert not silent.is_connected


@pytest.mark.parametrize("data", [b"nonsense\n", b"[]\n", b"{}\n", b"\xff\xfe\n", b"x" * (frames.MAX_LINE + 2)])
def test_what_is_not_the_protocol_ends_the_connection(data: bytes) -> None:
    with Scene() as scene:
        scene.at(3, scene.workers["worker-1"].send, data)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.worker == "worker-1"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("tea", {"sugar": 2}),
        ("report", {"report": {"kind": "exception", "rank": {}}}),
        ("report", {"report": "x"}),
        ("clock", {"number": 99, "monotonic": 1.0, "time": 1.0}),
    ],
)
def test_what_makes_no_sense_is_left_out_and_said_once(
    kind: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with Scene() as scene:
        for second in range(3, 6):
            scene.at(second, scene.workers["worker-1"].say, kind, **fields)
        assert scene.play().error is None
    assert caplog.text.count("is dropped") <= 1


def test_a_message_that_fits_nowhere_ends_its_connection_alone() -> None:
    with Scene(3) as scene:
        scene.at(3, scene.workers["worker-1"].say, "exited", pid=7, rank="x")
        scene.start()
        scene.advance(3.1)
        assert [worker.is_connected for worker in scene.workers.values()] == [True, False, True]
        assert isinstance(scene.finish().error, WorkerLost)


def test_a_defect_with_one_workers_message_costs_no_others_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene() as scene:
        scene.start()
        scene.advance(3)
        assert scene.orchestrator is not None
        handlers = scene.orchestrator.state._handlers
        monkeypatch.setitem(handlers, wire.Output, lambda worker, message: 1 / 0)
        scene.do(scene.workers["worker-0"].say, "output", text="x")
        scene.do(scene.workers["worker-1"].say, "usage", cpu=1.0, memory=5)
        outcome = scene.finish()
    assert "usage" in outcome.kinds("worker-1")
    assert isinstance(outcome.error, ZeroDivisionError), "and the worker, whose connection stays, is not blamed for it"


def leased() -> ScriptedPlatform:
    platform = ScriptedPlatform()
    platform.lease_seconds = 15.0
    return platform


def test_a_connection_that_comes_back_in_time_costs_nothing() -> None:
    with Scene(platform=leased()) as scene:
        worker = scene.workers["worker-1"]
        scene.at(3, worker.cut)
        scene.at(4, worker.say, "output", text="said meanwhile")
        scene.at(9, worker.dial)
        outcome = scene.play()
    assert outcome.error is None
    assert "output" in outcome.kinds("worker-1")
    assert outcome.ordered("worker-1").count("start") == 1
    assert outcome.seconds == pytest.approx(10.4, abs=0.2)


def test_what_was_said_to_a_worker_while_it_was_cut_reaches_it() -> None:
    with Scene(platform=leased()) as scene:
        worker = scene.workers["worker-1"]
        scene.at(9, worker.cut)
        scene.at(11, worker.dial)
        outcome = scene.play()
    assert outcome.error is None
    assert outcome.ordered("worker-1").count("end") == 1


@pytest.mark.parametrize("returns", [None, 30.0])
def test_a_connection_that_does_not_come_back_in_time_is_a_lost_worker(returns: float | None) -> None:
    with Scene(platform=leased()) as scene:
        for worker in scene.workers.values():
            worker.behaviour.runs_for = None
        scene.at(3, scene.workers["worker-1"].cut)
        if returns:
            scene.at(returns, scene.workers["worker-1"].dial)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.worker == "worker-1"
    assert "its connection ended, and has not come back" in str(outcome.error)  # nobody knows of more
    assert "restarts=" in str(outcome.error.advice)
    assert 18 < outcome.seconds < 22  # the lease, and what clocks may differ by


def test_nobody_waits_for_a_lease_once_another_worker_has_failed() -> None:
    with Scene(platform=leased()) as scene:
        scene.at(3, scene.workers["worker-1"].cut)
        scene.at(3.5, scene.workers["worker-0"].raise_exception, "ConnectionResetError", "by peer", rank=0)
        outcome = scene.play()
    assert outcome.seconds < 8


def test_nobody_waits_for_a_better_reason_than_the_platform_has_told() -> None:
    platform = leased()
    platform.explain_seconds = 3.0
    with Scene(platform=platform) as scene:
        scene.at(3, platform.end, "worker-1", Status.FAILED, "Its agent was ended by SIGKILL.")
        scene.at(3, scene.workers["worker-1"].cut)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert "SIGKILL" in str(outcome.error)
    assert outcome.seconds < 5


def test_nobody_waits_for_the_lease_of_a_worker_that_was_to_be_taken_away() -> None:
    """As when an engine of containers is stopped, which tells its containers, and then nobody anything."""
    platform = leased()
    with Scene(platform=platform) as scene:
        for worker in scene.workers.values():
            worker.behaviour.runs_for = None
        scene.at(3, scene.workers["worker-1"].say, "preempted")
        scene.at(3.5, lambda: platform.errors.update(poll=PlatformError("The engine does not answer.")))
        scene.at(3.5, scene.workers["worker-1"].cut)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerPreempted)
    assert "has not come back, and the platform cannot be asked: The engine does not answer" in str(outcome.error)
    assert outcome.seconds < 8


def test_another_agent_is_not_taken_for_the_one_that_was_cut() -> None:
    with Scene(platform=leased()) as scene:
        worker = scene.workers["worker-1"]
        worker.behaviour.runs_for = None
        scene.at(3, worker.cut)
        scene.at(4, worker.behaviour.hello.update, {"pid": 101})
        scene.at(5, worker.dial)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert "another agent" in str(worker.orders)


def test_a_numbered_message_counts_once_and_is_acknowledged() -> None:
    with Scene(platform=leased()) as scene:
        player = scene.workers["worker-1"]
        for seconds, number, text in ((3, 1, "one"), (4, 1, "one"), (5, 2, "two")):
            scene.at(seconds, player.say, "output", text=text, n=number)
        outcome = scene.play()
    assert outcome.error is None
    assert [event.data["text"] for event in outcome.events if event.kind == "output"] == ["one", "two"]
    acknowledged = [fields["number"] for name, kind, fields in outcome.orders if (name, kind) == ("worker-1", "ack")]
    assert acknowledged == [1, 1, 2]


def test_one_that_leaves_is_not_waited_for() -> None:
    with Scene(platform=leased()) as scene:
        scene.at(3, scene.workers["worker-1"].say, "leaving")
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.worker == "worker-1"
    assert outcome.seconds < 5


def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    loop = SimulatedLoop()

    async def main() -> None:
        first, second = Endpoint(["worker-0"]), Endpoint(["worker-0"])
        await first.open(tmp_path, "127.0.0.1")
        assert first.listening[0] == "127.0.0.1"
        with pytest.raises(JobError, match="cannot listen on 127.0.0.1:[0-9]+: Address already in use"):
            await second.open(tmp_path, "127.0.0.1", first.listening[1])
        first.close()

    loop.run(main())
    loop.close()


def test_who_costs_more_than_its_share_is_read_less_often_until_it_is_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with Scene() as scene:
        flooding, other = scene.workers["worker-0"], scene.workers["worker-1"]

        def heard() -> list[str]:
            return [str(event.worker) for event in scene.events if event.kind == "output"]

        for worker in (flooding, other):
            worker.behaviour.runs_for = None
        scene.start()
        scene.advance(3)
        monkeypatch.setattr(endpoint, "BYTE_SECONDS", 1.0)
        for number in range(20):
            scene.do(flooding.say, "output", text=f"{number}\n")
        scene.do(other.say, "output", text="a line\n")
        scene.advance(connection.LONGEST_REST / 2)
        assert sorted(heard()) == ["worker-0", "worker-1"]
        scene.advance(connection.LONGEST_REST)
        assert heard().count("worker-0") == 20
        for _ in range(2):
            scene.do(flooding.say, "output", text="more\n")
            scene.advance(connection.LONGEST_REST / 10)
        assert heard().count("worker-0") == 20
        scene.stop()
        scene.advance(connection.LONGEST_REST / 10)
        assert heard().count("worker-0") == 22
        scene.finish()


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_what_was_asked_for_costs_nothing(monkeypatch: pytest.MonkeyPatch, is_asked_for: bool) -> None:
    with Scene() as scene:
        worker = scene.workers["worker-0"]
        worker.behaviour.runs_for = None
        scene.start()
        scene.advance(3)
        assert scene.orchestrator is not None
        if is_asked_for:
            scene.do(scene.orchestrator.pool.send, "worker-0", wire.Credit(7, 100))
        monkeypatch.setattr(endpoint, "BYTE_SECONDS", 1.0)
        scene.do(worker.send, frames.encode("data", stream=7, payload=b"x" * 100))
        scene.advance(connection.LONGEST_REST / 10)
        scene.do(worker.say, "output", text="a line\n")
        scene.advance(connection.LONGEST_REST / 10)
        assert ("output" in [event.kind for event in scene.events]) == is_asked_for
