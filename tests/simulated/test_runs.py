"""Whole runs with scripted workers: what happens, and the error that comes of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from muster.errors import (
    LauncherFailed,
    LaunchRefused,
    MusterError,
    RunStalled,
    RunStopped,
    RunTimeout,
    ScriptFailed,
    ServersNotListening,
    StartTimeout,
    WorkerCancelled,
    WorkerKilled,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerPreempted,
    WorkersMissing,
)
from muster.job import EndCause, Limits, Status
from muster.run.request import AT_ONCE
from muster.testing import Behaviour, Outcome, Scene

Change = Callable[[Scene], object]


def play(change: Change = lambda scene: None, **options: object) -> Outcome:
    with Scene(**options) as scene:  # type: ignore[arg-type]
        change(scene)
        return scene.play()


def behaviour(worker: str, **options: object) -> Change:
    return lambda scene: setattr(scene.workers[worker], "behaviour", Behaviour(**options))  # type: ignore[arg-type]


def test_a_run_that_goes_well() -> None:
    outcome = play()
    assert outcome.error is None
    assert outcome.kinds("worker-0") == [
        "worker_state", "worker_ready", "worker_state", "process_started", "process_exited", "worker_state",
    ]  # fmt: skip
    assert outcome.ordered("worker-0") == ["welcome", "ping", "start", "release", "stop", "end"]
    assert outcome.seconds == pytest.approx(10.3)


def is_cancelled_with_its_process(signal: int) -> Change:
    """A worker whose process is known to have ended before its agent leaves, and before its platform knows why."""

    def change(scene: Scene) -> None:
        scene.at(3, scene.workers["worker-1"].exit, 0, 1, signal=signal)
        scene.at(3.2, scene.workers["worker-1"].hang_up)
        scene.at(3.3, scene.platform.end, "worker-1", Status.FAILED, "by its owner", cause=EndCause.CANCELLED)

    return change


def fails_to_start(scene: Scene) -> None:
    scene.workers["worker-0"].behaviour.hello_after = None
    scene.at(0.05, scene.platform.end, "worker-0", Status.FAILED, "no image")


def is_taken_away_before_it_starts(cause: EndCause) -> Change:
    def change(scene: Scene) -> None:
        scene.workers["worker-0"].behaviour.hello_after = None
        scene.at(0.05, partial(scene.platform.end, "worker-0", Status.FAILED, "its node refused it", cause=cause))

    return change


def submission_is_stuck_and_somebody_stops(scene: Scene) -> None:
    scene.platform.seconds["submit"] = float("inf")
    scene.at(3, scene.stop)


# What happens, and the error, whom it names, and how long after the start all is over.
FAULTS: list[tuple[Change, type[MusterError], str | None, float]] = [
    (lambda s: s.at(3, s.workers["worker-1"].exit, 7, 1), ScriptFailed, "worker-1", 3.5),
    (lambda s: s.at(3, s.workers["worker-1"].exit, rank=1, signal=9), WorkerKilled, "worker-1", 3.5),
    (lambda s: s.at(3, s.workers["worker-1"].exit, rank=1, signal=15), WorkerKilled, "worker-1", 4.2),
    (
        lambda s: s.at(3, s.workers["worker-1"].exit, rank=1, signal=9, reason="memory"),
        WorkerOutOfMemory, "worker-1", 3.5,
    ),
    (is_cancelled_with_its_process(15), WorkerCancelled, "worker-1", 3.5),
    (is_cancelled_with_its_process(9), WorkerKilled, "worker-1", 3.5),
    (lambda s: s.at(3, s.workers["worker-1"].raise_exception, rank=1), ScriptFailed, "worker-1", 3.5),
    (lambda s: s.at(3, s.workers["worker-1"].hang_up), WorkerLost, "worker-1", 3.7),
    (lambda s: s.at(3, s.workers["worker-1"].say, "error", text="cannot"), WorkerLost, "worker-1", 3.5),
    (lambda s: s.at(3, s.workers["worker-1"].send, b"nonsense\n"), WorkerLost, "worker-1", 3.7),
    (lambda s: s.at(3, s.workers["worker-1"].say, "exited", pid=101, rank=1), WorkerLost, "worker-1", 3.7),
    (lambda s: s.at(3, s.stop), RunStopped, None, 3.3),
    (lambda s: s.at(3, s.stop, AT_ONCE), RunStopped, None, 3.2),
    (lambda s: s.at(0.02, s.stop), RunStopped, None, 0.02),
    (lambda s: s.at(0.15, s.stop), RunStopped, None, 0.3),
    (fails_to_start, LaunchRefused, "worker-0", 0.7),
    (is_taken_away_before_it_starts(EndCause.LOST), WorkerLost, "worker-0", 0.7),
    (is_taken_away_before_it_starts(EndCause.PREEMPTED), WorkerPreempted, "worker-0", 0.7),
    (is_taken_away_before_it_starts(EndCause.CANCELLED), WorkerCancelled, "worker-0", 0.7),
    (is_taken_away_before_it_starts(EndCause.PEER), LaunchRefused, "worker-0", 1.4),
    (lambda s: s.platform.errors.update(submit=LaunchRefused("no", worker="worker-0")), LaunchRefused, "worker-0", 0.1),
    (submission_is_stuck_and_somebody_stops, RunStopped, None, 33.1),
    (lambda s: s.platform.seconds.update(submit=float("inf")), StartTimeout, None, 90.1),
    (behaviour("worker-1", hello_after=None), WorkersMissing, "worker-1", 60.1),
    (behaviour("worker-1", starts_after=None), StartTimeout, "worker-1", 60.1),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "worker", "seconds"), FAULTS)
def test_faults(change: Change, error: type[MusterError], worker: str | None, seconds: float) -> None:
    outcome = play(change)
    assert type(outcome.error) is error
    assert isinstance(outcome.error, MusterError)
    assert outcome.error.worker == worker
    assert outcome.seconds == pytest.approx(seconds, abs=0.1)


SHUT_DOWN = ("HorovodInternalError", "Horovod has been shut down.")


def test_where_frameworks_only_tell_of_another_failure_it_is_waited_for_longer() -> None:
    """A rank that raises may have Horovod shut down first, and take its time for that."""
    with Scene() as scene:
        scene.at(3, scene.workers["worker-0"].raise_exception, *SHUT_DOWN, rank=0)
        scene.at(5, scene.workers["worker-1"].raise_exception, "KeyError", "label", rank=1)
        outcome = scene.play()
    assert isinstance(outcome.error, ScriptFailed)
    assert (outcome.error.worker, "KeyError" in outcome.error.message) == ("worker-1", True)


@pytest.mark.parametrize("launcher_ends_it", [False, True])
def test_where_frameworks_have_given_up_a_rank_that_was_stopped_it_is_named(launcher_ends_it: bool) -> None:
    """Gloo waits 30 s for a rank, which may be less than a run may stall; and then its launcher has it end at once."""
    with Scene() as scene:
        scene.workers["worker-1"].behaviour.is_stopped = True
        scene.at(3, scene.workers["worker-0"].raise_exception, *SHUT_DOWN, rank=0)
        if launcher_ends_it:
            scene.at(3.3, partial(scene.workers["worker-1"].exit, rank=1, signal=15, reason="stopped"))
        outcome = scene.play()
    assert isinstance(outcome.error, RunStalled)
    assert (outcome.error.worker, "has been stopped" in outcome.error.message) == ("worker-1", True)


def test_the_stacks_of_a_rank_that_has_ended_are_not_waited_for() -> None:
    """A rank that is killed may be asked for its stack before its end is known, as others tell of it sooner."""
    with Scene() as scene:
        scene.workers["worker-1"].behaviour.deaf_to = frozenset({"stacks"})
        scene.at(3, scene.workers["worker-0"].raise_exception, *SHUT_DOWN, rank=0)
        scene.at(3.1, scene.workers["worker-0"].exit, rank=0, code=1)
        scene.at(3.1, scene.workers["worker-1"].exit, rank=1, signal=9)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerKilled)
    assert outcome.seconds < 4


@pytest.mark.parametrize("later", [0.0, 0.2], ids=["noticed late", "later"])
def test_an_agent_that_ends_its_ranks_and_then_leaves_is_named(later: float) -> None:
    """As one whose guard was killed: it gives what it has started a second, in which its ranks' peers fail."""
    with Scene() as scene:
        scene.at(3, scene.workers["worker-0"].exit, rank=0, signal=15, reason="stopped")
        scene.at(2.99 + later, scene.workers["worker-1"].raise_exception, "ConnectionResetError", "by peer", rank=1)
        scene.at(4.0, scene.workers["worker-0"].say, "usage", cpu=1.0, memory=5)
        scene.at(4.1, scene.workers["worker-0"].hang_up)
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert outcome.error.worker == "worker-0"


