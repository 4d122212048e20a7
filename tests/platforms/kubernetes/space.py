"""A real Kubernetes for tests: one cluster for all of them, a namespace for each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.platforms.containers.images import own_folders, python_path
from muster.platforms.kubernetes import platform as kubernetes

from tests.platforms.kubernetes.cluster import IMAGE, Cluster, own_cluster, until


@dataclass
class Space:
    """A namespace for one test, and the user's folder.

    Attributes:
        cluster: the cluster.
        name: of the namespace.
        folder: the user's, which is the working directory.
        options: of the platform.
        python: an interpreter that pods have, with what training scripts import.
    """

    cluster: Cluster
    name: str
    folder: Path
    options: dict[str, Any]
    python: str

    def run(self, script: str, n: int = 2, **options: Any) -> Any:
        """Run a script of this text on pods."""
        (self.folder / "train.py").write_text(script)
        options = {"strategy": "processes", "memory": 0.5, "cpu": 0.1, "timeout_seconds": 120, **options}
        options = {"python": self.python, **self.options, **options}
        return muster.run_cluster(n, worker_script="train.py", platform="kubernetes", **options).cluster

    def is_empty(self) -> bool:
        """Return whether nothing of Muster's is left but pods that the cluster is about to remove, for up to 10 s."""
        pods = [pod for pod in self.cluster.pods(self.name) if not pod["metadata"].get("deletionTimestamp")]
        return not pods and not self.cluster.secrets(self.name)

    def wait_until_empty(self, seconds: float = 60.0) -> None:
        """Wait until nothing is left; fails with all that is there."""
        try:
            until(self.is_empty, "nothing is left in the namespace", seconds)
        except AssertionError as error:
            shown = ("name", "deletionTimestamp", "ownerReferences")
            pods = [
                f"{[pod['metadata'].get(name) for name in shown]} {pod['status']}"
                for pod in self.cluster.pods(self.name)
            ]
            raise AssertionError("\n".join([str(error), *self.cluster.secrets(self.name), *pods])) from None


@pytest.fixture(scope="session")
def kubernetes_of_tests() -> Iterator[Cluster]:
    """The cluster that ``MUSTER_TEST_KUBECONFIG`` names, or else one of the tests' own; skips where there is none."""
    named = os.environ.get("MUSTER_TEST_KUBECONFIG")
    if named:
        image = os.environ.get("MUSTER_TEST_IMAGE", "python:3.11")
        yield Cluster(named, image, is_own=image == IMAGE, node=int(os.environ.get("MUSTER_TEST_NODE", "0")))
    else:
        with own_cluster() as cluster:
            yield cluster


@pytest.fixture
def space(kubernetes_of_tests: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A namespace for one test; fails where something of Muster's is left in it."""
    cluster = kubernetes_of_tests
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KUBECONFIG", cluster.kubeconfig)
    monkeypatch.setattr(kubernetes, "POLL_SECONDS", 0.5)
    monkeypatch.setattr(kubernetes.KubernetesPlatform, "poll_seconds", (0.5, 0.5))
    with cluster.namespace() as name:
        options: dict[str, Any] = {"namespace": name, "image": cluster.image}
        if cluster.is_own:
            (tmp_path / "overlay.json").write_text(json.dumps(this_machine()))
            options["overlay"] = tmp_path / "overlay.json"
        space = Space(cluster, name, folder, options, sys.executable if cluster.is_own else "python3")
        yield space
        space.wait_until_empty()


def this_machine() -> dict[str, Any]:
    """The overlay of pods that have this machine's own Python, so that no image has to be pulled.

    Their root file system is read-only, which Muster bears on every cluster.
    """
    folders = {f"machine-{number}": path for number, path in enumerate(own_folders())}
    mounts = [{"name": name, "mountPath": path, "readOnly": True} for name, path in folders.items()]
    worker = {
        "name": "worker",
        "volumeMounts": mounts,
        "securityContext": {"readOnlyRootFilesystem": True},
        "env": [{"name": "PYTHONPATH", "value": os.pathsep.join(python_path())}],
    }
    volumes = [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()]
    return {"spec": {"volumes": volumes, "containers": [worker]}}
