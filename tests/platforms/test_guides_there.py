"""The guides of platforms, from top to bottom, as somebody follows them who has a script and no more.

What they say in blocks, and the commands with arguments in their text, is run in order as it stands there: on the hosts
of the tests, their Podman, their Slurm and their Kubernetes. ``LEFT_OUT`` says what is not.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.platforms.containers.engine import connect
from muster.records import scratch

from tests.platforms import slurm_engine, slurm_login
from tests.platforms.containers_podman import Podman, why_not
from tests.platforms.hosts_network import Network
from tests.platforms.kubernetes.accounts import kubeconfig_of
from tests.platforms.kubernetes.cluster import IMAGE_OF_GUIDE, until
from tests.platforms.kubernetes.space import Space, this_machine
from tests.platforms.slurm_login import LoginMachine
from tests.platforms.test_worker_image import built
from tests.support import DOCS, environment, eventually

pytestmark = [pytest.mark.elsewhere, pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = "import os\nprint('rank', os.environ.get('HOROVOD_RANK', os.environ.get('RANK')), 'on', os.uname().nodename)\n"
LEFT_OUT = {
    "muster trust": "asks for passwords, and writes to the developer's own ~/.ssh; tests/trust runs it",
    "ssh lab1": "downloads TensorFlow; the hosts of the tests have the session's interpreter at the same path",
    "make image": "downloads TensorFlow; make worker-image runs it on another base",
    "salloc": "waits for somebody at a terminal; the job before it does the same",
    "srun --overlap": "as above",
    "srun --jobid=JOB": "as above; test_slurm.py reaches a session in a job by it",
    "muster run -p slurm -s horovod -n 2 --nodes 2 --cpu 8": "as above, within that job",
    "import signal": "part of somebody's training loop",
    "kubectl -n ml create configmap": "needs an image with Muster; test_inside.py follows the Job on another",
    "kubectl -n ml apply -f job.yaml": "as above",
    "kubectl -n ml exec": "as above",
    "kubectl -n ml delete job": "as above",
    "muster plan --submission": "names no script; test_kubernetes.py gives what it prints to kubectl",
}
USUAL_SOCKET = Path("/run/podman/podman.sock")
REPOSITORY = Path(__file__).parents[2]
# In the place of a notebook that somebody starts in a container: it asks the engine, by the socket that was mounted.
IN_CONTAINER = b"""
import http.client, socket
link = http.client.HTTPConnection("engine")
link.sock = socket.socket(socket.AF_UNIX)
link.sock.connect("/var/run/docker.sock")
link.request("GET", "/_ping")
print("reached", "podman" if link.getresponse().getheader("Libpod-API-Version") else "docker")
"""
COMMAND = 'CMD ["python3", "/session.py"]'
ONE_GPU = "echo 'GPU 0: none (UUID: GPU-0)'"  # what nvidia-smi says to workers that have one
ORPHAN = """
import json, os, signal, sys; from tests.support import Run, shell; from pathlib import Path
from muster.agent.places import symbol; from muster.platforms import get_platform
platform = get_platform('kubernetes', **json.loads(sys.argv[1])); run = Run(Path.cwd())
places = {'scratch': Path(symbol('scratch')), 'cwd': symbol('scratch')}
platform.submit([run.spec(process=shell('sleep 600'), **places)], 'key')
os.kill(platform._guard.pid, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)
"""


class Reader:
    """Somebody who follows a guide in a folder of their own, where their script is.

    Attributes:
        said: what each command has printed, by the command.
        background: the processes that the guide starts in the background.
    """

    def __init__(self, folder: Path, programs: dict[str, list[str]]) -> None:
        self.said: dict[str, str] = {}
        self.background: list[subprocess.Popen[bytes]] = []
        (folder / "train.py").write_text(SCRIPT)
        (folder / "bin").mkdir()
        for name, command in {"muster": [sys.executable, "-m", "muster"], **programs}.items():
            write_program(folder / "bin" / name, f'exec {shlex.join(command)} "$@"')
        self._path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"

    @property
    def _environment(self) -> dict[str, str]:
        return environment(PATH=self._path)

    def follow(self, text: str, **words: str) -> None:
        """Run everything that a text says, in order.

        Args:
            text: a guide, or a part of one.
            words: what somebody writes in the place of some of its words.
        """
        names: dict[str, object] = {}
        parts = re.compile(r"^ *```(sh|python|console)\n(.*?)^ *```|`(muster \w+ -[^`]+)`", re.MULTILINE | re.DOTALL)
        for word, other in {"RUN": "last", **words}.items():
            text = text.replace(word, other)
        for language, block, inline in parts.findall(text):
            if language == "python":
                if not is_left_out(block):
                    exec(compile(block, "guide", "exec"), names)
                continue
            lines = [re.sub(r" +# .*", "", line) for line in (block or inline).replace("\\\n", " ").splitlines()]
            if language == "console":
                lines = [line.strip().removeprefix("$ ") for line in lines]
            for line in lines:
                self._run(line)

    def _run(self, command: str) -> None:
        if command.endswith("&"):
            started = ["sh", "-c", f"exec {command.rstrip(' &')}"]
            self.background.append(subprocess.Popen(started, env=self._environment, stderr=subprocess.DEVNULL))
        elif not is_left_out(command):
            wanted = command.replace("sbatch ", "sbatch --wait ", 1) if command.startswith("sbatch ") else command
            done = subprocess.run(wanted, shell=True, env=self._environment, capture_output=True, text=True)
            self.said[command] = done.stdout
            assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def kubectl(self, *words: str, given: str | None = None) -> None:
        """Run ``kubectl``, as somebody who may do everything."""
        subprocess.run(["kubectl", *words], env=self._environment, input=given, text=True, check=True)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def is_left_out(command: str) -> bool:
    return command.startswith(tuple(LEFT_OUT))


def guide(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def lines_of_runs() -> list[list[str]]:
    """What the ranks of all runs have printed, the oldest run first; all have succeeded."""
    runs = muster.list_runs()[::-1]
    assert {run.status for run in runs} == {"succeeded"}
    return [[run.logs(worker).rstrip() for worker in run.worker_names] for run in runs]


def test_that_of_hosts(hosts: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = hosts.folder / "config"
    before = config.read_text()
    labs = [f"Host lab{number}\n    HostName {hosts.hosts[f'h{number}'].address}\n" for number in (1, 2)]
    config.write_text("".join(labs) + before)
    reader = Reader(tmp_path, {})
    try:
        reader.follow(guide("hosts.md"))
    finally:
        config.write_text(before)
    four = [f"rank {rank} on h{1 + rank // 2}" for rank in range(4)]
    assert lines_of_runs() == [four, four]
    (doctor,) = (said for command, said in reader.said.items() if command.startswith("muster doctor"))
    assert "4 workers came up" in doctor
    (cleaned,) = (said for command, said in reader.said.items() if command.startswith("muster clean"))
    assert all(f"lab{number}: ~/.cache/muster/projects" in cleaned for number in (1, 2))
    hosts.remove_what_tensorflow_leaves()


@pytest.fixture
def podman_with_training() -> Iterator[Podman]:
    """A Podman that has the image my/training:1; skips where the tests' image of workers is not built."""
    if why_not():
        pytest.skip(why_not())
    podman = Podman(images=built("podman"))
    podman.add_layer("localhost/muster-worker", "mine", b"", "localhost/my/training:1")
    podman.add_layer(podman.add_python(), "session.py", IN_CONTAINER, "localhost/my/notebook:1", COMMAND)
    yield podman
    podman.remove()


