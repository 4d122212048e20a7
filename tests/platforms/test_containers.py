"""Whole runs in containers, and what becomes of them when engines refuse, or somebody kills something."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import JobError, LaunchRefused, MusterError, PlatformUnsupported, WorkerLost, WorkerOutOfMemory
from muster.job import Status
from muster.platforms.containers import cache
from muster.platforms.containers import platform as module
from muster.platforms.containers.engine import connect
from muster.platforms.containers.guard import HOMES, OWNER, homes_of
from muster.platforms.containers.images import own_folders, tiny_image
from muster.platforms.containers.network import make_network, plan_network
from muster.platforms.containers.platform import ContainersPlatform
from muster.platforms.containers.refusals import asking
from muster.platforms.containers.volumes import binds
from muster.run import exchange, silence_watch

from tests.platforms import containers_docker
from tests.platforms.container_engine import ContainerEngine
from tests.platforms.containers_podman import Podman, why_not
from tests.platforms.test_hosts import note_transfer
from tests.support import Run, environment, eventually, shell

NAMED_SECONDS = 1.0  # from the engine's own word for what has happened to Muster's
TRIES = 3
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, which is the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def run(script: str, n: int = 2, **options: Any) -> muster.Cluster:
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, **options}
    cluster: muster.Cluster = muster.run_cluster(n, worker_script=script, platform="containers", **options).cluster
    return cluster


@contextlib.contextmanager
def run_meanwhile(script: str, **options: Any) -> Iterator[muster.Cluster]:
    """Run a script in one container during the block, and stop it however that ends: others count containers."""
    running = run(script, 1, wait=False, **options)
    try:
        yield running
    finally:
        running.stop()


def has_started(running: muster.Cluster, worker: str) -> None:
    """Wait until a worker's script has started."""
    eventually(lambda: "started" in running.logs(worker), f"{worker} has started", timeout=60)


def test_two_containers_train_and_share_nothing(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text(
        "import json, os\n"
        "print(json.dumps({'rank': os.environ['RANK'], 'cwd': os.getcwd(),\n"
        f"    'sees': os.path.exists({str(project.parent)!r}), 'owner': os.getuid()}}))\n"
        "open(os.path.join(os.environ['MUSTER_RESULTS'], 'model-' + os.environ['RANK']), 'w').close()\n"
    )
    found = run("train.py")
    said = [json.loads(found.logs(f"worker-{index}")) for index in range(2)]
    assert [entry["rank"] for entry in said] == ["0", "1"]
    assert not any(entry["sees"] for entry in said)
    assert {entry["cwd"] for entry in said} == {"/muster/project"}
    assert {entry["owner"] for entry in said} == {os.getuid()}
    assert sorted(path.name for path in (found.run_dir / "results").iterdir()) == ["model-0", "model-1"]
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=30)


def test_folders_and_volumes_are_mounted_as_docker_run_does(either_engine: ContainerEngine, project: Path) -> None:
    (project / "data").mkdir()
    (project / "data" / "set").write_text("forty gigabytes")
    (project / "kept").mkdir()
    (project / "train.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "print(Path('/data/set').read_text(), os.access('/data', os.W_OK), os.path.ismount('/volume'))\n"
        "Path('/kept', os.environ['RANK']).touch()\n"
    )
    volumes = ["./data:/data:ro", f"{project}/kept:/kept", "muster-named:/volume"]
    found = run("train.py", project=["train.py"], volumes=volumes)
    assert found.logs("worker-0") == "forty gigabytes False True\n"
    assert {path.name: path.stat().st_uid for path in (project / "kept").iterdir()} == dict.fromkeys("01", os.getuid())
    either_engine.run("volume", "rm", "muster-named")  # it was left, as somebody has named it
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=30)


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ("/tmp", "no absolute path as its target"),
        ("/tmp:data", "no absolute path as its target"),
        ("/tmp:/data:ro:z", "no absolute path as its target"),
        ("a b:/data", "'a b' is neither a path nor the name of a volume"),
        (":/data", "'' is neither a path nor the name of a volume"),
        ("/tmp:/", "/ is where the worker's own files are"),
        ("/tmp:/muster/../muster/run", "is where the worker's own files are"),
    ],
)
def test_a_volume_that_cannot_be_mounted(volume: str, why: str) -> None:
    with pytest.raises(JobError, match=why) as caught:
        binds([volume], is_here=True)
    assert "docker run -v" in str(caught.value)