def test_a_platform_on_a_busy_machine_is_given_time_to_say_why_an_agent_has_hung_up() -> None:
    with Scene() as scene:
        scene.platform.seconds["poll"] = 0.7
        scene.at(3, scene.workers["worker-1"].hang_up)
        scene.at(3, scene.platform.end, "worker-1", Status.FAILED, "Its node was drained.")
        outcome = scene.play()
    assert isinstance(outcome.error, WorkerLost)
    assert "drained" in outcome.error.message


def test_nobody_is_waited_for_who_has_failed_already() -> None:
    with Scene() as scene:
        for rank in (0, 1):
            scene.at(3, scene.workers[f"worker-{rank}"].raise_exception, *SHUT_DOWN, rank=rank)
        outcome = scene.play()
    assert isinstance(outcome.error, ScriptFailed)
    assert outcome.seconds < 5


def test_limits() -> None:
    endless = Behaviour(runs_for=None)

    def all_endless(scene: Scene) -> None:
        for worker in scene.workers.values():
            worker.behaviour = endless

    outcome = play(all_endless, limits=Limits(run=20))
    assert isinstance(outcome.error, RunTimeout)
    outcome = play(all_endless, limits=Limits(stall=20))
    assert isinstance(outcome.error, RunStalled)
    assert outcome.error.details
    assert "stack of worker-0" in outcome.error.details