def keep_digits(scripts: Path) -> None:
    """Have the digits of scikit-learn in ``~/.cache``, as a run of the script on this machine does."""
    changes = {"PYTHONPATH": str(scripts), "KERAS_HOME": str(scripts), "XDG_CACHE_HOME": ""}
    command = [sys.executable, "-c", "import mnist_data; mnist_data.load()"]
    subprocess.run(command, env=environment(**changes), check=True, stdout=subprocess.DEVNULL)


def test_that_of_containers(podman_with_training: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = podman_with_training
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("CONTAINER_HOST", podman.url)
    for name, value in podman.environment.items():
        if name.startswith("CONTAINERS_"):
            monkeypatch.setenv(name, value)
    words = {"-v /var/run/docker.sock:": f"-v {podman.folder}/podman.sock:"}
    for mounted in ("/data/imagenet", "~/checkpoints"):
        words[f'"{mounted}:'] = f'"{tmp_path}/{Path(mounted).name}:'
        (tmp_path / Path(mounted).name).mkdir()
    # The engine of the tests is installed: whether there are packages of these names is asked, and nothing changed.
    words["apt-get install"] = "apt-get install --simulate" if shutil.which("apt-get") else "true"
    has_own = USUAL_SOCKET.parent.exists()
    if has_own:  # a Podman of this machine's, whose place the guide's would take
        words["podman system service"] = "true"
    shutil.copytree(REPOSITORY / "worker_scripts", tmp_path / "worker_scripts")
    keep_digits(tmp_path / "worker_scripts")
    as_podman = ["env", "--unset=CONTAINER_HOST", shutil.which("podman") or "podman", *podman.command()[1:]]
    reader = Reader(tmp_path, {"docker": as_podman, "podman": as_podman})
    try:
        reader.follow(guide("containers.md"), **words)
        assert has_own or connect(f"unix://{USUAL_SOCKET}").product == "Podman"
    finally:
        for process in reader.background:
            process.terminate()
            process.wait()
        if not has_own:
            shutil.rmtree(USUAL_SOCKET.parent, ignore_errors=True)
    ranks = [f"rank {rank} on worker-{rank}" for rank in range(4)]
    workers = [f"worker-{index} in worker-{index}" for index in range(4)]  # by the script that the page has
    runs = lines_of_runs()
    assert [*runs[:3], *runs[4:]] == [ranks[:2], ranks, workers[:2], workers, workers[:2]]
    assert "test_accuracy" in muster.list_runs()[2].metrics
    (said,) = (said for command, said in reader.said.items() if command.startswith("docker run"))
    assert said.split() == ["reached", "podman"]
    (logs,) = (said for command, said in reader.said.items() if command.startswith("muster logs"))
    assert logs == f"{workers[1]}\n"
    (plan,) = (said for command, said in reader.said.items() if command.startswith("muster plan"))
    assert f"unix://{podman.folder}" in plan
    (cleaned,) = (said for command, said in reader.said.items() if command.startswith("muster clean"))
    assert cleaned.startswith("Removed: localhost/muster-tiny-")
    podman.run("rm", "--all")  # the notebook's
    eventually(lambda: podman.left_behind() == [], "nothing is left on the engine", timeout=30)


@pytest.fixture
def cluster_with_gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoginMachine]:
    """A Slurm as large as its guide takes for granted, with a login node, on whose machine the session runs as well."""
    reason = slurm_engine.why_not() or slurm_login.why_not()
    root = None if reason else slurm_engine.fetch()
    if root is None:
        pytest.skip(reason or "Debian's packages of Slurm cannot be fetched here")
    engine = slurm_engine.Engine(root, cpus=16, memory=64_000, gpus=8)
    machine = LoginMachine(engine)
    write_program(machine.folder / "bin" / "nvidia-smi", ONE_GPU)
    monkeypatch.setenv("PATH", f"{machine.folder / 'bin'}{os.pathsep}{engine.path}")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield machine
    try:
        machine.remove_what_tensorflow_leaves()
        machine.expect_nothing_left()
        engine.expect_nothing_left()
    finally:
        machine.remove()
        engine.remove()


