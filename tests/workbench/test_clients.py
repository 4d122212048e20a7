"""A session and its workbench, where the workbench misbehaves as told."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from pathlib import Path
from types import ModuleType

import pytest
from muster.errors import LaunchRefused, PlatformError, PlatformUnsupported
from muster.platforms import get_platform
from muster.platforms.local import LocalPlatform
from muster.platforms.workbench import clients
from muster.platforms.workbench.clients import RestClient, find_client
from muster.platforms.workbench.detection import REST_VARIABLES, find_library
from muster.platforms.workbench.platform import WorkbenchPlatform

from tests.workbench.scripted import ScriptedWorkbench

ORDER = {"cpu": 1, "memory": 2, "nvidia_gpu": 0, "kernel": "python3", "script": "", "code": "print()", "env": {}}
BUSY = (429, "too many requests")
BROKEN = (500, "a stack trace")


@pytest.fixture
def client(scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch) -> RestClient:
    """The client of the scripted session, which repeats without waiting."""
    for name in ("SAFE", "LAUNCH"):
        monkeypatch.setattr(clients, name, getattr(clients, name).new(backoff_factor=0, backoff_jitter=0))
    return RestClient.of_session(os.environ)


def test_what_is_asked(scripted: ScriptedWorkbench, client: RestClient) -> None:
    worker = client.launch(ORDER)
    client.stop(worker["id"])
    assert [entry["id"] for entry in client.list()] == [worker["id"]]
    assert scripted.requests == [
        "POST /project/dashboards",
        "PUT /project/dashboards/engine-0/stop",
        "GET /engine/workers",
    ]
    assert scripted.orders == [{**ORDER, "master_id": "session"}]


def test_a_worker_launches_for_the_session_above_it(
    scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDSW_MASTER_ID", "the-session")
    RestClient.of_session(os.environ).launch(ORDER)
    assert scripted.orders[0]["master_id"] == "the-session"


def test_connections_are_used_again(scripted: ScriptedWorkbench, client: RestClient) -> None:
    for _ in range(5):
        client.list()
    assert scripted.connections == 1


@pytest.mark.parametrize(
    ("answer", "tries"),
    [(BUSY, 6), (BROKEN, 6), ((503, ""), 6), ((200, "<html>"), 3), ((200, '{"not": "a list"}'), 3)],
)
def test_a_listing_is_repeated_and_bounded(
    scripted: ScriptedWorkbench, client: RestClient, answer: tuple[int, str], tries: int
) -> None:
    scripted.answers = [answer] * 2
    assert client.list() == []
    scripted.answers = [answer] * 100
    with pytest.raises(PlatformError, match="workbench's answer cannot|workbench answers"):
        client.list()
    assert len(scripted.answers) == 100 - tries


def test_a_launch_is_repeated_only_where_it_has_not_begun(scripted: ScriptedWorkbench, client: RestClient) -> None:
    scripted.answers = [BUSY, BUSY]
    assert client.launch(ORDER)["id"] == "engine-0"
    for answer in (BROKEN, (503, "busy"), (200, "<html>"), (200, "[]")):
        scripted.requests.clear()
        scripted.answers = [answer]
        with pytest.raises(PlatformError) as caught:
            client.launch(ORDER)
        assert not isinstance(caught.value, LaunchRefused)
        assert scripted.count("POST") == 1


@pytest.mark.parametrize("status", [200, 403, 422, 429, 503])
def test_a_refusal_says_what_the_workbench_says(scripted: ScriptedWorkbench, client: RestClient, status: int) -> None:
    scripted.answers = [(status, '{"message": "no more GPUs", "engineId": "session"}')] * 10
    with pytest.raises(LaunchRefused, match="does not accept the key" if status == 403 else "no more GPUs"):
        client.launch(ORDER)


def test_an_expired_key(scripted: ScriptedWorkbench, client: RestClient) -> None:
    scripted.key = "another"
    for call in (client.list, lambda: client.stop("engine-0"), lambda: client.launch(ORDER)):
        with pytest.raises(PlatformError, match="CDSW_API_KEY.*401") as caught:
            call()
        assert "restart the session" in str(caught.value)
        assert "the-key" not in f"{caught.value} {caught.value.__cause__!r}"


def test_a_worker_that_is_not_there_has_been_stopped(scripted: ScriptedWorkbench, client: RestClient) -> None:
    scripted.answers = [(404, "no such worker")]
    client.stop("engine-0")


def test_nobody_there(client: RestClient) -> None:
    with socket.socket() as deaf:  # it is bound, but does not listen
        deaf.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        nowhere = RestClient(url, url, "the-key", "session")
        for call in (nowhere.list, lambda: nowhere.launch(ORDER)):
            with pytest.raises(PlatformError, match="does not answer: .*refused.*\\.") as caught:
                call()
            assert "CDSW_ENGINE_URL" in str(caught.value)


def test_no_session_of_a_workbench(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlatformUnsupported, match="CDSW_PROJECT_URL, CDSW_ENGINE_URL are not set"):
        find_client({"CDSW_API_KEY": "key"})
    monkeypatch.delenv("CDSW_API_KEY", raising=False)
    with pytest.raises(PlatformUnsupported, match='platform="local"'):
        get_platform("workbench")


def test_the_platform_is_chosen_by_where_the_session_is(
    scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(get_platform(None), WorkbenchPlatform)
    assert isinstance(get_platform("local"), LocalPlatform)
    monkeypatch.setenv("MUSTER_PLATFORM", "local")
    assert isinstance(get_platform(None), LocalPlatform)
    assert isinstance(get_platform("workbench"), WorkbenchPlatform)
    monkeypatch.delenv("MUSTER_PLATFORM")
    monkeypatch.delenv("CDSW_API_KEY")
    assert isinstance(get_platform(None), LocalPlatform)


def test_musters_own_stand_in_is_not_the_workbenchs_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import muster.cdsw

    monkeypatch.setitem(sys.modules, "cdsw", muster.cdsw)
    assert find_library() is None


def test_what_only_looks_like_the_library_is_not_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cml").mkdir()
    (tmp_path / "cml" / "__init__.py").write_text("raise ImportError('half installed')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "cdsw", ModuleType("cdsw"))
    assert find_library() is None


def test_an_error_of_the_library_names_the_call(scripted: ScriptedWorkbench) -> None:
    library = ModuleType("cdsw")
    with pytest.raises(PlatformError, match="cdsw.list_workers failed: AttributeError"):
        clients.LibraryClient(library).list()


def test_a_refusal_that_the_library_passes_on_is_an_error(
    scripted: ScriptedWorkbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in REST_VARIABLES:
        monkeypatch.setenv(f"LIBRARY_{name}", os.environ[name])
    monkeypatch.delitem(sys.modules, "tests.workbench.client_library", raising=False)
    client = clients.LibraryClient(importlib.import_module("tests.workbench.client_library"))
    scripted.key = "another"
    with pytest.raises(PlatformError, match=r"list_workers failed: .*no such key"):
        client.list()
    with pytest.raises(PlatformError, match="does not accept the key"):
        client.stop("engine-0")
