"""A run from its folders to its record: whatever goes wrong on the way, who waits for its end is told."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.errors import JobError, MusterError, PlatformError, RunStopped, StartTimeout
from muster.job import Limits
from muster.platforms.base import Storage
from muster.pools.calls import CLOSE_SECONDS
from muster.pools.endpoint import Endpoint
from muster.records import folders, runs
from muster.records.journal import Journal
from muster.run import execution, preparation
from muster.run.answers import Answers
from muster.run.checked import CheckedRun
from muster.run.execution import Execution
from muster.testing import ScriptedPlatform, SimulatedLoop

from tests.simulated.executing import finish, recorded


def test_a_run_that_goes_well(loop: SimulatedLoop, made: Execution, checked: CheckedRun) -> None:
    made.begin(checked)
    result = finish(loop, made)
    assert result.status == recorded(made)["status"] == "succeeded"
    assert result.exit_codes == {"rank 0": 0, "rank 1": 0}
    assert sorted(path.name for path in made.run_dir.iterdir()) == [
        "events.jsonl",
        "logs",
        "plan.json",
        "result.json",
        "results",
    ]


STEPS = [
    "describe_job", "warm_up", "prepare", "make_facts", "ship_library", "submit", "close", "remove_folder",
    "exit_codes", "write_json", "tell", "close_journal",
]  # fmt: skip
ERRORS = [KeyError("x"), OSError(28, "No space left on device"), JobError("no"), TypeError("x")]


def sabotage(
    monkeypatch: pytest.MonkeyPatch, made: Execution, checked: CheckedRun, step: str, raising: Callable[..., Any]
) -> None:
    """Have one step raise."""

    where = {
        "describe_job": (execution, "describe_job"),
        "warm_up": (checked.platform, "warm_up"),
        "prepare": (preparation, "prepare"),
        "make_facts": (preparation, "make_facts"),
        "ship_library": (preparation, "ship_library"),
        "submit": (checked.platform, "submit"),
        "close": (checked.platform, "close"),
        "remove_folder": (execution, "remove_folder"),
        "exit_codes": (execution, "exit_codes"),
        "write_json": (folders, "write_json_durably"),
        "tell": (made._observers, "tell"),
        "close_journal": (Journal, "_write_held"),
    }
    owner, name = where[step]
    monkeypatch.setattr(owner, name, raising)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("step", STEPS)
def test_whatever_raises_wherever_it_does_the_run_ends(
    loop: SimulatedLoop,
    made: Execution,
    checked: CheckedRun,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: Exception,
) -> None:
    def raising(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        sabotage(patch, made, checked, step, raising)
        made.begin(checked)
        result = finish(loop, made)
    if step == "remove_folder":
        shutil.rmtree(made._scratch)
    if step in {"close", "close_journal"}:  # what ends later than the run does not fail it
        assert result.error is None
    else:
        assert isinstance(result.error, MusterError) or step == "write_json"
    if step in {"describe_job", "prepare", "exit_codes", "ship_library", "remove_folder"}:
        assert recorded(made)["status"] == result.status == "failed"
        assert "run_ended" in (made.run_dir / "events.jsonl").read_text()


@pytest.mark.parametrize("where", ["make_specs", "AgentPool", "RunState", "Orchestrator"])
def test_what_raises_once_the_session_listens_leaves_no_socket(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    endpoints: list[Endpoint] = []

    def raising(*_: Any, **__: Any) -> None:
        raise KeyError(where)

    def keep(*args: Any) -> Endpoint:
        endpoints.append(Endpoint(*args))
        return endpoints[-1]

    monkeypatch.setattr(preparation, "Endpoint", keep)
    monkeypatch.setattr(preparation, where, raising)
    closed: list[Endpoint] = []
    close = Endpoint.close

    def note(self: Endpoint) -> None:
        closed.append(self)
        close(self)

    monkeypatch.setattr(Endpoint, "close", note)
    made.begin(checked)
    assert finish(loop, made).status == "failed"
    assert closed == endpoints != []


@pytest.mark.parametrize("step", ["make_scratch", "Journal"])
def test_folders_that_cannot_be_made_leave_nothing(
    made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: str
) -> None:
    def raising(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(execution, step, raising)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(PlatformError, match="No space left"):
        made.begin(checked)
    assert os.listdir("/proc/self/fd") == before
    assert not list(tmp_path.glob("muster-*"))


def test_the_result_is_on_the_disk_before_it_has_its_name(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noting(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    made.begin(checked)
    assert finish(loop, made).status == "succeeded"
    assert synced == [f".{os.getpid()}.result.json", made.run_dir.name]


def test_nothing_that_blocks_is_done_on_the_loop(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All clusters of a session share it."""
    places = {
        (execution, "remove_folder"),
        (folders, "write_json_durably"),
        (preparation, "ship_library"),
        (preparation, "make_specs"),
        (checked.platform, "warm_up"),
        (type(checked.strategy), "launcher_for"),
        (type(checked.strategy), "plan"),
        (checked.platform, "submit"),
        (checked.platform, "poll"),
        (checked.platform, "close"),
    }
    called: dict[str, bool] = {}

    def watched(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            called[name] = called.get(name, True) and loop.is_in_thread
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, watched(name, getattr(owner, name)))
        made.begin(checked)
        finish(loop, made)
    assert called == {name: True for _, name in places}


