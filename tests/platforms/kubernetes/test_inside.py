"""A session that is a pod of the cluster itself. On a real Kubernetes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import muster

from tests.platforms.kubernetes.accounts import guide_role, make_account
from tests.platforms.kubernetes.cluster import is_there, until
from tests.platforms.kubernetes.space import Space, this_machine

NOTEBOOK = """
import json, sys, muster
found = muster.run_cluster(
    2, strategy="processes", worker_script="train.py", platform="kubernetes", overlay=sys.argv[1], memory=0.5, cpu=0.1,
    timeout_seconds=120, wait=False,
).cluster
print("started", flush=True)
found.wait()
print(json.dumps([found.logs(f"worker-{index}") for index in range(2)]))
"""


def start_notebook(space: Space, tmp_path: Path) -> str:
    """Start a session in a pod, which may do what the guide says; return the pod's path in the API."""
    make_account(space, guide_role())
    (space.folder / "notebook.py").write_text(NOTEBOOK)
    machine = this_machine()["spec"]
    library = str(Path(muster.__file__).parents[1])
    here = {"muster": library, "here": str(tmp_path)}
    mounts = [*machine["containers"][0]["volumeMounts"]]
    mounts += [{"name": name, "mountPath": folder} for name, folder in here.items()]
    volumes = [*machine["volumes"], *({"name": name, "hostPath": {"path": path}} for name, path in here.items())]
    pod = {
        "metadata": {"name": "notebook"},
        "spec": {
            "serviceAccountName": "user",
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"key": "notebooks", "operator": "Exists"}],
            "volumes": volumes,
            "containers": [
                {
                    "name": "notebook",
                    "image": space.cluster.image,
                    "command": [sys.executable, "notebook.py", str(tmp_path / "overlay.json")],
                    "workingDir": str(space.folder),
                    "env": [{"name": "PYTHONPATH", "value": library}, {"name": "HOME", "value": str(tmp_path)}],
                    "volumeMounts": mounts,
                }
            ],
        },
    }
    pods = f"/api/v1/namespaces/{space.name}/pods"
    space.cluster.client.create(pods, pod)
    return f"{pods}/notebook"


def test_a_notebook_in_the_cluster_needs_no_image_and_owns_its_workers(space: Space, tmp_path: Path) -> None:
    (space.folder / "train.py").write_text(
        "import os, pathlib, time\nprint('rank', os.environ['RANK'], flush=True)\ntime.sleep(600)\n"
    )
    notebook = start_notebook(space, tmp_path)

    def workers() -> list[dict[str, Any]]:
        found = [pod for pod in space.cluster.pods(space.name) if pod["metadata"]["name"] != "notebook"]
        return found if [pod["status"].get("phase") for pod in found] == ["Running"] * 2 else []

    worker, _ = until(workers, "the workers run", 90)
    spec = worker["spec"]
    assert (spec["containers"][0]["image"], spec["containers"][0]["command"][0]) == (
        space.cluster.image,
        sys.executable,
    )
    assert {"key": "notebooks", "operator": "Exists"} in spec["tolerations"]
    until(lambda: "started" in space.cluster.client.text(f"{notebook}/log"), "the notebook says so")
    space.cluster.client.delete(notebook)  # culled: nobody is left to clean up but the cluster itself
    # The kubelet looks every 10 s at what it removes, and after 60 to 90 s at a pod of which it has missed a kill.
    until(lambda: not is_there(space.cluster.client, notebook), "the notebook's own pod is removed", 180)
    space.wait_until_empty()


def test_a_run_from_a_notebook_in_the_cluster(space: Space, tmp_path: Path) -> None:
    (space.folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    notebook = start_notebook(space, tmp_path)
    ends = ("Succeeded", "Failed")
    pod = until(lambda: (it := space.cluster.client.get(notebook))["status"].get("phase") in ends and it, "it ends", 90)
    said = space.cluster.client.text(f"{notebook}/log")
    space.cluster.client.delete(notebook, gracePeriodSeconds="0")
    assert pod["status"]["phase"] == "Succeeded", said
    assert json.loads(said.splitlines()[-1]) == ["rank 0\n", "rank 1\n"]