def test_a_volume_whose_folder_is_missing() -> None:
    with pytest.raises(JobError, match="there is no /nowhere on this machine") as caught:
        binds(["/nowhere:/data"], is_here=True)
    assert caught.value.advice == "make that folder, or name another"


def test_a_folder_of_another_machine_is_not_looked_for_here() -> None:
    assert binds(["/nowhere:/data", "name:/x:ro,z"], is_here=False) == ["/nowhere:/data", "name:/x:ro,z"]


def test_clean_removes_the_image_that_no_container_uses(
    project: Path, engine: Podman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "base_folder", lambda: tmp_path)
    (project / "train.py").write_text(ENDLESS)
    cleaning = ContainersPlatform()
    with run_meanwhile("train.py") as running:
        has_started(running, "worker-0")
        removed, (why,) = cleaning.clean()  # perhaps images of other tests, too
    assert removed[-1].startswith(str(cache.cache_folder()))
    assert " could not be removed: " in why
    images, left = cleaning.clean()
    assert [name.partition("-")[0] for name in images] == ["localhost/muster"]
    assert not left
    assert not any(cleaning.clean())
    cleaning.close()


def test_only_what_has_changed_is_sent_again_unless_without_a_cache(
    either_engine: ContainerEngine, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "base_folder", lambda: tmp_path)
    (project / "train.py").write_text("print(open('data.txt').read(), open('large.txt').read())")
    (project / "large.txt").write_text("large")
    sent: dict[str, int] = {}

    def run_with(data: str, **options: Any) -> muster.Cluster:
        (project / "data.txt").write_text(data)
        done = run("train.py", observers=[lambda event: note_transfer(event, sent)], **options)
        assert [done.logs(f"worker-{index}") for index in range(2)] == [f"{data} large\n"] * 2
        return done

    everything = sum(path.stat().st_size for path in project.iterdir()) + len("one")
    run_with("one", cache=False)
    assert sent == dict.fromkeys(("worker-0", "worker-1"), everything)
    assert not cache.cache_folder().exists()
    assert f"keep the project's files in {cache.cache_folder()}" in run_with("two").explain()
    assert max(sent.values()) == everything  # one worker may find what the other one has just been sent
    kept = {path.read_text() for path in cache.cache_folder().iterdir()}
    assert {"two", "large", (project / "train.py").read_text()} == kept
    for path in cache.cache_folder().iterdir():  # as a script in a container could
        if path.read_text() == "large":
            path.write_text("false")
    run_with("three")
    assert max(sent.values()) == len("three") + len("large")
    assert str(cache.cache_folder()) in cache.empty_cache().removed[0]
    assert not any(cache.cache_folder().iterdir())
    assert not any(cache.empty_cache())


def test_nothing_secret_is_in_what_the_engine_shows(project: Path, either_engine: ContainerEngine) -> None:
    (project / "train.py").write_text(ENDLESS)
    with run_meanwhile("train.py", env={"PASSWORD": "fish and chips"}) as running:
        has_started(running, "worker-0")
        (name,) = either_engine.containers()
        columns = ["args"] if isinstance(either_engine, Podman) else ["-eo", "pid,args"]
        shown = either_engine.run("inspect", name) + either_engine.run("top", name, *columns)
        inside = either_engine.run("exec", name, "/bin/ls", "/muster").split()
    assert "fish and chips" not in shown
    assert "BEGIN CERTIFICATE" not in shown
    assert inside == sorted(PLACES)


PLACES = ("agent", "cache", "home", "library", "news", "project", "run", "scratch")  # and no config any more


def test_the_engine_limits_cores_and_memory_without_swap(project: Path, either_engine: ContainerEngine) -> None:
    (project / "train.py").write_text(ENDLESS)
    with run_meanwhile("train.py") as running:
        has_started(running, "worker-0")
        (name,) = either_engine.containers()
        limits = json.loads(either_engine.run("inspect", name))[0]["HostConfig"]
    assert limits["Memory"] == limits["MemorySwap"] > 500e6
    assert limits["NanoCpus"] == 1e9