STUCK = ["warm_up", "launcher_for", "plan"]


@pytest.mark.parametrize("step", STUCK)
def test_a_stop_is_heard_while_a_platform_or_a_strategy_takes_long(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    owner: Any = checked.platform if step == "warm_up" else type(checked.strategy)
    monkeypatch.setattr(owner, step, lambda *args: loop.sleep(float("inf")))
    loop.call_later(3, made.ask_to_stop, "by request")
    began = loop.time()
    made.begin(checked)
    assert isinstance(finish(loop, made).error, RunStopped)
    assert loop.time() - began < 3 + CLOSE_SECONDS + 1


@pytest.mark.parametrize("step", STUCK)
def test_what_takes_longer_than_a_start_may_ends_it(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    owner: Any = checked.platform if step == "warm_up" else type(checked.strategy)
    monkeypatch.setattr(owner, step, lambda *args: loop.sleep(float("inf")))
    made.begin(replace(checked, limits=Limits(start=20)))
    error = finish(loop, made).error
    assert isinstance(error, StartTimeout)
    assert "20 s" in error.message
    assert step == "warm_up" or "The strategy processes has not" in error.message


@pytest.mark.parametrize("fails_in", ["prepare", "_control"])
def test_a_platform_that_does_not_close_holds_up_no_end(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch, fails_in: str
) -> None:
    def raising(*_: Any, **__: Any) -> None:
        raise PlatformError("no")

    assert isinstance(checked.platform, ScriptedPlatform)
    checked.platform.seconds["close"] = float("inf")
    monkeypatch.setattr(
        preparation if fails_in == "prepare" else made, "make_facts" if fails_in == "prepare" else fails_in, raising
    )
    began = loop.time()
    made.begin(checked)
    error = finish(loop, made).error
    assert isinstance(error, PlatformError)
    assert error.message == "no"
    assert loop.time() - began < 2 * CLOSE_SECONDS + 1


def test_other_runs_go_on_while_a_log_is_read_for_another_process(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs.Run, "log_end", lambda *_: [f"read on a thread: {loop.is_in_thread}"])

    async def ask() -> Any:
        return await Answers(made).by_request()["logs"]({"name": "worker-0"})

    made.begin(checked)
    assert loop.run(ask()) == {"lines": ["read on a thread: True"]}
    finish(loop, made)


def test_workers_that_share_nothing_get_files_and_give_theirs(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, tmp_path: Path
) -> None:
    assert isinstance(checked.platform, ScriptedPlatform)
    checked.platform.storage = Storage.NOTHING
    players = [checked.platform.player(name) for name, _, _ in checked.members]
    for player in players:
        player.places = {place: str(tmp_path / player.name / place) for place in ("run", "library", "scratch")}
        results = tmp_path / player.name / "run" / "results"
        results.mkdir(parents=True)
        (results / f"{player.name}.pkl").write_bytes(b"a value")
        (tmp_path / player.name / "library").mkdir()
    loop.call_later(5, lambda: players[0].say("output", text="words\n"))
    loop.call_later(6, lambda: players[0].say("output", text="and more\n"))
    made.begin(checked)
    result = finish(loop, made)
    assert result.error is None
    assert (tmp_path / "worker-1" / "library" / "muster" / "training" / "progress.py").exists()
    assert (made.run_dir / "results" / "worker-0.pkl").read_bytes() == b"a value"
    assert (made.run_dir / "logs" / "worker-0.log").read_text() == "words\nand more\n"


@pytest.mark.parametrize("when", [2, 5])
def test_workers_that_share_nothing_and_get_lost(
    loop: SimulatedLoop, made: Execution, checked: CheckedRun, when: float
) -> None:
    assert isinstance(checked.platform, ScriptedPlatform)
    checked.platform.storage = Storage.NOTHING  # and they take no files: they have no places
    loop.call_later(when, checked.platform.player("worker-1").hang_up)
    made.begin(checked)
    assert finish(loop, made).error is not None


@pytest.mark.parametrize("step", ["close", "are_done", "end"])
@pytest.mark.parametrize("error", [KeyError("a defect"), RuntimeError("can't start new thread")], ids=repr)
def test_observers_that_cannot_be_let_go_hold_up_no_end(
    loop: SimulatedLoop,
    made: Execution,
    checked: CheckedRun,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: Exception,
) -> None:
    def raising(*_: Any) -> None:
        raise error

    monkeypatch.setattr(made._observers, step, raising)
    made.begin(checked)
    assert finish(loop, made).status == "succeeded"
