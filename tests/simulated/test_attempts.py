"""Attempts of a run: after which ends there is another, and when no more."""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.checks.planning import member_names
from muster.dashboard.replay import replay
from muster.errors import JobError, LaunchRefused, MusterError, RunStalled, RunStopped, WorkerKilled, WorkerLost
from muster.events import Event, Listening, Progress
from muster.failure.failures import Failure, FailureKind
from muster.job import EndCause, Limits, Script, WorkerSpec
from muster.records.runs import Run
from muster.run.attempts import BY_ITSELF, CAUSES, Attempts, RestartPolicy
from muster.run.check import check
from muster.run.checked import CheckedRun
from muster.run.execution import Execution
from muster.run.request import RunRequest
from muster.testing import ScriptedPlatform, ScriptedWorker, SimulatedLoop

from tests.simulated.executing import finish, recorded


@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        ((0, None), RestartPolicy()),
        ((2, None), RestartPolicy(2, BY_ITSELF)),
        ((2, "memory"), RestartPolicy(2, ("memory",))),
        ((2, ["failed", "stalled"]), RestartPolicy(2, ("failed", "stalled"))),
    ],
)
def test_policies(asked: tuple[Any, Any], policy: RestartPolicy) -> None:
    assert RestartPolicy.checked(*asked, from_scratch=True, script=None) == policy


@pytest.mark.parametrize(
    ("asked", "why"),
    [((-1, None), "negative"), ((1.5, None), "restarts"), ((1, "luck"), "'luck', which is no cause")],
)
def test_what_is_no_policy(asked: tuple[Any, Any], why: str) -> None:
    with pytest.raises(JobError, match=why):
        RestartPolicy.checked(*asked, from_scratch=True, script=None)


