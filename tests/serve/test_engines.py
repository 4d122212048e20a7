"""Sessions and their workers, without the HTTP around them."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from muster.errors import PlatformError, ResourceError
from muster.job import Status, Worker
from muster.platforms.local import LocalPlatform
from muster.serve import engines as engines_module
from muster.serve.engines import Caller, Engines, RequestRefused, ServeLimits
from muster.serve.models import Order
from muster.serve.record import ServiceRecord
from muster.serve.site import ServiceSite
from muster.workbench.workers import describe

from tests.support import eventually

CLIENT = Caller(0)


@pytest.fixture
def platform() -> LocalPlatform:
    return LocalPlatform()


@pytest.fixture
def engines(tmp_path: Path, platform: LocalPlatform) -> Iterator[Engines]:
    site = ServiceSite("http://127.0.0.1:1", "project", "127.0.0.1")
    engines = Engines(platform, tmp_path, ServiceRecord(), site, ["k" * 32], ServeLimits(8, 8))
    yield engines
    engines.close()


def order(code: str = "1") -> Order:
    return Order(master_id="session", cpu=1, memory=0.5, code=code)


def test_the_oldest_workers_that_have_ended_are_forgotten(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines_module, "KEPT", 1)
    going_on = engines.launch(CLIENT, order("import time; time.sleep(600)"), "127.0.0.1")
    done = []
    for _ in range(3):
        done.append(worker := engines.launch(CLIENT, order(), "127.0.0.1"))
        eventually(functools.partial(ended, engines, worker["id"]), "it has ended")
    assert [worker["id"] for worker in engines.workers(CLIENT, "session")] == [going_on["id"], done[-1]["id"]]
    assert not Path(done[0]["log"]).exists()
    assert Path(done[-1]["log"]).exists()
    with pytest.raises(RequestRefused, match="no worker"):
        engines.stop(CLIENT, done[0]["id"])


def test_a_refused_worker_leaves_no_code(engines: Engines, muster_home: Path) -> None:
    with pytest.raises(ResourceError):
        engines.launch(CLIENT, order().model_copy(update={"cpu": 4096}), "127.0.0.1")
    assert list(muster_home.glob("serve/*/*.py")) == []


def test_a_worker_that_cannot_be_noted_is_stopped(engines: Engines, platform: LocalPlatform, muster_home: Path) -> None:
    (folder,) = muster_home.glob("serve/serve-*")
    (folder / "workers").mkdir()
    with pytest.raises(IsADirectoryError):
        engines.launch(CLIENT, order("import time; time.sleep(600)"), "127.0.0.1")
    eventually(lambda: [worker.status for worker in platform.list()] == [Status.STOPPED], "it is stopped")
    assert list(folder.glob("*.py")) == []


def test_a_session_whose_workers_could_not_be_stopped_can_be_ended_again(
    engines: Engines, platform: LocalPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(workers: object) -> None:
        raise PlatformError("it does not answer")

    engines.launch(CLIENT, order("import time; time.sleep(600)"), "127.0.0.1")
    with monkeypatch.context() as patch, pytest.raises(PlatformError):
        patch.setattr(platform, "stop", fail)
        engines.end(CLIENT, "session")
    engines.end(CLIENT, "session")
    eventually(lambda: [worker.status for worker in platform.list()] == [Status.STOPPED], "it is stopped")


def ended(engines: Engines, worker_id: str) -> bool:
    return any(worker["id"] == worker_id and worker["finished_at"] for worker in engines.workers(CLIENT, "session"))


def test_a_worker_whose_session_has_just_ended_cannot_bring_it_back(engines: Engines) -> None:
    engines.launch(CLIENT, order("import time; time.sleep(600)"), "127.0.0.1")
    engines.end(CLIENT, "session")
    with pytest.raises(RequestRefused, match="not the caller's"):
        engines.launch(Caller(0, "session"), order(), "127.0.0.1")
    assert engines.workers(CLIENT, "session") == []


def test_a_worker_by_whose_clock_it_starts_later_has_run_for_no_time() -> None:
    assert describe(Worker("7", "worker-0", Status.RUNNING, running_at=time.time() + 3600))["duration"] == 0
