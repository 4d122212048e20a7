"""Pods that the cluster takes away: told from failures, so that they may be tried again. On a real Kubernetes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from muster.errors import WorkerCancelled, WorkerLost, WorkerPreempted, WorkersMissing
from muster.platforms.kubernetes import inquiries
from muster.platforms.kubernetes import platform as kubernetes

from tests.platforms.kubernetes.cluster import until
from tests.platforms.kubernetes.space import Space

ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"
SAVES = """
import time
from muster.training import preempted
print("started", flush=True)
while not preempted():
    time.sleep(0.05)
print("saved", flush=True)
time.sleep(600)
"""
MOUNT = {"name": "data", "mountPath": "/data"}


def started(space: Space, script: str = ENDLESS, **options: Any) -> Any:
    """A run of two workers that both have started."""
    running = space.run(script, 2, wait=False, **options)
    for worker in ("worker-0", "worker-1"):
        until(lambda worker=worker: "started" in running.logs(worker), "it has started", 90)
    return running


def test_an_evicted_pod(space: Space) -> None:
    running = started(space, SAVES)
    name = space.cluster.pods(space.name)[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name, "namespace": space.name}}
    space.cluster.client.create(f"/api/v1/namespaces/{space.name}/pods/{name}/eviction", eviction)
    # Kubernetes 1.26 and later say more; before, nothing tells an eviction from a deletion.
    with pytest.raises((WorkerCancelled, WorkerLost), match=r"or evicted \(kubectl drain\)|was evicted"):
        running.wait()
    assert ["saved" in running.logs(f"worker-{index}") for index in range(2)] == [True, True]


def test_a_node_that_is_drained(space: Space) -> None:
    running = started(space)
    name = space.cluster.pods(space.name)[0]["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name, "namespace": space.name}}
    with space.cluster.cordoned():
        space.cluster.client.create(f"/api/v1/namespaces/{space.name}/pods/{name}/eviction", eviction)
        with pytest.raises(WorkerLost, match="deleted from its node .*, which is being emptied|was evicted"):
            running.wait()


def test_a_volume_that_cannot_be_mounted_is_named_while_a_pod_waits(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiries, "DELAY_SECONDS", 1.0)
    volume = {"name": "data", "secret": {"secretName": "nowhere"}}
    overlay = {"spec": {"volumes": [volume], "containers": [{"name": "worker", "volumeMounts": [MOUNT]}]}}
    (space.folder / "volume.yaml").write_text(yaml.safe_dump(overlay))
    said = r'A volume of it cannot be mounted\. Kubernetes says: .*secret "nowhere" not found'
    with pytest.raises(WorkersMissing, match=said):
        space.run(ENDLESS, 1, overlay=space.folder / "volume.yaml", timeout_seconds=12)


def test_an_image_that_is_being_pulled_is_told_with_its_size(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    if not space.cluster.is_own:
        pytest.skip("somebody else's registry answers")
    monkeypatch.setattr(inquiries, "DELAY_SECONDS", 1.0)
    monkeypatch.setattr(kubernetes, "CLOSE_SECONDS", 1.0)
    overlay = {"spec": {"containers": [{"name": "worker", "imagePullPolicy": "Always"}]}}
    (space.folder / "always.yaml").write_text(yaml.safe_dump(overlay))
    said = rf"Its image {space.cluster.image} \([\d.]+ [MG]B\) is being pulled since \d{{4}}-"
    with space.cluster.with_a_slow_registry(), pytest.raises(WorkersMissing, match=said):
        space.run(ENDLESS, 1, overlay=space.folder / "always.yaml", timeout_seconds=8)


def test_a_pod_of_higher_priority_takes_a_worker_s_place(space: Space) -> None:
    if not space.cluster.is_own:
        pytest.skip("somebody else's cluster may have room for both")
    client = space.cluster.client
    kind = "/apis/scheduling.k8s.io/v1/priorityclasses"
    high = f"high-{space.name}"
    client.create(kind, {"metadata": {"name": high}, "value": 1000})
    try:
        node = client.get("/api/v1/nodes")["items"][0]["status"]["allocatable"]
        running = started(space, cpu=0.4)
        container: dict[str, Any] = {"name": "c", "image": space.cluster.image, "command": ["sleep", "600"]}
        cores = f"{int(node['cpu']) * 1000 - 500}m"
        container["resources"] = {"requests": {"cpu": cores}}
        spec = {"priorityClassName": high, "containers": [container], "terminationGracePeriodSeconds": 1}
        path = f"/api/v1/namespaces/{space.name}/pods"
        client.create(path, {"metadata": {"name": "important"}, "spec": spec})
        with pytest.raises(WorkerPreempted, match="A pod of higher priority took its place"):
            running.wait()
        client.delete(f"{path}/important", gracePeriodSeconds="0")
    finally:
        client.delete(f"{kind}/{high}")


def test_a_node_that_is_gone(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    if not space.cluster.is_own:
        pytest.skip("somebody else's node stays")
    monkeypatch.setattr(kubernetes.KubernetesPlatform, "lease_seconds", 5.0)
    monkeypatch.setattr(kubernetes, "CLOSE_SECONDS", 1.0)
    running = started(space)
    expected = pytest.raises(WorkerLost, match="its connection ended, and has not come back")
    with space.cluster.without_its_node(), expected:  # long before Kubernetes knows
        running.wait()
    space.wait_until_empty()