class TestQueues:
    """Workers that the platform has no place for yet."""

    def test_the_start_counts_from_when_there_is_a_place(self) -> None:
        def change(scene: Scene) -> None:
            scene.platform.queued = {"worker-1"}
            scene.at(300, scene.platform.place, "worker-1")

        outcome = play(change)
        assert outcome.error is None
        assert outcome.seconds == pytest.approx(310.3, abs=1)

    def test_who_has_a_place_and_says_nothing_is_not_waited_for(self) -> None:
        def change(scene: Scene) -> None:
            scene.platform.queued = {"worker-1"}
            scene.workers["worker-0"].behaviour = Behaviour(hello_after=None)

        outcome = play(change)
        assert isinstance(outcome.error, WorkersMissing)
        assert "within 60 s: worker-0 is starting; worker-1 is scheduling" in str(outcome.error)
        assert outcome.seconds == pytest.approx(60.1, abs=0.5)

    def test_who_comes_late_has_its_whole_time(self) -> None:
        def change(scene: Scene) -> None:
            scene.platform.queued = {"worker-1"}
            scene.workers["worker-1"].behaviour = Behaviour(hello_after=None)
            scene.at(100, scene.platform.place, "worker-1")

        outcome = play(change)
        assert isinstance(outcome.error, WorkersMissing)
        assert outcome.error.worker == "worker-1"
        assert outcome.seconds == pytest.approx(160.1, abs=1)

    def test_a_platform_that_cannot_be_asked_about_its_queue_is_lost(self) -> None:
        def change(scene: Scene) -> None:
            scene.platform.queued = {"worker-1"}
            scene.at(100, scene.platform.errors.update, poll=ConnectionError("the queue is down"))
            scene.at(120, scene.platform.errors.clear)  # not for so long as to be lost
            scene.at(200, scene.platform.errors.update, poll=ConnectionError("the queue is down"))

        outcome = play(change)
        assert isinstance(outcome.error, WorkersMissing)
        assert outcome.error.worker == "worker-1"
        assert "the queue is down" in str(outcome.error)
        assert outcome.seconds == pytest.approx(260.1, abs=2)

    @pytest.mark.parametrize("seconds", [20, 300])
    def test_the_queue_has_a_limit_of_its_own(self, seconds: int) -> None:
        def change(scene: Scene) -> None:
            scene.platform.queued.add("worker-1")
            scene.at(5, scene.platform.waits, "worker-1", "3 jobs come first.")

        outcome = play(change, limits=Limits(queue=seconds))
        assert isinstance(outcome.error, WorkersMissing)
        assert f"1 of 2 workers were still queued after {seconds} s: worker-1. 3 jobs come first." in str(outcome.error)
        assert outcome.seconds == pytest.approx(seconds + 0.1, abs=1)

    def test_workers_submitted_too_late_are_stopped(self) -> None:
        scenes: list[Scene] = []

        def change(scene: Scene) -> None:
            scenes.append(scene)
            scene.platform.seconds["submit"] = 70.0

        outcome = play(change, owns_platform=False)
        assert isinstance(outcome.error, StartTimeout)
        assert ("stop", ("worker-0", "worker-1")) in scenes[0].platform.calls