def test_limits_hold_an_init_is_first_python_is_read_only_and_nothing_gains_privileges(
    project: Path, either_engine: ContainerEngine
) -> None:
    (project / "train.py").write_text(
        "import os, sys\n"
        "shm = os.statvfs('/dev/shm')\n"
        "print(shm.f_frsize * shm.f_blocks)\n"
        "for path in ('/sys/fs/cgroup/pids/pids.max', '/sys/fs/cgroup/pids.max'):\n"
        "    if os.path.exists(path):\n"
        "        print(open(path).read().strip())\n"
        "print(open('/proc/1/cmdline').read().split(chr(0))[0])\n"
        "print(os.access(sys.prefix, os.W_OK), 'NoNewPrivs:\\t1' in open('/proc/self/status').read())\n"
    )
    shm, processes, first, may_write, has_no_more = run("train.py", 1).logs("worker-0").split()
    assert 0.5e9 <= int(shm) < 0.6e9
    assert processes == "16384"
    assert first.endswith("-init")
    assert (may_write, has_no_more) == ("False", "True")


def test_a_launcher_logs_in_to_containers(project: Path, engine: Podman) -> None:
    mpiexec = shutil.which("mpiexec.mpich")
    if not mpiexec:
        pytest.skip("MPICH is not installed here")
    (project / "train.py").write_text(
        "import os\nprint('rank', os.environ['PMI_RANK'], 'NoNewPrivs:\\t1' in open('/proc/self/status').read())\n"
    )
    found = run("train.py", strategy="mpi", mpiexec=mpiexec)
    assert [found.logs(f"worker-{index}") for index in range(2)] == ["rank 0 True\n", "rank 1 True\n"]


def test_a_container_that_missed_its_signal_is_asked_again(
    tmp_path: Path, engine: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one does whose first process has yet to handle signals."""
    sent: list[str] = []

    def send(connected: Any, name: str, signame: str) -> None:
        sent.append(signame)
        if len(sent) > 1:
            send_really(connected, name, signame)

    send_really = module._signal
    monkeypatch.setattr(module, "_signal", send)
    started, platform = Run(tmp_path), ContainersPlatform()
    handles = platform.submit([started.spec("worker-0", process=shell("sleep 600"))], started.id)
    eventually(lambda: platform.poll(handles)[0].status is Status.RUNNING, "it runs", timeout=60)
    platform.stop(handles)
    eventually(lambda: platform.poll(handles)[0].status is Status.STOPPED, "it has stopped")
    assert sent == ["SIGTERM", "SIGTERM"]
    platform.close()
    started.remove()


def test_a_container_that_is_killed_from_outside_is_named(either_engine: ContainerEngine, project: Path) -> None:
    """Within a second of the engine's own word. A busy machine only makes that later: so the quickest run counts."""
    (project / "train.py").write_text(ENDLESS)
    seconds: list[float] = []
    while len(seconds) < TRIES and min(seconds, default=math.inf) > NAMED_SECONDS:
        seconds.append(seconds_until_a_kill_is_named(either_engine))
    assert min(seconds) <= NAMED_SECONDS, seconds


def seconds_until_a_kill_is_named(engine: ContainerEngine) -> float:
    """Kill a container of a run, and return the time from the engine's event of its end to Muster's with the reason."""
    named: list[float] = []

    def observe(event: Any) -> None:
        if event.kind == "worker_state" and event.worker == "worker-1" and event.data["status"] == "failed":
            named.append(event.time)

    running = run("train.py", wait=False, observers=[observe])
    for worker in ("worker-0", "worker-1"):
        has_started(running, worker)
    (name,) = (name for name in engine.containers() if name.endswith("worker-1"))
    began = int(time.time())
    engine.run("kill", name)
    with pytest.raises(WorkerLost, match="worker-1 was lost: Its container was killed"):
        running.wait()
    told = connect(engine.url).client.events(since=began, until=int(time.time()) + 1, decode=True)
    (died,) = (event for event in told if event["Action"] == "die" and event["Actor"]["Attributes"]["name"] == name)
    return min(named) - float(died["timeNano"]) / 1e9


def test_scripts_save_before_a_container_that_is_stopped_is_killed(
    either_engine: ContainerEngine, project: Path
) -> None:
    (project / "train.py").write_text(
        "import time\nfrom muster.training import preempted\nprint('started', flush=True)\n"
        "while not preempted():\n    time.sleep(0.05)\n"
        "print('saved', flush=True)\ntime.sleep(600)\n"
    )
    running = run("train.py", wait=False)
    for worker in ("worker-0", "worker-1"):
        has_started(running, worker)
    (name,) = (name for name in either_engine.containers() if name.endswith("worker-1"))
    stop = threading.Thread(target=either_engine.run, args=("stop", name))
    stop.start()
    eventually(lambda: all("saved" in running.logs(f"worker-{index}") for index in range(2)), "both have saved")
    either_engine.run("kill", name)  # which would be the end of the time that the engine gives it
    stop.join()
    words = r"worker-1 was taken away: Its container was told to stop by somebody \((docker|podman) stop, at [\d:]{8}\)"
    with pytest.raises(WorkerLost, match=rf"{words}, and was killed \d+ s later, as it had not ended by then\."):
        running.wait()


def test_a_container_that_is_paused_is_told_of_until_it_goes_on_and_ends_with_its_run(
    either_engine: ContainerEngine, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence_watch, "LOOK_SECONDS", 0.1)  # each worker is looked at every second
    monkeypatch.setattr(exchange, "ALIVE_PAUSES", (0.1,) * 10)
    (project / "train.py").write_text(ENDLESS)
    running = run("train.py", wait=False)
    for worker in ("worker-0", "worker-1"):
        has_started(running, worker)
    (name,) = (name for name in either_engine.containers() if name.endswith("worker-1"))
    tool = type(either_engine).__name__.lower()
    said = rf"worker-1 has not answered for .* Its container is paused; `{tool} unpause {name}` lets it go on\."
    either_engine.run("pause", name)
    eventually(lambda: re.search(said, running.explain()), "it is told")
    either_engine.run("unpause", name)
    eventually(lambda: "has not answered" not in running.explain(), "it is told no more")
    either_engine.run("pause", name)
    running.stop()
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=30)


