"""Launches that are cut short, on a workbench that is told when."""

from __future__ import annotations

import gc
import os
import signal
import threading
from types import ModuleType
from typing import Any

import pytest
from muster.agent.worker import take_config
from muster.errors import LaunchRefused
from muster.platforms.workbench import agent_files
from muster.platforms.workbench.clients import LibraryClient
from muster.platforms.workbench.platform import WorkbenchPlatform

from tests.support import Run
from tests.workbench.scripted import ScriptedWorkbench


def statuses(scripted: ScriptedWorkbench) -> set[str]:
    """Return the statuses of all workers that were launched."""
    return {worker["status"] for worker in scripted.workers}


def test_a_worker_that_has_started_without_an_answer_is_known_by_its_agent(
    scripted: ScriptedWorkbench, run: Run
) -> None:
    spec = run.spec()

    def start_and_fail(order: dict[str, Any]) -> tuple[int, str]:
        take_config(str(agent_files.config_path(spec)), {"CDSW_ENGINE_ID": scripted.add()["id"]})
        return 500, "lost"

    scripted.launches = start_and_fail
    with pytest.raises(LaunchRefused, match=r"500.*It had started all the same, as engine-0, and was stopped"):
        WorkbenchPlatform().launch([spec])
    assert statuses(scripted) == {"stopped"}


def test_a_worker_that_may_start_later_finds_nothing_to_do(scripted: ScriptedWorkbench, run: Run) -> None:
    scripted.answers = [(500, "lost")]
    spec = run.spec()
    with pytest.raises(LaunchRefused, match="Should it have been launched all the same, it will find nothing to do"):
        WorkbenchPlatform().launch([spec])
    assert take_config(str(agent_files.config_path(spec)), {"CDSW_ENGINE_ID": "engine-7"}) is None


@pytest.mark.parametrize("number", [1, 5, 20])  # also while there are not all threads yet
def test_an_interrupt_stops_what_has_been_launched(scripted: ScriptedWorkbench, run: Run, number: int) -> None:
    def interrupt(order: dict[str, Any]) -> tuple[int, str] | None:
        if scripted.count("POST") == number:
            os.kill(os.getpid(), signal.SIGINT)
        return None

    scripted.launches = interrupt
    gc.disable()  # Python loses an interrupt that comes in a finalizer, or in what is called about a collection
    try:
        with pytest.raises(KeyboardInterrupt):
            WorkbenchPlatform().launch([run.spec(f"worker-{index}") for index in range(300)])
    finally:
        gc.enable()
    assert number <= scripted.count("POST") < 300
    assert statuses(scripted) == {"stopped"}
    assert not list(run.folder.glob("*.launch"))


def test_after_a_refusal_no_more_are_tried(scripted: ScriptedWorkbench, run: Run) -> None:
    scripted.launches = lambda order: (422, "no") if scripted.count("POST") == 3 else None
    with pytest.raises(LaunchRefused, match=r"was refused: .*no .HTTP 422"):
        WorkbenchPlatform().launch([run.spec(f"worker-{index}") for index in range(200)])
    assert scripted.count("POST") < 100
    assert statuses(scripted) == {"stopped"}


def test_all_are_launched_at_the_same_time(scripted: ScriptedWorkbench, run: Run) -> None:
    everybody = threading.Barrier(8)
    library = ModuleType("cdsw")

    def launch_workers(n: int, **order: Any) -> list[dict[str, Any]]:
        everybody.wait(10)
        return [scripted.add()]

    vars(library).update(launch_workers=launch_workers)
    launched = WorkbenchPlatform(LibraryClient(library)).launch([run.spec(f"worker-{index}") for index in range(8)])
    assert [worker.name for worker in launched] == [f"worker-{index}" for index in range(8)]
