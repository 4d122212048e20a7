"""Measure the load that a session puts on a cluster's API while a run lives, with 10, 100 and 1,000 workers.

With 10 workers everything is real: pods on the tests' Kubernetes of one node. With more, the agents are simulated
(``simulated_agents.py``), and a stand-in for the cluster's API keeps the pods that are made and says that they run; the
session is a real one, with a cluster's journal. Each request is counted: those of the launch until all workers are
connected, and from then on those of a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from muster.job import Job, Resources, WorkerSpec
from muster.platforms.base import Storage
from muster.platforms.kubernetes.platform import KubernetesPlatform
from muster.run.cluster import Cluster

from benchmarks.idle import Idle
from benchmarks.kubernetes_ready import platform_in
from benchmarks.measuring import Figure, Target, Unavailable, fresh, main, private_home
from benchmarks.simulated_agents import PROGRESS, send_specs, simulated_agents
from tests.platforms.kubernetes.cluster import own_cluster, why_none
from tests.platforms.kubernetes.fake_server import fake_cluster, fake_kubeconfig
from tests.platforms.kubernetes.space import this_machine

REAL = 10
KINDS = {REAL: "real", 100: "simulated agents", 1000: "simulated agents"}
MOST = 0.5  # requests a second: one list of pods every two seconds
START_SECONDS = 600.0


class Asked(NamedTuple):
    """Requests to the cluster: in all of the launch, and a second of the time that follows."""

    launch: float
    a_second: float


def measure(quick: bool) -> list[Figure]:
    """Measure the requests for each number of workers."""
    seconds = 15 if quick else 60
    with private_home():
        asked = {workers: fresh(simulated, workers, seconds) for workers in ((100,) if quick else (100, 1000))}
        if not quick:
            asked = {REAL: fresh(real, REAL, seconds), **asked}
    return [
        figure
        for workers, found in asked.items()
        for figure in (
            Figure(f"{named(workers)}: requests until all are connected", "", [found.launch]),
            Figure(f"{named(workers)}: requests while they run", "1/s", [found.a_second], target=Target(MOST, "1/s")),
        )
    ]


def named(workers: int) -> str:
    """Return that many workers in words."""
    return f"{workers:,} workers on Kubernetes ({KINDS[workers]})"


def real(workers: int, seconds: float) -> Asked:
    """Return the requests with pods on a real Kubernetes."""
    if why_none():
        raise Unavailable(why_none())
    with tempfile.TemporaryDirectory(prefix="muster-benchmark-") as path, own_cluster() as cluster:
        (Path(path) / "overlay.json").write_text(json.dumps(this_machine()))
        os.environ["KUBECONFIG"] = cluster.kubeconfig
        with cluster.namespace() as namespace:
            platform = platform_in(cluster, namespace, Path(path))
            client = platform._client()
            return requests_of(platform, workers, seconds, lambda: client.requests)


def simulated(workers: int, seconds: float) -> Asked:
    """Return the requests with simulated agents, which only speak the protocol with the session."""
    with (
        tempfile.TemporaryDirectory(prefix="muster-benchmark-") as path,
        simulated_agents(workers, PROGRESS) as channels,
        fake_cluster() as cluster,
    ):
        os.environ["KUBECONFIG"] = str(Path(path) / "config")
        Path(os.environ["KUBECONFIG"]).write_text(json.dumps(fake_kubeconfig(cluster)))
        return requests_of(Simulated(channels), workers, seconds, lambda: len(cluster.asked))


def requests_of(platform: KubernetesPlatform, workers: int, seconds: float, asked: Callable[[], int]) -> Asked:
    """Return the requests of a launch, and those a second within ``seconds`` seconds, once all are connected."""
    job = Job(None, workers, resources=Resources(0.1, 0.1))
    with (
        contextlib.closing(platform),
        Cluster(job, strategy=Idle(), platform=platform, timeout_seconds=START_SECONDS),
    ):
        launch = asked()
        while asked() == launch:  # begin just after a request, or a short time could seem to have one too many
            time.sleep(0.01)
        before, began = asked(), time.monotonic()
        time.sleep(seconds)
        return Asked(launch, (asked() - before) / (time.monotonic() - began))


class Simulated(KubernetesPlatform):
    """A Kubernetes platform whose pods are none, and whose agents are simulated."""

    def __init__(self, channels: Sequence[Connection]) -> None:
        super().__init__(image="my/image:1", tunnel=False)
        self.storage = Storage.ALL  # nothing has to be sent
        self._channels = channels

    def submit(self, specs: Sequence[WorkerSpec], run_key: str) -> list[str]:
        """Make the pods, and have the agents dial the session."""
        handles = super().submit(specs, run_key)
        send_specs(self._channels, [(spec.name, spec.session) for spec in specs if spec.session])
        return handles


if __name__ == "__main__":
    main("kubernetes_load")
