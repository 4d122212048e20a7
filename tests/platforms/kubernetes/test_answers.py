"""The platform where a cluster's API answers late, twice, or with what is no longer so. By a fake server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.errors import PlatformError
from muster.job import Status
from muster.platforms.kubernetes.client import ClusterGone
from muster.platforms.kubernetes.platform import KubernetesPlatform, _at_once
from muster.platforms.session_guard import owner

from tests.platforms.kubernetes.fake_server import Answer, Fake, fake_server

META = {"name": "p", "labels": {"muster/owner": "a"}}
POD: dict[str, Any] = {"metadata": META, "spec": {}, "status": {"phase": "Pending"}}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The server, which is the current one of a kubeconfig."""
    with fake_server() as fake:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": fake.url}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "first", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
            "current-context": "first",
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield fake


def test_a_list_that_is_older_than_a_pod_is_no_proof_that_it_is_gone(fake: Fake) -> None:
    def answer(method: str, path: str) -> Answer:  # what one of several servers remembers is older
        return Answer(200, {"items": [] if "resourceVersion" in path else [POD]})

    fake.otherwise = answer
    platform = KubernetesPlatform()
    (worker,) = platform.reattach(["ml/p"])
    assert worker.status is Status.SCHEDULING
    fake.otherwise = lambda method, path: Answer(200, {"items": []})
    (worker,) = platform.reattach(["ml/p"])
    assert (worker.status, len(fake.asked)) == (Status.FAILED, 4)
    platform.poll(["ml/p"])
    assert len(fake.asked) == 4


def test_a_sweep_removes_what_is_muster_s_alone_and_holds_up_nothing(fake: Fake) -> None:
    gone = ".".join([*owner().split(".")[:3], "1", "1"])  # no process of this machine's ever was that
    reads = [{"secret": {"name": name}} for name in ("muster-a-1", "muster-a-1-0", "mine", "muster-b-1")]
    pod = {**POD, "spec": {"volumes": [{"name": "secrets", "projected": {"sources": reads}}]}}
    pod["metadata"] = {**META, "annotations": {"muster/session": gone}}
    listed = Answer(200, {"items": [pod]})
    fake.otherwise = lambda method, path: listed if method == "GET" else Answer(403, {"message": "cannot delete"})
    platform = KubernetesPlatform()
    platform._sweep(platform._client(), "ml")
    fake.otherwise = lambda method, path: listed if method == "GET" else Answer(200)
    fake.asked.clear()
    platform._sweep(platform._client(), "ml")
    deleted = [path.removeprefix("/api/v1/namespaces/ml/") for method, path, _ in fake.asked if method == "DELETE"]
    assert sorted(deleted) == ["pods/p", "secrets/muster-a-1", "secrets/muster-a-1-0"]


def test_a_look_at_some_pods_says_nothing_of_others(fake: Fake) -> None:
    fake.otherwise = lambda method, path: Answer(200, {"items": [POD] if "/namespaces/other/" in path else []})
    platform = KubernetesPlatform()
    assert platform.poll(["ml/p"])[0].status is Status.FAILED
    assert platform.poll(["other/p"])[0].status is Status.SCHEDULING


def test_a_stop_that_was_refused_is_asked_for_again(fake: Fake) -> None:
    fake.otherwise = lambda method, path: Answer(403, {"message": "cannot delete"})
    platform = KubernetesPlatform()
    with pytest.raises(PlatformError):
        platform.stop(["ml/p", "ml/q"])
    fake.otherwise = lambda method, path: Answer(200)
    fake.asked.clear()
    platform.stop(["ml/p", "ml/q"])
    platform.stop(["ml/p", "ml/q"])
    assert sorted(path[-1] for _, path, _ in fake.asked) == ["p", "q"]


@pytest.mark.parametrize("error", [PlatformError("no"), ClusterGone("away")])
@pytest.mark.parametrize("goes_on", [True, False])
def test_after_an_error_only_what_may_work_is_tried(error: PlatformError, goes_on: bool) -> None:
    called: list[int] = []

    def call(item: int) -> None:
        called.append(item)
        time.sleep(0.001)
        raise error

    with pytest.raises(type(error)):
        _at_once(call, range(400), goes_on=goes_on)
    assert (len(called) == 400) is (goes_on and not isinstance(error, ClusterGone))
