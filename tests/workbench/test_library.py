"""The workbench's own client library as the transport, where the session has one."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from muster.errors import LaunchRefused
from muster.job import Resources, Status
from muster.platforms import get_platform
from muster.platforms.workbench.detection import LIBRARIES, find_library
from muster.workbench import workers

from tests.support import Run, eventually, handles_of, shell
from tests.workbench.session import WorkbenchSession

pytestmark = pytest.mark.slow


def install(folder: Path, name: str) -> None:
    """Have a folder that modules are looked up in contain the library under that name, such as ``cml.workers_v1``."""
    path = folder.joinpath(*name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("client_library.py"), path)


@pytest.fixture(params=LIBRARIES)
def library(
    request: pytest.FixtureRequest,
    workbench_session: WorkbenchSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    """A session that has this library, and nothing else that would tell Muster where the workbench is."""
    name: str = request.param
    install(tmp_path / "site", name)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    for variable in ("CDSW_API_KEY", "CDSW_PROJECT_URL", "CDSW_ENGINE_URL"):
        monkeypatch.setenv(f"LIBRARY_{variable}", workbench_session.environment[variable])
        monkeypatch.delenv(variable)
    monkeypatch.setattr(workers, "_platform", None)
    yield name
    for module in (name, name.partition(".")[0]):
        sys.modules.pop(module, None)


def test_the_newer_library_comes_first(library: str, tmp_path: Path) -> None:
    assert find_library() == library
    install(tmp_path / "site", "cml.workers_v1")
    assert find_library() == "cml.workers_v1"


def test_workers_are_launched_in_order_seen_and_stopped(library: str, run: Run) -> None:
    platform = get_platform(None)
    assert platform.name == "workbench"
    launched = platform.launch([run.spec(f"worker-{index}", process=shell("sleep 600")) for index in range(3)])
    assert [worker.name for worker in launched] == ["worker-0", "worker-1", "worker-2"]
    eventually(
        lambda: all(worker.status is Status.RUNNING for worker in platform.poll(handles_of(launched))), "all run"
    )
    platform.close()
    assert {worker.status for worker in platform.poll(handles_of(launched))} == {Status.STOPPED}


def test_a_refusal_among_the_results_is_an_error(library: str, run: Run, workbench_session: WorkbenchSession) -> None:
    greedy = run.spec("worker-1", resources=Resources(cpu=4096))
    with pytest.raises(LaunchRefused, match="worker-1 was refused: .*this machine has"):
        get_platform(None).launch([run.spec("worker-0", process=shell("sleep 600")), greedy])
    eventually(lambda: not workbench_session.living(), "no worker lives")


def test_the_calls_of_the_workbench_go_through_it(library: str) -> None:
    launched = muster.launch_workers(2, cpu=1, memory=0.5, code="!echo hello\nassert __name__ == '__main__'")
    found = muster.await_workers(launched, timeout_seconds=30)
    assert [worker["id"] for worker in found["workers"]] == [worker["id"] for worker in launched]
    assert found["failures"] == []
