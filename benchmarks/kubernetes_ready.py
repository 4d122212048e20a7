"""Measure how long it takes until eight workers in pods are ready, and a hundred at once.

Baseline: as many bare pods that sleep, with the same image and resources. The time of Muster is from the submission
until every agent has connected to the session; that of bare pods, from the start of ``kubectl apply`` until Kubernetes
reports all of them as running. The cluster is the tests' own, on this machine
(``tests/platforms/kubernetes/cluster.py``). For a hundred pods to have room on its one node each asks for 15
thousandths of a core, far less than any worker needs. With as little as their limit, too, as Muster has it, the kernel
would suspend each for seconds while it starts. So all pods, also the bare ones, may use up to a core.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from muster.agent.places import symbol
from muster.job import Resources
from muster.platforms.kubernetes.client import ApiClient
from muster.platforms.kubernetes.platform import KubernetesPlatform
from muster.platforms.kubernetes.pods import merged

from benchmarks.measuring import Figure, Target, Unavailable, by_turns, main, private_home
from tests.platforms.kubernetes.cluster import IMAGE, Cluster, own_cluster, until, why_none
from tests.platforms.kubernetes.space import this_machine
from tests.support import Run, StubSession

COUNT, MANY = 8, 100
LIMIT = 1.3
SECONDS = 600.0  # in which all must be ready
RESOURCES = {COUNT: Resources(cpu=0.2, memory=0.2), MANY: Resources(cpu=0.015, memory=0.05)}
MOST_CPU = {"limits": {"cpu": "1"}}  # of each container


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and bare pods by turns."""
    if why_none():
        raise Unavailable(why_none())
    if not shutil.which("kubectl"):
        raise Unavailable("kubectl is not installed here")
    asked: list[float] = []
    with tempfile.TemporaryDirectory(prefix="muster-benchmark-") as path, own_cluster() as cluster, private_home():
        folder = Path(path)
        overlay = this_machine()
        overlay["spec"]["containers"][0]["resources"] = MOST_CPU
        (folder / "overlay.json").write_text(json.dumps(overlay))
        taken = by_turns(1 if quick else 5, ways(cluster, folder, COUNT, asked))
        many = None if quick else by_turns(1, ways(cluster, folder, MANY, []))
    return [
        figure(COUNT, taken),
        Figure(f"requests to the cluster for {COUNT} pods, from submission to ready", "", asked),
        *([figure(MANY, many)] if many else ()),
    ]


def ways(cluster: Cluster, folder: Path, count: int, asked: list[float]) -> dict[str, Callable[[], float]]:
    """Return how that many pods are started, by Muster and bare."""
    return {"muster": lambda: muster(cluster, folder, count, asked), "bare": lambda: bare(cluster, count)}


def figure(count: int, taken: Mapping[str, Sequence[float]]) -> Figure:
    """Return the figure of that many pods."""
    title, floor = f"{count} pods from submission to ready", f"`kubectl apply` of {count} bare pods"
    return Figure(title, "s", taken["muster"], floor, taken["bare"], Target(LIMIT))


def muster(cluster: Cluster, folder: Path, count: int, asked: list[float]) -> float:
    """Return the seconds from submitting workers until all have said hello; append the requests needed to ``asked``."""
    run, session = Run(folder), StubSession()
    with cluster.namespace() as namespace:
        platform = platform_in(cluster, namespace, folder)
        session.listen_for(platform)
        inside = {"scratch": Path(symbol("scratch")), "cwd": symbol("scratch"), "resources": RESOURCES[count]}
        specs = [run.spec(f"worker-{number}", session=session.address, **inside) for number in range(count)]
        client: ApiClient = platform._client()
        before, began = client.requests, time.monotonic()
        platform.submit(specs, run.id)
        session.wait_for("hello", count=count, timeout=SECONDS)
        seconds = time.monotonic() - began
        asked.append(client.requests - before)
        for spec in specs:  # as every session does
            session.send(spec.name, "end")
        session.wait_for("hung_up", count=count, timeout=SECONDS)
        platform.close()
        until(lambda: not cluster.pods(namespace), "all pods are gone", SECONDS)
    session.close()
    run.remove()
    return seconds


def platform_in(cluster: Cluster, namespace: str, folder: Path) -> Any:
    """Return a Kubernetes platform that uses a namespace of the cluster."""
    platform = KubernetesPlatform(image=IMAGE, namespace=namespace, overlay=folder / "overlay.json", tunnel=False)
    platform._asked = ApiClient(cluster.client.access)
    return platform


def bare(cluster: Cluster, count: int) -> float:
    """Return the seconds from ``kubectl apply`` of as many bare pods, which only sleep, until all of them run."""
    resources = RESOURCES[count]
    memory = f"{round(resources.memory * 1000) + 64}M"
    amounts = {"cpu": f"{round(resources.cpu * 1000)}m", "memory": memory}
    container = {
        "image": IMAGE,
        "command": ["/usr/bin/sleep", "600"],
        "resources": merged({"requests": amounts, "limits": amounts}, MOST_CPU),
    }
    machine = this_machine()["spec"]
    container |= {"name": "worker", "volumeMounts": machine["containers"][0]["volumeMounts"]}
    spec = {"containers": [container], "volumes": machine["volumes"], "terminationGracePeriodSeconds": 0}
    with cluster.namespace() as namespace:
        kind = {"apiVersion": "v1", "kind": "Pod"}
        pods = [{**kind, "metadata": {"name": f"bare-{number}"}, "spec": spec} for number in range(count)]
        command = ["kubectl", "--kubeconfig", cluster.kubeconfig, "--namespace", namespace, "apply", "-f", "-"]
        began = time.monotonic()
        manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        subprocess.run(command, input=manifests, text=True, check=True, stdout=subprocess.DEVNULL)
        until(lambda: is_running(cluster, namespace, count), "all run", SECONDS)
        seconds = time.monotonic() - began
        for number in range(count):
            cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/bare-{number}")
        until(lambda: not cluster.pods(namespace), "all pods are gone", SECONDS)
    return seconds


def is_running(cluster: Cluster, namespace: str, count: int) -> bool:
    """Return whether all bare pods run."""
    return [pod["status"].get("phase") for pod in cluster.pods(namespace)] == ["Running"] * count


if __name__ == "__main__":
    main("kubernetes_ready")
