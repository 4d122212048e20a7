"""Workers that a cluster would never take: told before anything starts, from its quotas, limits and nodes.

By a fake server, with objects as a real one has shown them; on a real cluster in ``test_kubernetes.py``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent.owners import owner
from muster.agent.places import symbol
from muster.errors import LaunchRefused, ResourceError
from muster.job import Resources
from muster.platforms.kubernetes.limits import counts
from muster.platforms.kubernetes.platform import KubernetesPlatform

from tests.platforms.kubernetes.fake_server import Answer, Fake, fake_kubeconfig, fake_server
from tests.support import Run

ONE = Resources(cpu=1, memory=1)


class Site:
    """What a fake cluster has, by the names of the API; None for what its user may not list."""

    def __init__(self, fake: Fake) -> None:
        self.fake = fake
        self.has: dict[str, list[dict[str, Any]] | None] = {"resourcequotas": [], "limitranges": [], "nodes": []}
        self.autoscaler = Answer(404, {"message": "not found"})
        fake.otherwise = self._answer

    def _answer(self, method: str, path: str) -> Answer:
        if "cluster-autoscaler-status" in path:
            return self.autoscaler
        found = self.has.get(path.partition("?")[0].rpartition("/")[2], [])
        if found is None:
            return Answer(403, {"message": "cannot list"})
        if "/nodes" in path and len(found) > 1:  # a node on each page
            number = int(path.partition("continue=")[2] or 0)
            mark = {"continue": str(number + 1)} if number + 1 < len(found) else {}
            return Answer(200, {"items": found[number : number + 1], "metadata": mark})
        return Answer(200, {"items": found})

    def shortages(self, *wanted: Resources, **options: Any) -> list[str]:
        """What a platform says of workers with these resources."""
        return KubernetesPlatform(image="my/image:1", **options).shortages(wanted)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with fake_server() as fake:
        (tmp_path / "config").write_text(json.dumps(fake_kubeconfig(fake)))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield Site(fake)


def quota(hard: dict[str, str], used: dict[str, str], **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "tight"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used}}


def limits(kind: str = "Container", **item: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "sizes"}, "spec": {"limits": [{"type": kind, **item}]}}


def node(cpu: str = "8", memory: str = "32Gi", **changes: Any) -> dict[str, Any]:
    amounts = {"cpu": cpu, "memory": memory, **changes.pop("devices", {})}
    made = {"metadata": {"name": "n", "labels": changes.pop("labels", {})}, "spec": changes}
    return {**made, "status": {"allocatable": amounts, "capacity": amounts}}


@pytest.mark.parametrize(
    ("hard", "used", "words"),
    [
        ({"count/pods": "2"}, {}, r"room for 2 of 3 workers.*3 pods \(count/pods\); it allows 2 pods, of which 0 pods"),
        ({"requests.cpu": "2500m"}, {"requests.cpu": "1"}, r"1 of 3.*3 cores \(requests.cpu\); it allows 2.5 cores"),
        ({"limits.memory": "2Gi"}, {"limits.memory": "0"}, r"2 of 3.*3.201 GB \(limits.memory\); it allows 2.147 GB"),
        ({"requests.nvidia.com/gpu": "1"}, {}, r"1 of 3 workers: they ask for 3 GPUs .*; it allows 1 GPU"),
    ],
)
def test_a_quota_that_is_too_small_refuses_before_anything_starts(
    site: Site, hard: dict[str, str], used: dict[str, str], words: str
) -> None:
    site.has["resourcequotas"] = [quota({"pods": "100", "requests.storage": "1"}, {"pods": "1"}), quota(hard, used)]
    with pytest.raises(ResourceError) as told:
        site.shortages(*[Resources(cpu=1, memory=1, gpu=1)] * 3)
    assert re.search(words, str(told.value.message))
    assert "kubectl describe quota" in str(told.value.advice)


@pytest.mark.parametrize(
    ("hard", "used", "words"),
    [
        (
            {"pods": "4"},
            {"pods": "3"},
            r"The quota tight of the namespace ml has room for 1 of 3 workers: they ask for 3 pods \(pods\); it allows "
            r"4 pods, of which 3 pods are used\.",
        ),
        ({"cpu": "10"}, {"cpu": "9500m"}, r"0 of 3.*3 cores \(cpu\); it allows 10 cores, of which 9.5 cores are used"),
        ({"secrets": "10"}, {"secrets": "9"}, r"0 of 3 workers: they ask for 2 Secrets .* 9 Secrets are"),
    ],
)
def test_a_quota_that_is_used_up_is_told_and_refuses_a_launch(
    site: Site, run: Run, hard: dict[str, str], used: dict[str, str], words: str
) -> None:
    site.has["resourcequotas"] = [quota(hard, used)]
    (told,) = site.shortages(ONE, ONE, ONE)
    assert re.search(words, told)
    platform = KubernetesPlatform(image="my/image:1")
    with pytest.raises(LaunchRefused, match=words):
        platform.submit([run.spec(f"worker-{number}", resources=ONE) for number in range(3)], "key")
    assert not [path for method, path, _ in site.fake.asked if method == "POST" and "/namespaces/ml/" in path]


def test_what_dead_sessions_have_left_in_a_quota_is_removed_before_it_refuses_anybody(site: Site, run: Run) -> None:
    gone = ".".join([*owner().split(".")[:3], "1", "1"])  # no process of this machine's ever was that
    left = {"name": "p", "labels": {"muster/owner": "a"}, "annotations": {"muster/session": gone}}
    site.has["pods"] = [{"metadata": left, "spec": {}, "status": {"phase": "Pending"}}]
    site.has["resourcequotas"] = [quota({"pods": "1"}, {"pods": "1"})]
    answer = site.fake.otherwise

    def removes(method: str, path: str) -> Answer:
        if method == "DELETE" and path.endswith("/pods/p"):
            site.has["pods"], site.has["resourcequotas"] = [], [quota({"pods": "1"}, {"pods": "0"})]
        if method == "POST":
            return Answer(201, {"metadata": {"name": "x", "uid": "u"}, "status": {"allowed": True}})
        return answer(method, path)

    site.fake.otherwise = removes
    platform = KubernetesPlatform(image="my/image:1")
    assert len(platform.shortages([ONE])) == 1
    assert len(platform.submit([run.spec(resources=ONE, scratch=Path(symbol("scratch")))], "key")) == 1
    platform.close()


def test_a_quota_with_room_for_all_refuses_nobody(site: Site) -> None:
    site.has["resourcequotas"] = [quota({"pods": "4", "cpu": "3", "secrets": "2"}, {"pods": "1", "cpu": "0"})]
    assert site.shortages(ONE, ONE, ONE) == []


def test_workers_of_several_sizes_are_counted_in_the_order_of_their_launch(site: Site) -> None:
    site.has["resourcequotas"] = [quota({"cpu": "5"}, {})]
    with pytest.raises(ResourceError, match="has room for 2 of 3 workers: they ask for 9 cores"):
        site.shortages(ONE, Resources(cpu=4, memory=1), Resources(cpu=4, memory=1))


@pytest.mark.parametrize(
    ("spec", "changes", "is_counted"),
    [
        ({}, {}, True),
        ({"scopes": ["NotBestEffort", "NotTerminating"]}, {}, True),
        ({"scopes": ["BestEffort"]}, {}, False),
        ({"scopes": ["Terminating"]}, {}, False),
        ({"scopes": ["Terminating"]}, {"activeDeadlineSeconds": 60}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, {}, False),
        ({"scopeSelector": {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "Exists"}]}}, {}, False),
        (
            {
                "scopeSelector": {
                    "matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": ["a"]}]
                }
            },
            {"priorityClassName": "a"},
            True,
        ),
    ],
)
def test_a_quota_with_scopes_counts_only_pods_of_these(
    spec: dict[str, Any], changes: dict[str, Any], is_counted: bool
) -> None:
    assert counts(quota({}, {}, **spec), {"spec": {"containers": [], **changes}}) is is_counted


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (
            limits(max={"cpu": "500m"}),
            "Each worker asks for 1 core; the LimitRange sizes of the namespace ml allows a container 0.5 cores",
        ),
        (limits(max={"memory": "1Gi"}), "^$"),
        (limits(max={"memory": "1G"}), "asks for 1.067 GB, its agent included; .* a container 1 GB at most."),
        (limits(min={"cpu": "2"}), "asks for 1 core; .* allows a container 2 cores at least."),
        (limits("Pod", max={"cpu": "1200m"}), "asks for 1.5 cores; .* allows a pod 1.2 cores at most."),
        (limits("Pod", max={"nvidia.com/gpu": "1"}, min={"cpu": "1"}), "^$"),
        (limits("PersistentVolumeClaim", max={"storage": "1"}), "^$"),
    ],
)
def test_a_limit_of_the_namespace_that_would_refuse_each_worker_is_told(
    site: Site, tmp_path: Path, item: dict[str, Any], words: str
) -> None:
    overlay = tmp_path / "overlay.json"  # beside the worker's own container, with what the namespace gives by default
    overlay.write_text(json.dumps({"spec": {"containers": [{"name": "beside"}]}}))
    site.has["limitranges"] = [limits(default={"cpu": "500m"}, defaultRequest={"cpu": "500m"}), item]
    said = ""
    try:
        site.shortages(ONE, ONE, overlay=overlay)
    except ResourceError as error:
        said = error.message
    assert re.search(words, said)


def test_a_container_of_an_overlay_that_is_too_large_is_named(site: Site, tmp_path: Path) -> None:
    overlay = tmp_path / "overlay.json"
    container = {"name": "beside", "resources": {"limits": {"cpu": "4"}}}
    overlay.write_text(json.dumps({"spec": {"containers": [container]}}))
    site.has["limitranges"] = [limits(max={"cpu": "2"})]
    with pytest.raises(ResourceError, match="The container beside of each worker asks for 4 cores; the LimitRange"):
        site.shortages(ONE, overlay=overlay)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Resources(cpu=9, memory=1), r"worker asks for 9 cores; the largest of the cluster's 2 nodes has 8 cores\."),
        (Resources(cpu=1, memory=40), r"asks for 40.07 GB, its agent included; the largest .* 2 nodes has 34.36 GB\."),
        (Resources(cpu=1, memory=1, gpu=2), r"Each worker asks for 2 GPUs; the largest of .* 2 nodes has 1 GPU\."),
        (Resources(cpu=6, memory=30), r"Each worker asks for 6 cores and 30.07 GB; none of .* 2 nodes has all of that"),
    ],
)
def test_a_worker_that_is_larger_than_any_node_is_refused_with_the_number(
    site: Site, asked: Resources, words: str
) -> None:
    site.has["nodes"] = [node("8", "16Gi"), node("4", "32Gi", devices={"nvidia.com/gpu": "1"})]
    with pytest.raises(ResourceError, match=words):
        site.shortages(ONE, asked)
    assert site.shortages(ONE, Resources(cpu=4, memory=30, gpu=1)) == []


@pytest.mark.parametrize("sign", ["label", "annotation", "cloud", "autoscaler", "queue"])
def test_a_worker_that_is_larger_than_any_node_waits_where_nodes_may_be_added(site: Site, sign: str) -> None:
    large, options = node(), {"queue": "team"} if sign == "queue" else {}
    if sign == "label":
        large["metadata"]["labels"] = {"karpenter.sh/nodepool": "a"}
    elif sign == "annotation":
        large["metadata"]["annotations"] = {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"}
    elif sign == "cloud":
        large["spec"]["providerID"] = "aws:///eu-1/i-1"
    elif sign == "autoscaler":
        site.autoscaler = Answer(200, {"data": {}})
    site.has["nodes"] = [large]
    assert site.shortages(Resources(cpu=64), **options) == [
        "Each worker asks for 64 cores; the largest of the cluster's 1 node has 8 cores: the workers wait, unless the "
        "cluster adds a larger one."
    ]


def test_only_nodes_with_the_labels_count(site: Site) -> None:
    site.has["nodes"] = [node("64"), node("8", labels={"pool": "gpu"}, providerID="kind://x")]
    with pytest.raises(ResourceError, match="largest of the cluster's 1 node with pool=gpu has 8 cores"):
        site.shortages(Resources(cpu=16), node_selector=("pool=gpu",))
    assert site.shortages(ONE, node_selector=("pool=tpu",)) == [
        "The cluster has no node with pool=tpu: the workers wait until one has."
    ]


def test_nodes_are_read_only_until_one_is_large_enough(site: Site) -> None:
    site.has["nodes"] = [node("1"), node("8"), node("16"), node("32")]
    assert site.shortages(Resources(cpu=8), ONE) == []
    assert sum("/nodes" in path for _, path, _ in site.fake.asked) == 2


def test_what_a_user_may_not_list_refuses_nothing_and_the_doctor_says_so(site: Site) -> None:
    site.has = {"resourcequotas": None, "limitranges": None, "nodes": None}
    platform = KubernetesPlatform(image="my/image:1")
    assert platform.shortages([Resources(cpu=4096)]) == []
    assert platform.limits() == [
        "no right to list quotas (resourcequotas), limits of containers (limitranges) and the sizes of nodes (nodes): "
        "what these would refuse shows when pods are made"
    ]
    assert len(site.fake.asked) == 3, "they are asked for once for both"


def test_the_doctor_says_what_there_is(site: Site) -> None:
    site.has["resourcequotas"] = [quota({"pods": "4", "requests.memory": "8Gi"}, {"pods": "3"})]
    site.has["limitranges"] = [
        limits(
            max={"cpu": "4", "memory": "8G"}, min={"cpu": "100m"}, default={"cpu": "1"}, defaultRequest={"cpu": "500m"}
        )
    ]
    assert KubernetesPlatform(image="my/image:1").limits() == [
        "quota tight of the namespace ml, used: 3 pods of 4 pods (pods), 0 GB of 8.59 GB (requests.memory)",
        "LimitRange sizes of the namespace ml, each container: at most 4 cores and 8 GB; at least 0.1 cores; "
        "limit by default 1 core; by default 0.5 cores",
    ]


def test_a_cluster_that_does_not_answer_is_told_by_the_launch(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.platforms.kubernetes.client.PAUSES", ())
    site.fake.otherwise = lambda method, path: Answer(0)
    assert site.shortages(ONE) == []


def test_a_submission_is_refused_too(site: Site, run: Run) -> None:
    site.has["nodes"] = [node()]
    platform = KubernetesPlatform(image="my/image:1")
    with pytest.raises(ResourceError, match="asks for 4096 cores"):
        platform.submit([run.spec(resources=Resources(cpu=4096))], "key")
    assert not [path for method, path, _ in site.fake.asked if method == "POST" and "/namespaces/ml/" in path]


@pytest.mark.slow
def test_where_not_all_nodes_can_be_listed_nothing_is_said_of_them(site: Site) -> None:
    site.has["nodes"] = [node(), node(cpu="64")]
    answer = site.fake.otherwise
    site.fake.otherwise = lambda method, path: (
        Answer(500, {"message": "overloaded"}) if "continue=" in path else answer(method, path)
    )
    assert site.shortages(Resources(cpu=16, memory=1)) == []


def test_who_may_not_see_whether_there_is_an_autoscaler_is_not_refused(site: Site) -> None:
    site.has["nodes"] = [node()]
    site.autoscaler = Answer(403, {"message": "cannot get"})
    (text,) = site.shortages(Resources(cpu=16, memory=1))
    assert "the workers wait, unless the cluster adds a larger one" in text