@pytest.mark.parametrize(
    ("script", "saves"),
    [
        (None, False),
        (Script("function", "train", pickled=b"... ModelCheckpoint ..."), True),
        (Script("function", "train", pickled=b"..."), False),
        (Script("file", "saves.py"), True),
        (Script("file", "forgets.py"), False),
        (Script("module", "package.train"), True),
    ],
)
def test_a_script_must_go_on_from_what_it_has_saved_as_far_as_its_text_is_here(
    script: Script | None, saves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("saves.py").write_text("import os; first = int(os.environ['MUSTER_ATTEMPT']) == 1")
    Path("forgets.py").write_text("print('from nothing')")
    if saves:
        assert RestartPolicy.checked(1, None, from_scratch=False, script=script).restarts == 1
    else:
        with pytest.raises(JobError, match="keep no checkpoint"):
            RestartPolicy.checked(1, None, from_scratch=False, script=script)


def failure(kind: FailureKind, number: int | None = None) -> Failure:
    return Failure(kind, 0.0, "worker-1", 1, signal=number)


# What ended an attempt, and the cause by which users name it.
ENDS = [
    (MusterError("x"), failure(FailureKind.LOST), "lost"),
    (MusterError("x"), failure(FailureKind.SIGNAL, signal.SIGKILL), "killed"),
    (MusterError("x"), failure(FailureKind.SIGNAL, signal.SIGSEGV), "crashed"),
    (MusterError("x"), failure(FailureKind.LAUNCHER, signal.SIGTERM), "killed"),
    (MusterError("x"), failure(FailureKind.LAUNCHER), None),
    (MusterError("x"), failure(FailureKind.MEMORY, signal.SIGKILL), "memory"),
    (MusterError("x"), failure(FailureKind.EXCEPTION), "failed"),
    (RunStalled("x"), None, "stalled"),
    (RunStopped("x"), None, None),
]


@pytest.mark.parametrize(("error", "failed", "cause"), ENDS)
def test_another_attempt_is_made_after_its_own_causes_alone(
    error: MusterError, failed: Failure | None, cause: str | None
) -> None:
    for policy_cause in CAUSES:
        attempts = Attempts(RestartPolicy(1, (policy_cause,)))
        reason = attempts.another(replace_message(error), failed)
        assert (reason is not None) == (policy_cause == cause)
        assert attempts.number == (2 if reason else 1)


def replace_message(error: MusterError) -> MusterError:
    return type(error)("It went wrong.", worker="worker-1")


def test_there_are_no_more_than_were_asked_for() -> None:
    attempts = Attempts(RestartPolicy(2, ("lost",)))
    lost = failure(FailureKind.LOST)
    reasons = [attempts.another(MusterError("Gone."), lost) for _ in range(3)]
    assert reasons == ["Gone. Attempt 2 of at most 3 begins.", "Gone. Attempt 3 of at most 3 begins.", None]


@pytest.mark.parametrize(
    ("before", "then", "met"),
    [
        ((None, 5), (None, 5), "at step 5 as well"),
        ((None, 5), (None, 3), "at step 5 as well"),
        ((None, 5), (None, 6), None),
        ((None, None), (None, None), None),
        ((None, None), (None, 5), None),
        ((2, 5), (2, 5), "at step 5 of epoch 2 as well"),
        ((2, 5), (1, 9), "at step 5 of epoch 2 as well"),
        ((2, 5), (3, 5), None),
        ((2, 5), (3, 1), None),
    ],
)
def test_where_the_same_comes_of_the_same_worker_and_it_got_no_further_it_is_enough(
    before: tuple[int | None, int | None], then: tuple[int | None, int | None], met: str | None
) -> None:
    """Where there are epochs, steps count within each of them."""
    attempts, lost = Attempts(RestartPolicy(9, ("lost",))), failure(FailureKind.LOST)
    for epoch, step in ((1, 9), before) if before[0] else (before,):
        attempts(Event.of(Progress(rank=1, epoch=epoch, step=step), "worker-1"))
    assert attempts.another(MusterError("Gone.", worker="worker-1"), lost)
    attempts(Event.of(Progress(rank=1, epoch=then[0], step=then[1]), "worker-1"))
    error = MusterError("Gone.", worker="worker-1")
    assert (attempts.another(error, lost) is None) == (met is not None)
    assert (met or "Gone.") in error.message


# -- whole runs --------------------------------------------------------------------------------------------------------


class Attempted:
    """A run that is tried again: in each attempt the rank of its second worker is killed, or is not."""

    def __init__(self, killed: list[bool]) -> None:
        self.platform = ScriptedPlatform()
        self.player = self.platform.player("worker-1")
        self.player.on_order = self._on_order
        self._killed = iter(killed)

    def _on_order(self, kind: str, fields: dict[str, Any]) -> None:
        if kind == "start":
            is_killed = next(self._killed)
            self.player.behaviour.runs_for = None if is_killed else 5
            if is_killed:
                asyncio.get_running_loop().call_later(2, lambda: self.player.exit(rank=1, signal=9))


@pytest.mark.parametrize("killed", [[False], [True, False], [True, True, False], [True, True, True]])
def test_a_run_is_tried_again_until_it_succeeds_or_it_is_enough(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, killed: list[bool]
) -> None:
    attempted = Attempted(killed)
    policy, limits = RestartPolicy(2), Limits(run=60)
    made.begin(replace(checked, platform=attempted.platform, restart_policy=policy, limits=limits))
    result = finish(loop, made)
    assert isinstance(result.error, WorkerKilled) if killed[-1] else result.error is None
    assert recorded(made)["status"] == ("failed" if killed[-1] else "succeeded")
    told = list(Run(made.run_dir).events())
    again = [event.data for event in told if event.kind == "run_attempt"]
    assert [data["attempt"] for data in again] == list(range(2, len(killed) + 1))
    assert all("worker-1" in data["reason"] for data in again)
    starts = [fields for kind, fields in attempted.player.orders if kind == "start"]
    assert [fields["env"].get("MUSTER_ATTEMPT", "1") for fields in starts] == ["1", "2", "3"][: len(killed)]


class Refusing(ScriptedPlatform):
    """A platform that refuses a worker in the attempts of these numbers."""

    def __init__(self, worker: str, attempts: tuple[int, ...], kind: type[MusterError] = LaunchRefused) -> None:
        super().__init__()
        self._kind = kind
        self._worker = worker
        self._attempts = attempts

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        number = int(run_key.split(".")[1])
        if number in self._attempts and self._worker in [spec.name for spec in specs]:
            raise self._kind("there is no host for it.")
        return super().submit(specs, run_key)


def sizes_of(platform: ScriptedPlatform) -> list[str]:
    """Numbers of ranks of each attempt, as its first worker was told."""
    orders = platform.player("worker-0").orders
    return [fields["env"]["WORLD_SIZE"] for kind, fields in orders if kind == "start"]


def texts_of(made: Execution) -> list[str]:
    return [event.data["text"] for event in Run(made.run_dir).events() if event.kind == "note"]


def killed_in(player: ScriptedWorker, *attempts: int) -> None:
    """Have the agent of a worker go in the attempts of these numbers."""
    numbers = itertools.count(1)

    def on_order(kind: str, fields: dict[str, Any]) -> None:
        if kind == "start" and next(numbers) in attempts:
            asyncio.get_running_loop().call_later(2, player.hang_up)

    player.on_order = on_order


@pytest.mark.parametrize("kind", [LaunchRefused, JobError])  # an option may have been right when the run began
def test_a_lost_worker_that_cannot_be_replaced_is_left_out_until_the_next_attempt(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, kind: type[MusterError]
) -> None:
    """It is there for the first attempt, not for the second, and comes back for the third."""
    platform = Refusing("worker-1", (2,), kind)
    killed_in(platform.player("worker-1"), 1)
    again = iter([False, True])
    first = platform.player("worker-0")

    def on_order(kind: str, fields: dict[str, Any]) -> None:
        if kind == "start" and next(again, False):
            asyncio.get_running_loop().call_later(2, lambda: first.exit(rank=0, signal=9))

    first.on_order = on_order
    first.behaviour.runs_for = 30
    made.begin(replace(checked, platform=platform, restart_policy=RestartPolicy(3), spare=1, limits=Limits(run=60)))
    result = finish(loop, made)
    assert result.error is None
    assert sizes_of(platform) == ["2", "1", "2"]
    (left_out,) = [text for text in texts_of(made) if text.startswith("The run goes on without")]
    assert left_out == (
        "The run goes on without worker-1, with 1 of 2 workers: it could not be launched (there is no host for it)."
    )
    assert any(text.endswith("1 worker has stayed. It goes on without worker-1.") for text in texts_of(made))
    view = replay(Run(made.run_dir))
    assert left_out in view.notes


def test_a_worker_that_is_lost_while_others_are_still_to_come_is_replaced(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun
) -> None:
    platform = ScriptedPlatform()
    late, lost = platform.player("worker-0"), platform.player("worker-1")
    late.behaviour.hello_after = None

    def lose() -> None:
        late.behaviour.hello_after = 0.1  # in the next attempt
        lost.hang_up()

    loop.call_later(3, lose)
    checked = replace(checked, platform=platform, owns_platform=False, limits=Limits(start=20, run=60))
    made.begin(replace(checked, restart_policy=RestartPolicy(1)))
    result = finish(loop, made)
    assert result.error is None
    (again,) = [event.data for event in Run(made.run_dir).events() if event.kind == "run_attempt"]
    assert again["cause"].startswith("worker-1 was lost")


@pytest.mark.parametrize(("spare", "ends_well"), [(0, False), (1, True)])
def test_a_replacement_that_does_not_come_in_time_is_waited_for_no_longer(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, spare: int, ends_well: bool
) -> None:
    platform = ScriptedPlatform()
    player = platform.player("worker-1")
    killed_in(player, 1)
    first = platform.player("worker-0")

    def on_order(kind: str, fields: dict[str, Any]) -> None:
        player.behaviour.hello_after = None  # whoever comes after the first says nothing

    first.on_order = on_order
    limits = Limits(start=20, run=60)
    made.begin(replace(checked, platform=platform, restart_policy=RestartPolicy(1), spare=spare, limits=limits))
    result = finish(loop, made)
    assert (result.error is None) == ends_well
    if ends_well:
        assert sizes_of(platform) == ["2", "1"]
        assert any("not there 20 s after the others" in text for text in texts_of(made))
        assert ("stop", ("worker-1",)) in platform.calls


def test_a_run_starts_with_the_workers_that_can_be_had(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun
) -> None:
    """One is refused when all are launched, one by one after that, and is not there in any attempt."""
    platform = Refusing("worker-1", (1, 2))
    first = platform.player("worker-0")
    numbers = itertools.count(1)

    def on_order(kind: str, fields: dict[str, Any]) -> None:
        if kind == "start" and next(numbers) == 1:
            asyncio.get_running_loop().call_later(2, lambda: first.exit(rank=0, signal=9))

    first.on_order = on_order
    made.begin(replace(checked, platform=platform, restart_policy=RestartPolicy(1), spare=1, limits=Limits(run=60)))
    result = finish(loop, made)
    assert result.error is None
    assert sizes_of(platform) == ["1", "1"]


def test_a_worker_that_ends_before_it_has_come_is_left_out(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun
) -> None:
    platform = ScriptedPlatform()
    platform.player("worker-1").behaviour.hello_after = None
    loop.call_later(1, lambda: platform.end("worker-1", reason="its node has failed"))
    made.begin(replace(checked, platform=platform, spare=1, limits=Limits(run=60)))
    assert finish(loop, made).error is None
    assert any("1 of 2 workers: its node has failed" in text for text in texts_of(made))


@pytest.mark.parametrize(("cause", "ends_well"), [(EndCause.LOST, True), (EndCause.PREEMPTED, True), (None, False)])
def test_a_worker_that_is_taken_away_before_it_has_come_is_tried_again_and_one_that_fails_is_not(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, cause: EndCause | None, ends_well: bool
) -> None:
    platform = ScriptedPlatform()
    player = platform.player("worker-1")
    player.behaviour.hello_after = None

    def end() -> None:
        platform.end("worker-1", reason="its node refused it", cause=cause)
        player.behaviour.hello_after = 0.1

    loop.call_later(1, end)
    made.begin(replace(checked, platform=platform, restart_policy=RestartPolicy(1), limits=Limits(run=60)))
    error = finish(loop, made).error
    assert error is None if ends_well else isinstance(error, LaunchRefused)


def test_a_worker_that_goes_while_others_are_waited_for_is_left_out(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun
) -> None:
    platform = ScriptedPlatform()
    platform.player("worker-1").behaviour.hello_after = None
    loop.call_later(5, platform.player("worker-0").hang_up)
    job = replace(checked.job, n_workers=3)
    members = member_names(job, checked.strategy)
    made.begin(replace(checked, job=job, members=members, platform=platform, spare=2, limits=Limits(start=20, run=60)))
    assert finish(loop, made).error is None
    told = " ".join(texts_of(made))
    assert "without worker-0, with 2 of 3 workers" in told
    assert "without worker-1, with 1 of 3 workers" in told


def test_a_platform_that_refuses_too_many_ends_the_run(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun
) -> None:
    platform = ScriptedPlatform()
    platform.errors["submit"] = LaunchRefused("there is no such image")
    made.begin(replace(checked, platform=platform, spare=1))
    with pytest.raises(LaunchRefused, match="no such image"):
        raise finish(loop, made).error or AssertionError("it went well")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"strategy": "processes", "min_workers": 0}, "from 1 to the 2"),
        ({"strategy": "processes", "min_workers": 3}, "from 1 to the 2"),
        ({"strategy": "processes", "min_workers": 1.5}, "whole number"),
        ({"strategy": "multi_worker", "min_workers": 1}, "needs all of its 2 workers"),
        ({"strategy": "parameter_server", "n_ps": 1, "min_workers": 1}, "needs all of its 2 workers"),
    ],
)
def test_numbers_of_workers_that_no_run_can_go_on_with(options: dict[str, Any], why: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass")
    with pytest.raises(JobError, match=why):
        check(RunRequest(script, 2, **options))


def test_what_a_worker_says_that_does_not_stay_counts_for_nothing_in_the_next_attempt(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun
) -> None:
    """One whose agent could not do something is still connected when the next attempt begins, and hangs up then."""
    platform = ScriptedPlatform()
    player = platform.player("worker-1")
    errors = iter(["its sshd has ended"])

    def on_order(kind: str, fields: dict[str, Any]) -> None:
        if kind == "start":
            for text in errors:
                asyncio.get_running_loop().call_later(2, functools.partial(player.say, "error", text=text))

    player.on_order = on_order
    player.behaviour.runs_for = 5
    made.begin(replace(checked, platform=platform, restart_policy=RestartPolicy(1), limits=Limits(run=60)))
    result = finish(loop, made)
    assert result.error is None
    told = list(Run(made.run_dir).events())
    assert len([event for event in told if event.kind == "run_attempt"]) == 1
    assert len([event for event in told if event.kind == "worker_ready" and event.worker == "worker-1"]) == 2


def test_processes_that_are_started_again_alone_count_as_restarts() -> None:
    attempts = Attempts(RestartPolicy(2))
    assert not attempts.alone(failure(FailureKind.MEMORY, 9))
    assert attempts.alone(failure(FailureKind.SIGNAL, signal.SIGKILL))
    killed = WorkerKilled("ps-0 was killed.", worker="ps-0")
    told = attempts.another(killed, failure(FailureKind.SIGNAL, signal.SIGKILL))
    assert told == "ps-0 was killed. Attempt 2 of at most 2 begins."
    assert not attempts.alone(failure(FailureKind.SIGNAL, signal.SIGKILL))
    assert attempts.another(killed, failure(FailureKind.SIGNAL, signal.SIGKILL)) is None


def test_alone_only_where_the_cause_is_no_crash() -> None:
    assert not Attempts(RestartPolicy(2)).alone(failure(FailureKind.SIGNAL, signal.SIGSEGV))
    assert Attempts(RestartPolicy(2, ("crashed",))).alone(failure(FailureKind.SIGNAL, signal.SIGSEGV))


@pytest.mark.parametrize("came_back", [False, True])
def test_a_worker_that_is_lost_with_its_process_is_counted_once(came_back: bool) -> None:
    attempts = Attempts(RestartPolicy(1))
    assert attempts.alone(Failure(FailureKind.SIGNAL, 0.0, "worker-1", signal=signal.SIGKILL))
    if came_back:
        attempts(Event.of(Listening(1234), "worker-1"))
    lost = Failure(FailureKind.LOST, 0.1, "worker-1")
    another = attempts.another(WorkerLost("worker-1 is lost", worker="worker-1"), lost)
    assert (another is None) == came_back


Step = int | tuple[int, int]


class Stepping:
    """A run whose second worker reports steps, so many seconds after each start, until it or the first is killed.

    A step is a number, or a number within an epoch: ``(epoch, step)``.
    """

    def __init__(self, attempts: list[dict[float, Step | str]]) -> None:
        self.platform = ScriptedPlatform()
        self.player = self.platform.player("worker-1")
        self.player.on_order = self._on_order
        self._attempts = iter(attempts)

    def _on_order(self, kind: str, fields: dict[str, Any]) -> None:
        if kind != "start":
            return
        plan = next(self._attempts)
        fails = any(isinstance(what, str) for what in plan.values())
        for rank in range(2):
            self.platform.player(f"worker-{rank}").behaviour.runs_for = None if fails else 40
        for seconds, what in plan.items():
            asyncio.get_running_loop().call_later(seconds, self._do, what)

    def _do(self, what: Step | str) -> None:
        if isinstance(what, str):
            self.platform.player(what).exit(rank=int(what[-1]), signal=9)
        else:
            epoch, step = what if isinstance(what, tuple) else (None, what)
            self.player.report("progress", time=0.0, rank=1, epoch=epoch, step=step, steps=20, metrics={})


@pytest.mark.parametrize(
    ("attempts", "lost", "told"),
    [
        pytest.param(
            [{1: 1, 2: 4, 6: "worker-1"}, {10: 3, 12: 4, 13: 5}], 16, [(2, "step 4")],
            id="from its last step until it is there again",
        ),
        pytest.param(
            [{1: 1, 2: 4, 6: "worker-1"}, {8: 3, 9: "worker-0"}, {10: 3, 12: 6}], 25, [(3, "step 6")],
            id="over an attempt that came less far",
        ),
        pytest.param(
            [{2: 4, 6: "worker-1"}, {10: 4, 11: 6, 13: "worker-1"}, {5: 6}], 21, [(2, "step 4"), (3, "step 6")],
            id="twice",
        ),
        pytest.param(
            [{1: 1, 6: "worker-1", 6.05: 3, 6.1: 4, 6.2: 4, 6.3: 4}, {10: 4}], 10, [(2, "step 4")],
            id="where the last steps of the attempt that failed are told late",
        ),
        pytest.param(
            [{1: (1, 9), 2: (2, 4), 6: "worker-1"}, {8: (1, 9), 10: (2, 3), 12: (2, 4)}], 16,
            [(2, "step 4 of epoch 2")], id="where steps count within epochs",
        ),
        pytest.param([{6: "worker-1"}, {}], 0, [], id="where nobody knows until it runs"),
        pytest.param([{2: 4, 6: "worker-1"}, {}], 4, [], id="where it is never as far until it runs"),
    ],
)  # fmt: skip
def test_time_is_lost_until_the_training_is_as_far_as_it_was(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, attempts: list[dict[float, Step | str]], lost: float,
    told: list[tuple[int, str]],
) -> None:  # fmt: skip
    stepping = Stepping(attempts)
    policy = RestartPolicy(3)
    made.begin(replace(checked, platform=stepping.platform, restart_policy=policy, limits=Limits(run=200)))
    result = finish(loop, made)
    assert result.error is None
    assert result.timings["lost"] == pytest.approx(lost, abs=1)
    texts = texts_of(made)
    found = [re.fullmatch(r"Attempt (\d) is at (step .*), as far as the training was: [\d.]+ s were lost\.", text)
             for text in texts]  # fmt: skip
    assert [(int(match[1]), match[2]) for match in found if match] == told
    runs = [text for text in texts if re.match(r"Attempt \d runs", text)]
    assert len(runs) == len(attempts) - 1
    knows = any(not isinstance(what, str) for what in attempts[0].values())
    assert all(("were lost" in text) != knows for text in runs)
    view = replay(Run(made.run_dir))
    assert set(texts) <= set(view.notes)
    assert sum(attempt.lost or 0.0 for attempt in view.attempts) == pytest.approx(lost if told else 0, abs=1)


def test_no_order_repeats_what_the_environment_of_the_launch_has(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempted = Attempted([False])
    launched: list[str] = []
    launch = attempted.player.launch

    def note(spec: WorkerSpec) -> None:
        launched.append(spec.env["LONG"])
        launch(spec)

    monkeypatch.setattr(attempted.player, "launch", note)
    job = replace(checked.job, env={"LONG": "x" * 10_000})
    made.begin(replace(checked, platform=attempted.platform, job=job))
    assert finish(loop, made).error is None
    assert launched == [job.env["LONG"]]
    assert len(str(attempted.player.orders)) < len(job.env["LONG"])