def test_a_container_that_is_removed_is_named(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text(ENDLESS)
    running = run("train.py", 1, wait=False)
    has_started(running, "worker-0")
    either_engine.run("rm", *either_engine.at_once, *either_engine.containers())
    with pytest.raises(WorkerLost, match="worker-0 was lost: .*(killed|removed)"):
        running.wait()


def test_what_the_kernel_ends_for_want_of_memory_is_told_as_such(either_engine: ContainerEngine, project: Path) -> None:
    # Faster than the agent looks, and only the child: the engine says nothing.
    (project / "train.py").write_text("data = bytearray(b'.') * (2 << 30)\n")
    with pytest.raises(WorkerOutOfMemory, match="GB of memory and was given 0.5 GB"):
        run("train.py", 1)


def test_nothing_is_left_when_the_notebook_is_killed(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text(ENDLESS)
    program = (
        "import muster; muster.run_cluster(2, strategy='processes', worker_script='train.py', platform='containers',"
        " memory=0.5, timeout_seconds=120)"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program], env=environment(), stderr=subprocess.DEVNULL)
    eventually(lambda: len(either_engine.containers()) == 2, "both run", timeout=60)
    either_engine.run("pause", either_engine.containers()[0])  # which takes no signal
    notebook.send_signal(signal.SIGKILL)
    notebook.wait()
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=60)


