"""Attempts of a run: after which ends there is another, and when no more."""

from __future__ import annotations

import asyncio
import functools
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.errors import JobError, MusterError, RunStalled, RunStopped, WorkerKilled
from muster.events import Event, Progress
from muster.failure.causes import Failure, FailureKind
from muster.job import Limits, Script
from muster.records.runs import Run
from muster.run.attempts import BY_ITSELF, CAUSES, Attempts, RestartPolicy
from muster.run.execution import Execution
from muster.run.request import CheckedRun
from muster.testing import ScriptedPlatform, SimulatedLoop

from tests.engine.executing import finish, recorded


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
    ("before", "then", "goes_on"),
    [(5, 5, False), (5, 3, False), (5, 6, True), (None, None, True), (None, 5, True)],
)
def test_where_the_same_comes_of_the_same_worker_and_it_got_no_further_it_is_enough(
    before: int | None, then: int | None, goes_on: bool
) -> None:
    attempts, lost = Attempts(RestartPolicy(9, ("lost",))), failure(FailureKind.LOST)
    attempts(Event.of(Progress(rank=1, step=before), "worker-1"))
    assert attempts.another(MusterError("Gone.", worker="worker-1"), lost)
    attempts(Event.of(Progress(rank=1, step=then), "worker-1"))
    error = MusterError("Gone.", worker="worker-1")
    assert (attempts.another(error, lost) is not None) == goes_on
    assert ("at step 5 as well" in error.message) == (not goes_on)


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
            self.player.manners.runs_for = None if is_killed else 5
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
    assert [fields["env"]["MUSTER_ATTEMPT"] for fields in starts] == ["1", "2", "3"][: len(killed)]


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
    player.manners.runs_for = 5
    made.begin(replace(checked, platform=platform, restart_policy=RestartPolicy(1), limits=Limits(run=60)))
    result = finish(loop, made)
    assert result.error is None
    told = list(Run(made.run_dir).events())
    assert len([event for event in told if event.kind == "run_attempt"]) == 1
    assert len([event for event in told if event.kind == "worker_ready" and event.worker == "worker-1"]) == 2
