"""Whole runs on a real Kubernetes, and what becomes of them when it refuses, or somebody ends something."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import muster
import pytest
import yaml
from click.testing import CliRunner
from muster.checkup import Report
from muster.commands.main import main
from muster.errors import (
    LaunchRefused,
    MusterError,
    ResourceError,
    RunTimeout,
    WorkerCancelled,
    WorkerOutOfMemory,
    WorkersMissing,
)

from tests.platforms.kubernetes.accounts import guide_role, kubeconfig_of, make_account
from tests.platforms.kubernetes.cluster import until
from tests.platforms.kubernetes.space import Space
from tests.support import environment

ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"
TENSORFLOW = {"memory": 2, "cpu": 0.8, "timeout_seconds": 200}


def test_two_pods_train_and_share_nothing(space: Space) -> None:
    found = space.run(
        "import json, os\n"
        "print(json.dumps({'rank': os.environ['RANK'], 'cwd': os.getcwd(), 'owner': os.getuid()}))\n"
        "open(os.path.join(os.environ['MUSTER_RESULTS'], 'model-' + os.environ['RANK']), 'w').close()\n"
    )
    said = [json.loads(found.logs(f"worker-{index}")) for index in range(2)]
    assert [entry["rank"] for entry in said] == ["0", "1"]
    assert {entry["cwd"] for entry in said} == {"/muster/project"}
    assert 0 not in {entry["owner"] for entry in said}
    assert sorted(path.name for path in (found.run_dir / "results").iterdir()) == ["model-0", "model-1"]


@pytest.mark.slow
def test_parameter_servers_train(space: Space) -> None:
    script = (
        "import tensorflow as tf\n"
        "def run(cluster, server, task_index):\n"
        "    print('trains', task_index, cluster.num_tasks('ps'))\n"
    )
    found = space.run(script, 1, n_ps=1, strategy="parameter_server", **TENSORFLOW)
    assert found.logs("worker-0").splitlines()[-1] == "trains 0 1"


@pytest.mark.slow
def test_horovod_trains_where_nobody_can_log_in(space: Space) -> None:
    script = (
        "import horovod.tensorflow as hvd, tensorflow as tf\n"
        "hvd.init()\n"
        "print(hvd.rank(), float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)))\n"
    )
    found = space.run(script, 2, strategy="horovod", launcher="agents", **TENSORFLOW)
    assert found.logs("worker-1").splitlines()[-1] == "1 3.0"


def test_nothing_secret_is_in_what_the_cluster_shows(space: Space) -> None:
    running = space.run(ENDLESS, 1, wait=False, env={"PASSWORD": "fish and chips"})
    until(lambda: "started" in running.logs("worker-0"), "it has started")
    (pod,) = space.cluster.pods(space.name)
    assert "fish and chips" not in json.dumps(pod)
    assert "BEGIN CERTIFICATE" not in json.dumps(pod)
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["status"]["qosClass"] == "Guaranteed"
    running.stop()


def test_the_plan_is_what_the_cluster_takes(space: Space) -> None:
    (space.folder / "train.py").write_text(ENDLESS)
    words = ["--image", space.cluster.image, "--namespace", space.name, "-s", "processes", "-n", "2", "train.py"]
    command = [sys.executable, "-m", "muster", "plan", "-p", "kubernetes", "--submission", *words]
    shown = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, check=True, text=True).stdout
    made = list(yaml.safe_load_all(shown))
    assert [each["kind"] for each in made] == ["Secret", "Secret", "Pod", "Pod"]
    for each in made:
        kind = f"{each['kind'].lower()}s"
        space.cluster.client.create(f"/api/v1/namespaces/{space.name}/{kind}?dryRun=All", each)
    assert set("".join(value for each in made[:2] for value in each["data"].values())) == set()
    if kubectl := shutil.which("kubectl"):  # as the guide has it, with the rights of its Role and no more
        config = kubeconfig_of(space, make_account(space, guide_role()), space.folder)
        look = [kubectl, "--kubeconfig", config, "create", "--dry-run=server", "-f", "-"]
        done = subprocess.run(look, input=shown, capture_output=True, text=True)
        assert done.stdout.count("created") == 4, done.stderr


def test_what_has_no_room_says_so_and_why(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ResourceError, match=r"Each worker asks for 64 cores; the largest of the cluster's \d+ node"):
        space.run(ENDLESS, 1, cpu=64)
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, make_account(space, guide_role()), tmp_path))
    with pytest.raises(WorkersMissing, match=r"too few free cores.*Insufficient cpu"):  # who may not list nodes waits
        space.run(ENDLESS, 1, cpu=64, queue_timeout=4)


def test_a_taint_is_told_and_can_be_tolerated(space: Space) -> None:
    with space.cluster.tainted("gpu"):
        with pytest.raises(WorkersMissing, match=r"taint.*gpu"):
            space.run(ENDLESS, 1, queue_timeout=4)
        assert space.run("pass", 1, tolerations=["gpu"]).result.status == "succeeded"


def test_a_queue_is_refused_where_no_kueue_would_heed_it(space: Space) -> None:
    with pytest.raises(LaunchRefused, match="The cluster has no Kueue"):
        space.run(ENDLESS, 1, queue="team")
    space.wait_until_empty()


def test_a_name_that_no_image_can_have(space: Space) -> None:
    with pytest.raises(LaunchRefused, match=r"The name of its image is none.*InvalidImageName"):
        space.run(ENDLESS, 1, image="Not//AnImage")


@pytest.mark.parametrize(
    ("image", "said", "advice"),
    [
        (
            "muster.test/nowhere:1",
            r"1 of 1 workers did not report .* Its image muster.test/nowhere:1 could not be pulled and is tried again: "
            r'.*failed to resolve reference "muster.test/nowhere:1"',
            "see to what they wait for",
        ),
        (
            "muster.test/pause:1",
            r"worker-0 did not come up: Its image muster.test/pause:1 cannot run python3\. "
            'Kubernetes says: .*exec: "python3": executable file not found',
            "--image one with Python 3.6 or later",
        ),
    ],
)
def test_the_doctor_says_what_an_image_lacks_in_the_cluster_s_words(
    space: Space, image: str, said: str, advice: str
) -> None:
    (space.folder / "train.py").write_text("pass")
    words = ["-p", "kubernetes", "--namespace", space.name, "--image", image, "-s", "processes", "-n", "1"]
    words += ["--timeout", "8", "--memory", "0.5", "--cpu", "0.1", "train.py"]
    done = CliRunner().invoke(main, ["doctor", *words])
    assert done.exit_code == 1
    launch = " ".join(done.output.partition("launch ")[2].split())  # as its lines are broken in a narrow terminal
    assert re.search(said, launch)
    assert f"Try: {advice}" in launch


def test_a_quota_refuses_at_once_and_leaves_nothing(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "1"}}}
    path = f"/api/v1/namespaces/{space.name}/resourcequotas"
    space.cluster.client.create(path, quota)
    until(lambda: space.cluster.client.get(f"{path}/tight").get("status", {}).get("used"), "the quota counts")
    with pytest.raises(ResourceError, match="has room for 1 of 2 workers: they ask for 2 pods .*; it allows 1 pod"):
        space.run(ENDLESS, 2)
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, make_account(space, guide_role()), tmp_path))
    with pytest.raises(LaunchRefused, match=r"worker-\d was refused: the namespace's quota does not allow it.*tight"):
        space.run(ENDLESS, 2)  # by a user who may not list quotas
    space.wait_until_empty()


def test_a_limit_of_the_namespace_refuses_at_once_as_the_cluster_would(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"metadata": {"name": "sizes"}, "spec": {"limits": [{"type": "Container", "max": {"cpu": "50m"}}]}}
    space.cluster.client.create(f"/api/v1/namespaces/{space.name}/limitranges", sizes)
    refused = "Each worker asks for 0.1 cores; the LimitRange sizes of .* allows a container 0.05 cores at most"
    with pytest.raises(ResourceError, match=refused):
        space.run(ENDLESS, 2)
    told = [str(finding.text) for finding in doctor(space).of("limits")]
    assert told == [
        f"LimitRange sizes of the namespace {space.name}, each container: at most 0.05 cores; limit by default 0.05 "
        "cores; by default 0.05 cores"
    ]
    assert [re.search(refused, finding.text) is not None for finding in doctor(space).of("resources")] == [True]
    monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, make_account(space, guide_role()), tmp_path))
    assert [finding.level for finding in doctor(space).of("resources")] == ["ok"]
    assert "no right to list quotas (resourcequotas)" in str(doctor(space).of("limits")[0].text)
    with pytest.raises(LaunchRefused, match=r"worker-\d was refused.*maximum cpu usage per Container is 50m"):
        space.run(ENDLESS, 2)  # by a user who may not list limits


def doctor(space: Space) -> Report:
    """What the doctor finds without a launch."""
    (space.folder / "train.py").write_text("pass")
    options = {"strategy": "processes", "cpu": 0.1, "launch": False, **space.options}
    return muster.doctor(2, worker_script="train.py", platform="kubernetes", **options)


def test_a_namespace_that_is_not_there(space: Space) -> None:
    with pytest.raises(MusterError, match="there is no such namespace"):
        space.run(ENDLESS, 1, namespace="muster-nowhere")


def test_too_much_memory(space: Space) -> None:
    # Faster than the agent looks, and only the child: the cluster says nothing, the kernel's count does.
    with pytest.raises(WorkerOutOfMemory, match="worker-0"):
        space.run("data = bytearray(b'.') * (2 << 30)\n", 1)


def test_a_pod_ends_with_its_lifetime(space: Space) -> None:
    with pytest.raises(RunTimeout, match=r"worker-0 ran out of time: .*DeadlineExceeded|lived as long"):
        space.run(ENDLESS, 1, lifetime=8)


def test_a_pod_that_somebody_deletes_is_named(space: Space) -> None:
    running = space.run(ENDLESS, 2, wait=False)
    for worker in ("worker-0", "worker-1"):
        until(lambda worker=worker: "started" in running.logs(worker), "it has started")
    name = next(
        pod["metadata"]["name"] for pod in space.cluster.pods(space.name) if pod["metadata"]["name"].endswith("1")
    )
    space.cluster.client.delete(f"/api/v1/namespaces/{space.name}/pods/{name}")
    with pytest.raises(WorkerCancelled, match=r"worker-1 was cancelled: Its pod was deleted"):
        running.wait()


def test_nothing_is_left_when_the_notebook_is_killed(space: Space) -> None:
    (space.folder / "train.py").write_text(ENDLESS)
    options = {name: str(value) for name, value in space.options.items()}
    program = (
        "import json, sys, muster; muster.run_cluster(2, strategy='processes', worker_script='train.py', cpu=0.1,"
        f" platform='kubernetes', memory=0.5, timeout_seconds=120, python={space.python!r}, **json.loads(sys.argv[1]))"
    )
    command = [sys.executable, "-c", program, json.dumps(options)]
    notebook = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    until(lambda: [pod["status"].get("phase") for pod in space.cluster.pods(space.name)] == ["Running"] * 2, "both run")
    notebook.send_signal(signal.SIGKILL)
    notebook.wait()
    space.wait_until_empty(30)


def test_secrets_without_pods_that_a_killed_session_has_left_go_with_the_next_run(space: Space) -> None:
    program = (
        "import json, os, signal, sys; from tests.support import Run, shell; from pathlib import Path\n"
        "from muster.agent.places import symbol; from muster.platforms import get_platform\n"
        "platform = get_platform('kubernetes', **json.loads(sys.argv[1])); run = Run(Path.cwd())\n"
        "places = {'scratch': Path(symbol('scratch')), 'cwd': symbol('scratch')}\n"
        "platform.submit([run.spec(process=shell('sleep 600'), **places)], 'key')\n"
        "os.kill(platform._guard.pid, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = f"{environment()['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[3]}"
    options = json.dumps({name: str(value) for name, value in space.options.items()})
    subprocess.run([sys.executable, "-c", program, options], env=environment(PYTHONPATH=path), check=False)
    (pod,) = space.cluster.pods(space.name)
    pods = f"/api/v1/namespaces/{space.name}/pods"
    space.cluster.client.delete(f"{pods}/{pod['metadata']['name']}", gracePeriodSeconds="0")
    assert len(space.cluster.secrets(space.name)) == 2
    assert space.run("print('done')\n", 1).logs("worker-0") == "done\n"
    space.wait_until_empty()
