"""A session that is a pod of the cluster itself. On a real Kubernetes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.platforms.kubernetes.exec_stream import open_exec

from tests.platforms.each_strategy import TENSORFLOW, Training, each_strategy
from tests.platforms.kubernetes.accounts import guide_role, in_guide, make_account
from tests.platforms.kubernetes.cluster import is_there, until
from tests.platforms.kubernetes.space import Space, this_machine
from tests.platforms.kubernetes.test_tunnels import said

LIBRARY = str(Path(muster.__file__).parents[1])
WAITS = """
import os, pathlib, time
print("rank", os.environ["RANK"], flush=True)
while os.environ["RANK"] == "0" and not pathlib.Path("go").exists():
    time.sleep(0.1)
"""
NOTEBOOK = """
import json, sys, muster
options = {"strategy": "processes", "memory": 0.5, "cpu": 0.1, "timeout_seconds": 120, **json.loads(sys.argv[2])}
found = muster.run_cluster(
    2, worker_script="train.py", platform="kubernetes", overlay=sys.argv[1], wait=False, **options
).cluster
print("started", flush=True)
found.wait()
print(json.dumps([found.logs(f"worker-{index}") for index in range(2)]))
"""

DETACHED = """
import json, os, signal, sys, muster
options = {"strategy": "processes", "memory": 0.5, "cpu": 0.1, "timeout_seconds": 120}
if os.fork() == 0:
    muster.run_cluster(
        2, worker_script="train.py", platform="kubernetes", overlay=sys.argv[1], detach="5m", **options
    )
    os.kill(os.getpid(), signal.SIGKILL)
os.wait()
run = muster.attach()
assert run.status == "running", run.status
run.wait()
print(json.dumps([run.logs(f"worker-{index}") for index in range(2)]))
"""


def with_muster(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The volumes, and the mounts, of a pod with this machine's Python, this Muster and a folder."""
    machine = this_machine()["spec"]
    here = {"muster": LIBRARY, "here": str(folder)}
    volumes = [*machine["volumes"], *({"name": name, "hostPath": {"path": path}} for name, path in here.items())]
    mounts = [{"name": name, "mountPath": path} for name, path in here.items()]
    return volumes, [*machine["containers"][0]["volumeMounts"], *mounts]


def start_notebook(space: Space, tmp_path: Path, program: str = NOTEBOOK, **options: Any) -> str:
    """Start a session in a pod, which may do what the guide says; return the pod's path in the API.

    Args:
        program: what the session does.
        options: of its run.
    """
    make_account(space, guide_role())
    (space.folder / "notebook.py").write_text(program)
    volumes, mounts = with_muster(tmp_path)
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
                    "command": [sys.executable, "notebook.py", str(tmp_path / "overlay.json"), json.dumps(options)],
                    "workingDir": str(space.folder),
                    "env": [{"name": "PYTHONPATH", "value": LIBRARY}, {"name": "HOME", "value": str(tmp_path)}],
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


@each_strategy
@pytest.mark.elsewhere
@pytest.mark.slow
def test_each_strategy_trains_from_a_notebook_in_the_cluster(space: Space, tmp_path: Path, training: Training) -> None:
    options = {**TENSORFLOW, "cpu": 0.5, "n_ps": training.n_ps, **training.options}
    logs = logs_of_a_notebook_s_run(space, tmp_path, training.script, **options)
    assert [f"trained {rank}" in log.splitlines() for rank, log in enumerate(logs)] == [True, True], logs


@pytest.mark.parametrize(
    "program",
    [NOTEBOOK, pytest.param(DETACHED, marks=pytest.mark.elsewhere)],
    ids=["of a session", "detached from a session that is killed"],
)
def test_a_run_from_a_notebook_in_the_cluster(space: Space, tmp_path: Path, program: str) -> None:
    script = "import os\nprint('rank', os.environ['RANK'])\n"
    assert logs_of_a_notebook_s_run(space, tmp_path, script, program=program) == ["rank 0\n", "rank 1\n"]


def test_a_session_that_is_a_job_of_the_guide_s_is_reached_by_exec(space: Space, tmp_path: Path) -> None:
    make_account(space, guide_role())
    job = in_guide("Job")
    pod = job["spec"]["template"]["spec"]
    (session,) = pod["containers"]
    assert session["command"][:2] == ["muster", "run"]
    program = [sys.executable, "-m", "muster"]
    least = ["--overlay", str(tmp_path / "overlay.json"), "--cpu", "0.1", "--memory", "0.5", "--timeout", "120"]
    volumes, mounts = with_muster(tmp_path)
    session.update(image=space.cluster.image, command=[*program, "run", *least, *session["command"][2:]])
    session["env"] += [{"name": "PYTHONPATH", "value": LIBRARY}]
    session["volumeMounts"] += mounts
    pod.update(serviceAccountName="user", volumes=[*pod["volumes"], *volumes], terminationGracePeriodSeconds=1)
    job["metadata"]["namespace"] = space.name
    client, jobs = space.cluster.client, f"/apis/batch/v1/namespaces/{space.name}/jobs"
    project = {"metadata": {"name": "project"}, "data": {"train.py": WAITS}}
    client.create(f"/api/v1/namespaces/{space.name}/configmaps", project)
    client.create(jobs, job)

    def name_of_session() -> str:
        names = [pod["metadata"]["name"] for pod in space.cluster.pods(space.name)]
        return next((name for name in names if name.startswith("training-")), "")

    name = until(name_of_session, "the Job has a pod", 60)

    def muster_says(*words: str) -> str:
        return "".join(said(open_exec(client, space.name, name, "session", [*program, *words])))

    log = f"/api/v1/namespaces/{space.name}/pods/{name}/log"
    until(lambda: "training" in client.text(log), "the ranks train", 120)
    until(lambda: "rank 0" in muster_says("logs", "last", "worker-0"), "a rank has printed")
    assert "(on kubernetes, ends with its session)" in muster_says("runs")
    muster_says("exec", "last", "worker-0", "--", "touch", "go")
    until(lambda: client.get(f"{jobs}/training")["status"].get("succeeded") == 1, "the Job has succeeded", 60)
    client.delete(f"{jobs}/training", propagationPolicy="Background")
    space.wait_until_empty()


def logs_of_a_notebook_s_run(space: Space, tmp_path: Path, script: str, **options: Any) -> list[str]:
    """Run a script of this text from a session in a pod, and return what its two workers have printed."""
    (space.folder / "train.py").write_text(script)
    notebook = start_notebook(space, tmp_path, **options)
    ends = ("Succeeded", "Failed")
    pod = until(
        lambda: (it := space.cluster.client.get(notebook))["status"].get("phase") in ends and it, "it ends", 240
    )
    said = space.cluster.client.text(f"{notebook}/log")
    space.cluster.client.delete(notebook, gracePeriodSeconds="0")
    assert pod["status"]["phase"] == "Succeeded", said
    found: list[str] = json.loads(said.splitlines()[-1])
    return found