def test_stopped_containers_and_volumes_go_when_the_notebook_is_killed(
    either_engine: ContainerEngine, project: Path
) -> None:
    (project / "train.py").write_text("open('/data/made', 'w').close()\n" + ENDLESS)
    image = "localhost/muster-tests-volume"
    either_engine.add_layer(either_engine.add_python(), "layer", b"", image, "VOLUME /data")
    program = (
        "import muster; muster.run_cluster(2, strategy='processes', worker_script='train.py', platform='containers',"
        f" memory=0.5, timeout_seconds=120, image='{image}')"
    )
    notebook = subprocess.Popen([sys.executable, "-c", program], env=environment(), stderr=subprocess.DEVNULL)
    try:

        def both_run_or_it_ended() -> bool:
            has_ended = notebook.poll() is not None
            return has_ended or [run.logs().count("started") for run in muster.list_runs()] == [2]

        eventually(both_run_or_it_ended, "both run", timeout=60)
        assert notebook.poll() is None, muster.open_run().explain()
        notebook.send_signal(signal.SIGSTOP)  # so that it does not see the end of the one, and removes nothing
        stopped, running = sorted(either_engine.containers(), reverse=True)
        either_engine.run("kill", stopped)
        eventually(lambda: either_engine.containers() == [running], "one has stopped")
        left = [line.partition(" ")[0] for line in either_engine.left_behind()]
        assert (left.count("container"), left.count("volume")) == (2, 2)
    finally:
        notebook.kill()
        notebook.wait()
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=60)
    either_engine.run("rmi", image)


