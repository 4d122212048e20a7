"""Measure how long it takes until eight workers in pods are ready.

Baseline: eight bare pods that sleep, with the same image and resources. The time of Muster is from the submission until
every agent has connected to the session; that of bare pods, from the start of ``kubectl apply`` until Kubernetes
reports all of them as running. The cluster is the tests' own, on this machine
(``tests/platforms/kubernetes/cluster.py``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from muster.agent.places import symbol
from muster.job import Resources
from muster.platforms.kubernetes.client import ApiClient
from muster.platforms.kubernetes.platform import KubernetesPlatform

from benchmarks.measuring import Figure, Target, Unavailable, by_turns, main, private_home
from tests.platforms.kubernetes.cluster import IMAGE, Cluster, own_cluster, until, why_none
from tests.platforms.kubernetes.space import this_machine
from tests.support import Run, StubSession

COUNT = 8
LIMIT = 1.3
SECONDS = 120.0  # in which all must be ready
RESOURCES = Resources(cpu=0.2, memory=0.2)  # of less the kernel gives an agent, too, only a share, while it starts


def measure(quick: bool) -> list[Figure]:
    """Measure Muster and bare pods by turns."""
    if why_none():
        raise Unavailable(why_none())
    if not shutil.which("kubectl"):
        raise Unavailable("kubectl is not installed here")
    asked: list[float] = []
    with tempfile.TemporaryDirectory(prefix="muster-benchmark-") as path, own_cluster() as cluster, private_home():
        folder = Path(path)
        (folder / "overlay.json").write_text(json.dumps(this_machine()))
        ways = {"muster": lambda: muster(cluster, folder, asked), "bare": lambda: bare(cluster)}
        taken = by_turns(1 if quick else 5, ways)
    title = f"{COUNT} pods from submission to ready"
    return [
        Figure(title, "s", taken["muster"], f"`kubectl apply` of {COUNT} bare pods", taken["bare"], Target(LIMIT)),
        Figure(f"requests to the cluster for {COUNT} pods, from submission to ready", "", asked),
    ]


def muster(cluster: Cluster, folder: Path, asked: list[float]) -> float:
    """Return the seconds from submitting workers until all have said hello; append the requests needed to ``asked``."""
    run, session = Run(folder), StubSession()
    with cluster.namespace() as namespace:
        platform = platform_in(cluster, namespace, folder)
        session.listen_for(platform)
        inside = {"scratch": Path(symbol("scratch")), "cwd": symbol("scratch"), "resources": RESOURCES}
        specs = [run.spec(f"worker-{number}", session=session.address, **inside) for number in range(COUNT)]
        client: ApiClient = platform._client()
        before, began = client.requests, time.monotonic()
        platform.submit(specs, run.id)
        session.wait_for("hello", count=COUNT, timeout=SECONDS)
        seconds = time.monotonic() - began
        asked.append(client.requests - before)
        for spec in specs:  # as every session does
            session.send(spec.name, "end")
        session.wait_for("hung_up", count=COUNT, timeout=SECONDS)
        platform.close()
        until(lambda: not cluster.pods(namespace), "all pods are gone")
    session.close()
    run.remove()
    return seconds


def platform_in(cluster: Cluster, namespace: str, folder: Path) -> Any:
    """Return a Kubernetes platform that uses a namespace of the cluster."""
    platform = KubernetesPlatform(image=IMAGE, namespace=namespace, overlay=folder / "overlay.json", tunnel=False)
    platform._asked = ApiClient(cluster.client.access)
    return platform


def bare(cluster: Cluster) -> float:
    """Return the seconds from ``kubectl apply`` of as many bare pods, which only sleep, until all of them run."""
    amounts = {"cpu": f"{round(RESOURCES.cpu * 1000)}m", "memory": "264M"}
    container = {"image": IMAGE, "command": ["/usr/bin/sleep", "600"], "resources": {"limits": amounts}}
    machine = this_machine()["spec"]
    container |= {"name": "worker", "volumeMounts": machine["containers"][0]["volumeMounts"]}
    spec = {"containers": [container], "volumes": machine["volumes"], "terminationGracePeriodSeconds": 0}
    with cluster.namespace() as namespace:
        kind = {"apiVersion": "v1", "kind": "Pod"}
        pods = [{**kind, "metadata": {"name": f"bare-{number}"}, "spec": spec} for number in range(COUNT)]
        command = ["kubectl", "--kubeconfig", cluster.kubeconfig, "--namespace", namespace, "apply", "-f", "-"]
        began = time.monotonic()
        manifests = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
        subprocess.run(command, input=manifests, text=True, check=True, stdout=subprocess.DEVNULL)
        until(lambda: is_running(cluster, namespace), "all run", SECONDS)
        seconds = time.monotonic() - began
        for number in range(COUNT):
            cluster.client.delete(f"/api/v1/namespaces/{namespace}/pods/bare-{number}")
        until(lambda: not cluster.pods(namespace), "all pods are gone")
    return seconds


def is_running(cluster: Cluster, namespace: str) -> bool:
    """Return whether all bare pods run."""
    return [pod["status"].get("phase") for pod in cluster.pods(namespace)] == ["Running"] * COUNT


if __name__ == "__main__":
    main("kubernetes_ready")