def test_that_of_slurm(cluster_with_gpus: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, {})
    reader.follow(guide("slurm.md"), **{"me@login1": slurm_login.NAME})
    two = [f"rank {rank} on n{rank + 1}" for rank in range(2)]
    on_one, four = ([f"rank {rank} on n1" for rank in range(size)] for size in (2, 4))
    runs = lines_of_runs()
    assert runs[:4] == [two, on_one, four, four]
    scripts = ["rank None on n" in said for said in runs[4]]  # of a chief; the others serve
    assert (scripts.count(True), scripts.count(False)) == (1, 6)
    assert runs[5:] == [two]
    doctors = [" ".join(said.split()) for command, said in reader.said.items() if command.startswith("muster doctor")]
    assert len(doctors) == 2
    assert all("partition main: 2 nodes, the largest with 16 cores, 67.1 GB and 8 GPUs" in said for said in doctors)


def test_that_of_kubernetes(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The image is one of empty folders, so that an overlay brings this machine's; workers are as small as its node."""
    cluster = space.cluster
    kubectl = shutil.which("kubectl")
    if not cluster.is_own or not kubectl:
        pytest.skip("it needs a cluster of the tests' own, and kubectl")
    text, overlay = guide("kubernetes.md"), tmp_path / "machine.json"
    machine = this_machine()
    write_program(tmp_path / "gpus" / "nvidia-smi", ONE_GPU)
    machine["spec"]["volumes"].append({"name": "gpus", "hostPath": {"path": str(tmp_path / "gpus")}})
    (worker,) = machine["spec"]["containers"]
    worker["volumeMounts"].append({"name": "gpus", "mountPath": "/work", "readOnly": True})
    worker["env"].append({"name": "PATH", "value": "/work:/usr/local/bin:/usr/bin:/bin"})
    overlay.write_text(json.dumps(machine))
    small = ["--overlay", str(overlay), "--python", space.python, "--cpu", "0.2", "--memory", "0.5"]
    as_small = f'verb=$1; shift; exec "$0" -m muster "$verb" {shlex.join(small)} "$@"'
    reader = Reader(
        space.folder,
        {
            "muster": ["sh", "-c", as_small, sys.executable],
            "kubectl": ["env", f"KUBECONFIG={cluster.kubeconfig}", kubectl],
        },
    )
    reader.kubectl("create", "namespace", "ml")
    try:
        reader.kubectl("-n", "ml", "create", "serviceaccount", "me")
        (role,) = re.findall(r"^   ```yaml\n(.*?)^   ```", text, re.MULTILINE | re.DOTALL)
        reader.kubectl("apply", "-f", "-", given=textwrap.dedent(role))
        token = until(lambda: cluster.token("ml", "me"), "the account has a token")
        monkeypatch.setenv("KUBECONFIG", kubeconfig_of(space, token, tmp_path))
        options: dict[str, Any] = {"overlay": overlay, "python": space.python, "cpu": 0.2, "memory": 0.5}
        monkeypatch.setattr(muster, "run_cluster", partial(muster.run_cluster, timeout_seconds=120, **options))
        before, by_hand, after = text.partition("To clean up by hand")
        assert by_hand
        with cluster.with_gpus(4):
            reader.follow(before)
        four, two = ([f"rank {rank}" for rank in range(size)] for size in (4, 2))
        assert [[line.partition(" on ")[0] for line in run] for run in lines_of_runs()] == [four, two]
        (doctor,) = (said for command, said in reader.said.items() if command.startswith("muster doctor"))
        assert "2 workers came up" in doctor
        (plan,) = (said for command, said in reader.said.items() if command.startswith("muster plan"))
        assert "kubernetes" in plan
        path = f"{environment()['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[2]}"
        orphan = json.dumps({"namespace": "ml", "image": IMAGE_OF_GUIDE, "overlay": str(overlay)})
        subprocess.run([sys.executable, "-c", ORPHAN, orphan], env=environment(PYTHONPATH=path), check=False)
        scratch.sweep(Path(tempfile.gettempdir()))  # as the next run would
        (pod,) = [pod for pod in cluster.pods("ml") if not pod["metadata"].get("deletionTimestamp")]
        owner = pod["metadata"]["labels"]["muster/owner"]
        reader.follow(after, OWNER=owner)
        listed = [said for command, said in reader.said.items() if command.startswith("kubectl")]
        assert owner in listed[0]
        assert cluster.secrets("ml") == []
    finally:
        reader.kubectl("delete", "namespace", "ml", "--wait=false")