def test_a_script_that_ends_without_waiting_stops_its_run(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text(ENDLESS)
    program = (
        "import muster, time\n"
        "cluster = muster.run_cluster(2, strategy='processes', worker_script='train.py', platform='containers',"
        " memory=0.5, timeout_seconds=120, wait=False).cluster\n"
        "while not all(cluster.logs(f'worker-{index}') for index in range(2)):\n"
        "    time.sleep(0.1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert done.stderr.count("the platform did not") == 0, done.stderr
    recorded = muster.open_run()
    assert recorded.status == "stopped"
    assert "did not release" not in recorded.explain()


# Where the service ends between our knock and the request, the docker package leaves its socket open.
@pytest.mark.filterwarnings(r"ignore:unclosed <socket.socket fd=\d+, family=1:ResourceWarning")
def test_a_run_goes_on_without_the_service_and_says_that_it_is_gone(
    project: Path, engine: Podman, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "train.py").write_text("import time\nprint('started', flush=True)\ntime.sleep(5)\nprint('done')\n")
    running = run("train.py", 1, wait=False)
    has_started(running, "worker-0")
    time.sleep(2)  # until polls are as far apart as they ever are
    stopped_at = time.time()
    engine.stop()
    try:
        eventually(lambda: "done" in running.logs("worker-0"), "it goes on", timeout=60)
    finally:
        engine.start()
    running.wait()
    said = [record for record in caplog.records if "Podman does not answer at unix://" in record.getMessage()]
    assert said[0].created - stopped_at <= NAMED_SECONDS
    gc.collect()  # such a socket too: later it would be told of in another test


def test_an_image_without_what_the_strategy_needs(project: Path, engine: Podman) -> None:
    (project / "train.py").write_text("print('never')\n")
    with pytest.raises(MusterError, match=r"python3 \(Python 3[.\d]+\) has no tensorflow here"):
        run("train.py", 1, n_ps=1, strategy="parameter_server", image=engine.add_python())
    told = [event.kind for event in muster.open_run().events()]
    assert "worker_state" in told
    assert "process_started" not in told


def test_mpi_in_an_image_without_sshd_is_refused_before_its_launcher_starts(engine: Podman, project: Path) -> None:
    mpiexec = shutil.which("mpiexec.mpich")
    if not mpiexec:
        pytest.skip("MPICH is not installed here")
    (project / "train.py").write_text("print('never')\n")
    with pytest.raises(
        LaunchRefused, match=r"worker-\d did not come up: it has no sshd: its image needs openssh-server"
    ):
        run("train.py", strategy="mpi", mpiexec=mpiexec, image=engine.add_python())
    recorded = muster.open_run()
    assert not recorded.logs("launcher")
    assert not recorded.logs()


def test_any_image_with_python_will_do(project: Path, engine: Podman) -> None:
    (project / "train.py").write_text("import sys\nprint(sys.executable)\n")
    assert run("train.py", image=engine.add_python()).logs("worker-1") == "/usr/bin/python3\n"


def test_an_image_without_python(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text("print('never')\n")
    empty = either_engine.add_empty()
    with pytest.raises(MusterError, match=f"There is no python3 in the image {empty}|does not have the program"):
        run("train.py", 1, image=empty)


def test_an_image_whose_python_may_not_be_executed(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text("print('never')\n")
    with pytest.raises(MusterError, match="may not be executed"):
        run("train.py", 1, image=either_engine.add_not_executable())


def podman_with_small_disk() -> ContainerEngine:
    """A Podman with little room for images and containers."""
    if reason := why_not():
        pytest.skip(reason)
    return Podman(disk="4m")


def docker_with_small_disk() -> ContainerEngine:
    """A Docker with little room for images and containers."""
    root = None if containers_docker.why_not() else containers_docker.fetch()
    if root is None:
        pytest.skip(containers_docker.why_not() or "Debian's packages of Docker cannot be fetched here")
    return containers_docker.Docker(root, disk="24m")


def test_two_podmans_of_a_machine_have_networks_at_the_same_time(engine: Podman) -> None:
    """Both networks are made before either has a bridge, which is there from a network's first container on."""
    image = engine.add_python()
    other = Podman(images=engine.root)
    dial = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 9).recv(1)"
    networks = {podman: plan_network(connect(podman.url), None, secrets.token_hex(4)) for podman in (engine, other)}
    try:
        for podman, network in networks.items():
            make_network(connect(podman.url), network, {})
        with socket.create_server(("0.0.0.0", 0)) as listener, contextlib.ExitStack() as connections:
            listener.settimeout(20)
            for podman, network in networks.items():
                command = ("python3", "-c", dial, network.gateway, str(listener.getsockname()[1]))
                podman.run("run", "--detach", "--network", network.name, image, *command)
                connections.enter_context(listener.accept()[0])
    finally:
        engine.run("network", "rm", "--force", networks[engine].name)
        other.remove()


@pytest.mark.slow
@pytest.mark.parametrize("start", [podman_with_small_disk, docker_with_small_disk])
def test_the_disk_of_the_engine_is_full(
    start: Callable[[], ContainerEngine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('done')\n")
    small = start()
    try:
        filler = os.open(small.root / "filler", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while os.write(filler, bytes(4096)):
                pass
        os.close(filler)
        with pytest.raises(MusterError, match="the engine's disk is full"):
            run("train.py", 1, engine=small.url)
        (small.root / "filler").unlink()
        assert run("train.py", 1, engine=small.url).logs("worker-0") == "done\n"
    finally:
        small.remove()


def test_a_session_that_is_in_a_container_itself(project: Path, either_engine: ContainerEngine) -> None:
    (project / "train.py").write_text("import os\nprint(os.environ['RANK'], os.uname().nodename)\n")
    program = (
        "import sys, muster\n"
        "options = {'platform': 'containers', 'strategy': 'processes', 'memory': 0.5, 'timeout_seconds': 120}\n"
        "try:\n"
        "    muster.run_cluster(1, worker_script='train.py', **options)\n"
        "except muster.MusterError as error:\n"
        "    print(error)\n"
        "found = muster.run_cluster(2, worker_script='train.py', image=sys.argv[1], **options)\n"
        "print(*(found.cluster.logs(f'worker-{index}') for index in range(2)))\n"
    )
    # The tests' Docker has no network of its own.
    network = None if isinstance(either_engine, Podman) else "training"
    said = run_in_container(either_engine, project, program, either_engine.add_python(), network=network)
    assert "does not see this machine's files" in said
    assert "such as localhost/muster-tiny-" in said  # the image that the session itself is in
    assert said.split()[-4:] == ["0", "worker-0", "1", "worker-1"]


def run_in_container(
    engine: ContainerEngine, project: Path, program: str, *arguments: str, network: str | None = "training"
) -> str:
    """Run a program in a container that has this Python, the engine's socket and the project, and return its output.

    It is on a network that is made for it, or on the one that the engine itself gives it.
    """
    seen = [f"--volume={folder}:{folder}:ro" for folder in (*own_folders(), str(Path(muster.__file__).parents[1]))]
    usual = "/run/podman/podman.sock" if isinstance(engine, Podman) else "/var/run/docker.sock"
    mounts = [*seen, f"--volume={engine.url.removeprefix('unix://')}:{usual}", f"--volume={project}:/work"]
    options = ["--workdir=/work", "--env", f"PYTHONPATH={environment()['PYTHONPATH']}"]
    tiny = tiny_image(connect(engine.url))
    if network:
        options.append(f"--network={network}")
        engine.run("network", "create", network)
    try:
        inside = ["--rm", "--init", *mounts, *options, tiny, sys.executable, "-c", program, *arguments]
        return engine.run("run", *inside)
    finally:
        if network:
            engine.run("network", "rm", network)


def test_a_port_that_is_taken(either_engine: ContainerEngine) -> None:
    """Muster's containers publish none; what the engines say of one has to be understood all the same."""
    connected = connect(either_engine.url)
    client, image = connected.client, either_engine.add_python()
    either_engine.run("network", "create", "ports")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = client.create_host_config(network_mode="ports", port_bindings={80: ("127.0.0.1", port)})
        made = client.create_container(image, ["python3", "--version"], ports=[80], host_config=settings)
        try:
            with pytest.raises(LaunchRefused, match="a port is taken") as raised:  # noqa: SIM117
                with asking(connected, "worker-0 could not be started", "worker-0"):
                    client.start(made["Id"])
        finally:
            client.remove_container(made["Id"], force=True, v=True)
            either_engine.run("network", "rm", "ports")
    assert str(port) in raised.value.message
    assert raised.value.advice == "end what holds it"


def test_a_user_who_may_not_use_the_socket(either_engine: ContainerEngine) -> None:
    program = (
        "import os, sys; from muster.platforms.containers.engine import connect\n"
        "connect(sys.argv[1])  # with everything imported that an ordinary user may not read here\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "connect(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", program, either_engine.url]
    said = subprocess.run(command, env=environment(), capture_output=True, text=True).stderr
    assert "This user may not use the container engine at" in said
    assert "usermod -aG docker" in said


def test_a_network_that_is_not_there(either_engine: ContainerEngine, project: Path) -> None:
    (project / "train.py").write_text("print('never')\n")
    with pytest.raises(MusterError, match="'nowhere' cannot be used: there is no such network"):
        run("train.py", 1, network="nowhere")


def test_a_network_that_is_none_is_refused_before_anything_is_launched(
    either_engine: ContainerEngine, project: Path
) -> None:
    (project / "train.py").write_text("print('never')\n")
    for options in ({}, {"session_address": "192.0.2.1:7000"}):
        with pytest.raises(PlatformUnsupported, match="would have no network at all") as raised:
            run("train.py", 1, network="none", **options)
        assert raised.value.advice == "leave network out, and the run gets one of its own"
    assert either_engine.left_behind() == []


def test_a_session_and_its_guard_killed_together_are_swept_by_the_next(
    project: Path, either_engine: ContainerEngine
) -> None:
    program = (
        "import os, signal, sys; from tests.support import Run, shell; from pathlib import Path\n"
        "from muster.platforms.containers.platform import ContainersPlatform\n"
        "platform = ContainersPlatform(); run = Run(Path.cwd(), scratch=Path('/tmp/muster-none'))\n"
        "platform.submit([run.spec(process=shell('sleep 600'))], 'key')\n"
        "os.kill(platform._guard.pid, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    path = f"{environment()['PYTHONPATH']}{os.pathsep}{root}"
    subprocess.run([sys.executable, "-c", program], env=environment(PYTHONPATH=path), check=False)
    left = either_engine.left_behind()
    assert {line.partition(" ")[0] for line in left} == {"container", "network", "home"}
    (home,) = (line.removeprefix(f"home {HOMES}") for line in left if line.startswith("home "))
    label = f"{home}x/kept"  # whoever may use the engine, on another machine perhaps, can give containers any label
    theirs = homes_of(label)
    theirs.mkdir(parents=True)
    other = either_engine.run(
        "create", "--label", f"{OWNER}={label}", tiny_image(connect(either_engine.url)), "true"
    ).strip()
    try:
        (project / "train.py").write_text("print('done')\n")
        run("train.py", 1)
        assert theirs.exists()
        assert either_engine.run("inspect", "--format", "{{.Id}}", other).strip() == other
    finally:
        either_engine.run("rm", "-f", other)
        shutil.rmtree(theirs.parent)
    eventually(lambda: either_engine.left_behind() == [], "nothing is left", timeout=30)
