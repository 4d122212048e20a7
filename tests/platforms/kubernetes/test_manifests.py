"""Pods as data: what they may not ask for under the "restricted" pod security standard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.agent.places import symbol
from muster.errors import JobError
from muster.platforms.kubernetes import pods
from muster.platforms.kubernetes.defaults import toleration

from tests.support import Run

VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
SYSCTLS = {
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
    "net.ipv4.ip_unprivileged_port_start",
}  # fmt: skip


def faults(pod: dict[str, Any]) -> Iterator[str]:
    """List where a pod breaks the standard of kubernetes.io/docs/concepts/security/pod-security-standards."""
    spec, all_of = pod["spec"], pod["spec"].get("securityContext", {})
    for shared in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(shared):
            yield shared
    for volume in spec.get("volumes", []):
        yield from (f"volume {kind}" for kind in volume if kind not in VOLUMES | {"name"})
    yield from (f"sysctl {each['name']}" for each in all_of.get("sysctls", []) if each["name"] not in SYSCTLS)
    yield from (f"annotation {key}" for key in pod["metadata"].get("annotations", {}) if "apparmor" in key)
    for container in [*spec["containers"], *spec.get("initContainers", []), *spec.get("ephemeralContainers", [])]:
        own = container.get("securityContext", {})
        both = {**all_of, **own}
        if own.get("privileged"):
            yield "privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield "allowPrivilegeEscalation"
        if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
            yield "root"
        if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccompProfile"
        if "ALL" not in own.get("capabilities", {}).get("drop", []):
            yield "capabilities are kept"
        if set(own.get("capabilities", {}).get("add", [])) - {"NET_BIND_SERVICE"}:
            yield "capabilities are added"
        if both.get("procMount", "Default") != "Default":
            yield "procMount"
        if both.get("seLinuxOptions", {}):
            yield "seLinuxOptions"
        if any(port.get("hostPort") for port in container.get("ports", [])):
            yield "hostPort"


def pod_of(run: Run, **changes: Any) -> dict[str, Any]:
    setting = pods.PodSetting(
        "owner", "session", "key", "image:1", "python3", changes.pop("user", 1000), 1000, **changes
    )
    (pod,) = pods.pods([run.spec(scratch=Path(symbol("scratch")), cwd=symbol("scratch"))], setting)
    return pod


@pytest.mark.parametrize("changes", [{}, {"user": None}, {"queue": "q"}, {"seconds": 60}, {"has_tunnel": True}])
def test_pods_pass_the_restricted_standard(run: Run, changes: dict[str, Any]) -> None:
    assert list(faults(pod_of(run, **changes))) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"user": 0}, "root"),
        ({"overlay": {"spec": {"hostNetwork": True}}}, "hostNetwork"),
        ({"overlay": {"spec": {"volumes": [{"name": "h", "hostPath": {"path": "/"}}]}}}, "volume hostPath"),
    ],
)
def test_what_somebody_asks_for_beyond_it_is_found(run: Run, changes: dict[str, Any], fault: str) -> None:
    assert fault in list(faults(pod_of(run, **changes)))


@pytest.mark.parametrize("text", ["a=b:NoSchedule,other", "a:noschedule"])
def test_a_toleration_of_no_effect_is_refused_before_anything_is_asked(text: str) -> None:
    with pytest.raises(JobError, match="is no effect of a taint") as told:
        toleration(text)
    assert "EFFECT is NoSchedule, PreferNoSchedule, NoExecute" in str(told.value.advice)


def test_pods_of_a_queue_are_one_group_of_kueue_s_which_is_admitted_as_a_whole(run: Run) -> None:
    places: dict[str, Any] = {"scratch": Path(symbol("scratch")), "cwd": symbol("scratch")}
    setting = pods.PodSetting("owner", "session", "key", "image:1", "python3", 1000, 1000, queue="team")
    made = pods.pods([run.spec(f"worker-{number}", **places) for number in range(3)], setting)
    labels, annotations = ([pod["metadata"][kind] for pod in made] for kind in ("labels", "annotations"))
    assert {each["kueue.x-k8s.io/queue-name"] for each in labels} == {"team"}
    assert len({each["kueue.x-k8s.io/pod-group-name"] for each in labels}) == 1
    assert {each["kueue.x-k8s.io/pod-group-total-count"] for each in annotations} == {"3"}
    assert "kueue" not in str(pod_of(run))