def test_parameter_servers() -> None:
    outcome = play(strategy="parameter_server", n_ps=1)
    assert outcome.error is None
    assert "listening" in outcome.kinds("ps-0")
    outcome = play(behaviour("ps-0", listens_after=None, runs_for=None), strategy="parameter_server", n_ps=1)
    assert isinstance(outcome.error, ServersNotListening)
    assert outcome.error.worker == "ps-0"


def test_imports_of_servers_do_not_count_as_long_as_they_go_on() -> None:
    def imports_until(end: int, listens: bool) -> Change:
        def change(scene: Scene) -> None:
            server = scene.workers["ps-0"]
            server.behaviour = Behaviour(listens_after=None, runs_for=None)
            for second in range(5, end, 5):
                scene.at(second, lambda: server.report("stage", stage="importing tensorflow"))
            if listens:
                scene.at(end + 1, lambda: server.say("listening", port=2000))

        return change

    assert play(imports_until(200, listens=True), strategy="parameter_server", n_ps=1).error is None
    outcome = play(imports_until(200, listens=False), strategy="parameter_server", n_ps=1)
    assert isinstance(outcome.error, ServersNotListening)
    assert outcome.seconds == pytest.approx(195 + 60, abs=2)


def ranks_start(scene: Scene) -> None:
    for rank, worker in enumerate(scene.workers.values()):
        scene.at(3, worker.start, rank)


def test_a_launcher() -> None:
    def goes_well(scene: Scene) -> None:
        ranks_start(scene)
        scene.at(15, scene.launcher.exit, 0)

    def is_killed(scene: Scene) -> None:
        ranks_start(scene)
        scene.at(5, scene.launcher.exit, -9)

    assert play(goes_well, strategy="horovod").error is None
    outcome = play(is_killed, strategy="horovod")
    assert isinstance(outcome.error, LauncherFailed)
    assert play(lambda s: s.at(1, s.launcher.exit, 0), strategy="horovod").error is not None


@pytest.mark.parametrize(
    ("cause", "error", "said"),
    [
        (EndCause.PREEMPTED, WorkerPreempted, "worker-1 was taken away: the engine's words"),
        (EndCause.MEMORY, WorkerOutOfMemory, "worker-1 was ended for its memory: the engine's words"),
        (EndCause.OVERTIME, RunTimeout, "worker-1 ran out of time: the engine's words"),
        (EndCause.CANCELLED, WorkerCancelled, "worker-1 was cancelled: the engine's words"),
    ],
)
def test_what_the_platform_says_names_the_error(cause: EndCause, error: type[MusterError], said: str) -> None:
    def change(scene: Scene) -> None:
        end = {"reason": "the engine's words", "cause": cause, "advice": "what to try"}
        scene.at(3, lambda: scene.platform.end("worker-1", **end))
        scene.at(3.1, scene.workers["worker-1"].hang_up)

    outcome = play(change)
    assert type(outcome.error) is error
    assert outcome.error.message.startswith(said)
    assert outcome.error.advice == "what to try"
