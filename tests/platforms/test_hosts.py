"""Whole runs on hosts over ssh, and what becomes of them when something on the way is killed or cut."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent.removal import OWNER
from muster.errors import (
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    InterpreterError,
    LaunchRefused,
    LoginRefused,
    MusterError,
    PlatformError,
    ResourceError,
    WorkerLost,
)
from muster.events import Event, EventKind, WorkerReady
from muster.job import Resources, Status, Worker
from muster.platforms.hosts import login as login_of_host
from muster.platforms.hosts import platform as hosts_platform
from muster.platforms.hosts.failures import host_error, together
from muster.platforms.hosts.platform import HostsPlatform
from muster.records import scratch
from muster.run import silence_watch, watch

from tests.platforms.hosts_network import Host, Network
from tests.support import Run, StubSession, command_line, descendants_of, environment, eventually, shell

HOSTS = ["h1:1", "h2:1"]
TRAIN = """
import os, sys, time
from pathlib import Path

print("on", os.uname().nodename, sys.argv[1:], flush=True)
Path(os.environ["MUSTER_RESULTS"], os.environ["MUSTER_WORKER"]).write_text(Path("data.txt").read_text())
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a script and its data, where this process is now."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "data.txt").write_text("of the project")
    monkeypatch.chdir(folder)
    return folder


Start = Callable[..., muster.Cluster]


@pytest.fixture
def start(hosts: Network, project: Path) -> Iterator[Start]:
    """Starts training on the hosts, and ends it with the test."""
    started = []

    def run(seconds: float = 60, **options: Any) -> muster.Cluster:
        options = {"strategy": "processes", "memory": 0.5, "platform": "hosts", "wait": False, **options}
        if options["platform"] == "hosts":
            options.setdefault("hosts", HOSTS)
        cluster: muster.Cluster = muster.run_cluster(
            2, worker_script="train.py", args=[str(seconds)], **options
        ).cluster
        started.append(cluster)
        if seconds:
            eventually(lambda: all("on h" in cluster.logs(f"worker-{index}") for index in range(2)), "both train")
        return cluster

    yield run
    for cluster in started:
        cluster.stop()


def logins() -> list[int]:
    """Ids of the ssh processes of this one that have a guard at their far end."""
    return [pid for pid in descendants_of(os.getpid()) if "sys.stdin.buffer.raw" in command_line(pid)]


def login_to(host: Host) -> int:
    """The id of the ssh process that is logged in to a host."""
    (found,) = [pid for pid in logins() if f" {host.name} " in command_line(pid)]
    return found


# -- a run ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "message", "details"),
    [
        (
            "ssh: Could not resolve hostname lab3: Name or service not known\r\n",
            "There is no host lab3: Could not",
            None,
        ),
        ("a banner\nPermission denied (publickey).\n", "lab3 does not let you in: Permission", "a banner\nPermission"),
    ],
)
def test_what_ssh_says_is_told_once(said: str, message: str, details: str | None) -> None:
    error = host_error("lab3", said)
    assert error.message.startswith(message)
    assert (error.details or "").startswith(details or "")
    assert bool(error.details) == bool(details)


def test_only_of_a_login_that_has_not_begun_startup_files_are_suspected() -> None:
    assert ".bashrc" in str(host_error("lab3", "no way in").advice)
    assert ".bashrc" not in str(host_error("lab3", "no way in", is_starting=False).advice)


def test_what_is_said_of_each_host_is_a_sentence() -> None:
    said = ("Could not resolve hostname lab1: Name or service not known", "Permission denied (publickey)", "no way in")
    error = together({f"lab{index}": host_error(f"lab{index}", words) for index, words in enumerate(said, start=1)})
    assert error.message == (
        "3 hosts cannot be used: There is no host lab1: Could not resolve hostname lab1: Name or service not known. "
        "lab2 does not let you in: Permission denied (publickey). lab3 cannot be used: no way in."
    )


def test_two_hosts_train(start: Start) -> None:
    cluster = start(0, wait=True)
    assert [cluster.logs(f"worker-{index}") for index in range(2)] == ["on h1 ['0']\n", "on h2 ['0']\n"]
    for worker in ("worker-0", "worker-1"):
        assert (cluster.run_dir / "results" / worker).read_text() == "of the project"


def test_two_slots_of_one_host_train(start: Start) -> None:
    cluster = start(0, wait=True, hosts=["h1:2"], cache=False)
    assert [cluster.logs(f"worker-{index}") for index in range(2)] == ["on h1 ['0']\n", "on h1 ['0']\n"]
    for worker in ("worker-0", "worker-1"):
        assert (cluster.run_dir / "results" / worker).read_text() == "of the project"


def test_secrets_are_neither_in_command_lines_nor_in_environments(hosts: Network, run: Run) -> None:
    session = StubSession(hosts.address)
    platform = HostsPlatform(hosts=("h1:1",))
    platform.submit([run.spec(session=session.address, process=shell("sleep 600"))], run.id)
    session.wait_for("started")
    for pid in [*hosts.hosts["h1"].pids(), *logins()]:
        for name in ("cmdline", "environ"):
            assert session.token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    platform.close()
    session.close()


def test_a_hosts_own_words_at_its_login_do_no_harm(start: Start, hosts: Network) -> None:
    hosts.hosts["h1"].run("echo 'echo welcome; echo to h1 >&2' > /root/.bashrc")
    try:
        start(0, wait=True)
    finally:
        hosts.hosts["h1"].run("rm /root/.bashrc")


STARTUPS = {
    "reads our words": ("read -r line", "The login to h1 has not started python3 within 3 s"),
    "is another shell": ("echo welcome to h1; exec dash -i", "The login to h1 has not started python3"),
    "says why it ends": ("echo this account has expired; exit 1", "h1 cannot be used: this account has expired"),
    "says nothing": ("exit", "h1 cannot be used: the login ended without a word"),
}


@pytest.mark.parametrize("startup", STARTUPS)
def test_a_startup_file_of_a_host_that_keeps_python_from_its_program_is_told(
    hosts: Network, startup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login_of_host, "READY_SECONDS", 3.0)
    line, words = STARTUPS[startup]
    hosts.hosts["h1"].run(f"echo '{line}' > /root/.bashrc")
    try:
        error = refusal(hosts=("h1:1",))
    finally:
        hosts.hosts["h1"].run("rm /root/.bashrc")
    assert isinstance(error, HostUnreachable)
    assert words in error.message
    assert "`ssh h1 python3 -V`" in (error.advice or "")
    assert "welcome" not in line or "welcome to h1" in (error.details or "")


def test_workers_that_cannot_dial_the_session_come_through_ssh(start: Start, hosts: Network) -> None:
    deny = f"OUTPUT -d {hosts.address} -p tcp --syn -j REJECT --reject-with tcp-reset"
    hosts.hosts["h2"].run(f"iptables -A {deny}")
    try:
        platform = HostsPlatform(hosts=("h1:1", "h2:1"))
        cluster = start(platform=platform)
        assert "(h1 dialling this session; h2 reaching it through ssh)" in platform.describe()
        cluster.stop()
        platform.close()
    finally:
        hosts.hosts["h2"].run(f"iptables -D {deny}")


def test_memory_that_others_have_claimed_on_a_host_is_told(start: Start, hosts: Network) -> None:
    cluster = start(memory=2)
    eventually(lambda: cluster.is_running and "on h" in cluster.logs("worker-1"), "both workers run", timeout=60)
    other = HostsPlatform(hosts=("h1:1", "h3:1"))
    try:
        most = other._logins.get("h1").facts["memory"] // 10**9
        said = (
            f"1 x {most} GB on h1, which has .* GB, of which other workers have claimed 2.0 GB: if the workers use all"
        )
        (text,) = other.shortages([Resources(memory=most)] * 2)
        assert re.match(said, text)
        for resources, advice in ((Resources(memory=most + 1), f"memory={most}.* at most"), (Resources(999), "cpu=")):
            with pytest.raises(ResourceError, match="Each worker is to have") as refused:
                other.shortages([resources] * 2)
            assert re.match(advice, str(refused.value.advice))
        cluster.stop()
        eventually(lambda: not other.shortages([Resources(memory=most)] * 2), "the claims end with the workers")
    finally:
        other.close()


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tunnel", [False, True], ids=["dialled", "through ssh"])
def test_a_login_that_is_killed_is_made_again(start: Start, hosts: Network, tunnel: bool) -> None:
    cluster = start(3, tunnel=tunnel)
    os.kill(login_to(hosts.hosts["h1"]), signal.SIGKILL)
    assert cluster.wait().status == "succeeded"
    assert (cluster.run_dir / "results" / "worker-0").read_text() == "of the project"


def test_kill_9_of_the_session_leaves_nothing(hosts: Network, project: Path) -> None:
    program = (
        "import muster; muster.run_cluster(2, worker_script='train.py', args=['600'], strategy='processes', "
        f"platform='hosts', hosts={HOSTS}, memory=0.5, lease_seconds=1)"
    )
    with subprocess.Popen([sys.executable, "-c", program], env=environment()) as session:
        try:
            for name in ("h1", "h2"):
                eventually(functools.partial(trains_on, hosts.hosts[name]), "it trains")
        finally:
            session.kill()
    for host in hosts.hosts.values():
        eventually(lambda: not host.left_behind(), "nothing is left", 20)  # noqa: B023
    scratch.sweep(Path(tempfile.gettempdir()))  # as the next run does
    owners = Path(tempfile.gettempdir()).glob(f"{scratch.PREFIX}*/{OWNER}")
    assert session.pid not in [json.loads(path.read_text())["pid"] for path in owners]


def test_a_script_that_ends_without_waiting_stops_its_run(hosts: Network, project: Path) -> None:
    program = (
        "import muster, time\n"
        "cluster = muster.run_cluster(2, worker_script='train.py', args=['600'], strategy='processes', "
        f"platform='hosts', hosts={HOSTS}, memory=0.5, wait=False).cluster\n"
        "while not all('on h' in cluster.logs(f'worker-{index}') for index in range(2)):\n"
        "    time.sleep(0.1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True)
    assert "platform did not" not in done.stderr
    recorded = muster.open_run()
    assert recorded.status == "stopped"
    assert "did not release" not in recorded.explain()


def trains_on(host: Host) -> bool:
    """Return whether a rank runs on the host."""
    return any("train.py" in line for line in host.processes())


def test_a_host_that_is_cut_off_is_named_within_its_lease_and_nothing_is_left_on_it(
    start: Start, hosts: Network
) -> None:
    host = hosts.hosts["h2"]
    cluster = start()
    host.cut()
    cut_at = time.monotonic()
    try:
        said = r"worker-1 has not answered for .* h2 does not answer over ssh, either: see whether it is on, "
        eventually(lambda: re.search(said, cluster.explain()), "it is told", timeout=HostsPlatform.lease_seconds)
        with pytest.raises(WorkerLost) as raised:
            cluster.wait()
        assert HostsPlatform.lease_seconds <= time.monotonic() - cut_at < HostsPlatform.lease_seconds + 5
        assert raised.value.worker == "worker-1"
        assert "h2" in raised.value.message
        assert raised.value.advice == "see whether it is on, and on the network"
        eventually(lambda: not host.left_behind(), "its workers, guard and login have ended by themselves", timeout=30)
    finally:
        host.plug_in()


def test_an_agent_that_is_suspended_on_a_host_is_told_of_until_it_goes_on(
    start: Start, hosts: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silence_watch, "LOOK_SECONDS", 0.1)  # each worker is looked at every second
    cluster = start()
    seen = (event.data for event in muster.open_run().events() if event.worker == "worker-1")
    (agent,) = (data.pid for data in seen if isinstance(data, WorkerReady) and data.pid)
    hosts.hosts["h2"].run(f"kill -STOP {agent}")
    said = r"worker-1 has not answered for .* Its agent is suspended, by SIGSTOP or a debugger\."
    eventually(lambda: re.search(said, cluster.explain()), "it is told")
    hosts.hosts["h2"].run(f"kill -CONT {agent}")
    eventually(lambda: "has not answered" not in cluster.explain(), "it is told no more")


def has_ended(worker: Worker) -> bool:
    """Return whether a worker has ended."""
    return worker.status.is_final


def test_a_guard_that_is_killed_takes_its_workers_along_and_the_next_contact_sweeps(hosts: Network, run: Run) -> None:
    platform = HostsPlatform(hosts=("h1:1",))
    (handle,) = platform.submit([run.spec(process=shell("sleep 600"))], run.id)
    eventually(lambda: platform.poll([handle])[0].status is Status.RUNNING, "it runs")
    host = hosts.hosts["h1"]
    guard = min(pid for pid in host.pids() if "sys.stdin.buffer.raw" in command_line(pid))
    os.kill(guard, signal.SIGKILL)
    worker = eventually(lambda: next(filter(has_ended, platform.poll([handle])), None), "it is told")
    assert worker.status is Status.FAILED
    assert "h1" in worker.reason
    platform.close()
    eventually(lambda: not host.processes(), "its workers have ended")
    HostsPlatform(hosts=("h1:1",)).check()
    eventually(lambda: not host.left_behind(), "the folder of the first is gone")


def test_a_guard_that_is_killed_is_named_also_where_a_new_login_takes_its_time(
    start: Start, hosts: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts_platform, "REPAIR_SECONDS", 15)
    monkeypatch.setattr(watch, "HURRIED_SECONDS", 20)
    host = hosts.hosts["h2"]
    cluster = start()
    host.run("echo sleep 2 > /root/.bashrc")
    try:
        os.kill(min(pid for pid in host.pids() if "sys.stdin.buffer.raw" in command_line(pid)), signal.SIGKILL)
        with pytest.raises(WorkerLost, match=r"The process that guards its workers on h2 has ended"):
            cluster.wait()
    finally:
        host.run("rm /root/.bashrc")
    platform = HostsPlatform(hosts=("h2:1",))
    platform.check()  # this removes what the guard has left
    platform.close()


def test_what_a_reboot_has_left_is_removed_at_the_next_login(start: Start, hosts: Network) -> None:
    host = hosts.hosts["h2"]
    with tempfile.TemporaryDirectory(prefix="disk-", dir="/srv") as disk:  # which the host sees, and keeps

        def use_disk() -> None:
            host.run(f"echo export TMPDIR={disk} > /root/.bashrc")

        use_disk()
        cluster = start(lease_seconds=1)
        host.power_off()
        try:
            with pytest.raises(WorkerLost, match="h2"):
                cluster.wait()
        finally:
            host.power_on()
            host.wait()
        use_disk()
        (left,) = Path(disk).iterdir()
        (of_run,) = (path.name for path in left.iterdir() if path.name != "agent")
        assert (of_run[:15], of_run[-5:]) == (cluster.run_id[:15], cluster.run_id[-5:])
        platform = HostsPlatform(hosts=("h2:1",))
        platform.check()
        eventually(lambda: not left.exists(), "what was left is removed")
        platform.close()
        eventually(lambda: not [*Path(disk).iterdir()], "nothing is left")
        host.run("rm /root/.bashrc")


# -- claims -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core")
def test_two_platforms_do_not_take_the_same_core(hosts: Network, run: Run) -> None:
    first, second = HostsPlatform(hosts=("h1:1",)), HostsPlatform(hosts=("h1:1",))
    seen = []
    for number, platform in enumerate((first, second)):
        show = shell("grep Cpus_allowed_list /proc/self/status; sleep 600")
        spec = run.spec(f"worker-{number}", resources=Resources(cpu=1, memory=0.5), process=show)
        (handle,) = platform.submit([spec], f"run-{number}")
        seen.append(eventually(lambda: list(platform.logs(handle)), "it tells"))  # noqa: B023
    first.close()
    second.close()
    assert len(set(map(tuple, seen))) == 2


def test_two_platforms_do_not_take_the_same_gpu(hosts: Network, run: Run) -> None:
    host = hosts.hosts["h1"]
    listing = "".join(f"echo 'GPU {n}: Some (UUID: GPU-{n}{n})'; " for n in range(2))
    host.run(
        "mkdir /root/bin && printf '#!/bin/sh\\n%s\\n' \"" + listing + '" > /root/bin/nvidia-smi'
        " && chmod +x /root/bin/nvidia-smi && echo 'PATH=/root/bin:$PATH' > /root/.bashrc"
    )
    try:
        first, second = HostsPlatform(hosts=("h1:2",)), HostsPlatform(hosts=("h1:2",))
        gpu = Resources(cpu=1, memory=0.5, gpu=1)
        show = shell("echo $CUDA_VISIBLE_DEVICES; sleep 600")
        one = first.submit([run.spec("worker-0", resources=gpu, process=show)], "one")
        two = second.submit([run.spec("worker-1", resources=gpu, process=show)], "two")
        seen = [eventually(lambda: list(first.logs(one[0])), "it tells")]
        seen += [eventually(lambda: list(second.logs(two[0])), "it tells")]
        assert sorted(seen) == [["GPU-00"], ["GPU-11"]]
        with pytest.raises(LaunchRefused, match="GPUs are free"):
            second.submit([run.spec("worker-2", resources=gpu, process=show)], "three")
        first.close()
        assert second.submit([run.spec("worker-2", resources=gpu, process=show)], "three")
        second.close()
    finally:
        host.run("rm -r /root/bin /root/.bashrc")


# -- what is kept -----------------------------------------------------------------------------------------------------


def paths(host: Host) -> set[str]:
    """Everything in the folders that users of a host write to, however deep."""
    own = 'awk \'$1 == "none" && $3 == "tmpfs" {print $2}\' /proc/mounts'
    return set(host.run(f"find $({own}) -xdev -mindepth 1").splitlines())


def test_a_run_without_a_cache_leaves_no_path_on_a_host_and_clean_removes_that_of_others(
    hosts: Network, start: Start
) -> None:
    used = [hosts.hosts[name] for name in ("h1", "h2")]
    for host in used:
        host.run("rm -rf /root/.cache")
    before = [paths(host) for host in used]
    start(0, wait=True, cache=False)
    eventually(lambda: [paths(host) for host in used] == before, "no path is there that was not there before")
    cluster = start(0, wait=True)
    for host, others in zip(used, before, strict=True):
        kept = eventually(lambda: of_cache(paths(host) - others), "nothing but the cache is there")  # noqa: B023
        contents = {host.run(f"cat {path}") for path in kept if host.run(f"test -f {path} && echo file", check=False)}
        assert {TRAIN, "of the project"} <= contents
        assert host.run("stat -c %a /root/.cache/muster/projects") == "700\n"
    assert "The workers keep the project's files in /root/.cache/muster/projects" in cluster.explain()
    sent: dict[str, int] = {}
    Path("data.txt").write_text("now another text")
    start(0, wait=True, observers=[lambda event: note_transfer(event, sent)])
    assert sent == dict.fromkeys(("worker-0", "worker-1"), len("now another text"))  # only what has changed
    clean = [sys.executable, "-m", "muster", "clean", "-p", "hosts", "--hosts", ",".join(HOSTS)]
    said = subprocess.run(clean, env=environment(), check=True, capture_output=True, text=True).stdout
    assert all(host.name in said for host in used)
    again = subprocess.run(clean, env=environment(), check=True, capture_output=True, text=True).stdout
    assert not any(host.name in again for host in used)
    for host, others in zip(used, before, strict=True):
        eventually(lambda: paths(host) <= others | {"/root/.cache"}, "nothing is left of it")  # noqa: B023


def note_transfer(event: Event, sent: dict[str, int]) -> None:
    """Note the bytes that a worker is sent of the project."""
    if event.kind == EventKind.TRANSFER:
        sent[str(event.worker)] = event.data["total"]


def of_cache(found: set[str]) -> set[str]:
    """The paths, if all of them are of a cache of projects; else none."""
    parents = {"/root/.cache", "/root/.cache/muster", "/root/.cache/muster/projects"}
    is_cache = all(path in parents or path.startswith("/root/.cache/muster/projects/") for path in found)
    return found if is_cache else set()


# -- errors -----------------------------------------------------------------------------------------------------------


def refusal(**options: Any) -> MusterError:
    """The error of a platform that cannot use its hosts."""
    platform = HostsPlatform(**options)
    with pytest.raises(MusterError) as raised:
        platform.check()
    platform.close()
    return raised.value


@pytest.fixture
def known_hosts(hosts: Network) -> Iterator[Path]:
    """The user's known hosts, which are put back after the test."""
    path = hosts.folder / "known_hosts"
    before = path.read_text()
    yield path
    path.write_text(before)


def test_a_host_key_that_is_not_known_or_has_changed(hosts: Network, known_hosts: Path) -> None:
    own, other = (hosts.hosts[name] for name in ("h1", "h2"))
    known_hosts.write_text("")
    unknown = refusal(hosts=("h1:1",))
    assert isinstance(unknown, HostKeyUnknown)
    assert "h1" in unknown.message
    assert "muster trust -p 22 h1" in str(unknown.advice)
    known_hosts.write_text(f"{own.address} {other.key.public}\n")
    changed = refusal(hosts=("h1:1",))
    assert isinstance(changed, HostKeyChanged)
    assert "h1" in changed.message


def test_a_host_that_does_not_let_us_in(hosts: Network) -> None:
    hosts.hosts["h1"].run("mv /mnt/sshd/authorized_keys /mnt/sshd/others")
    try:
        refused = refusal(hosts=("root@h1:1",))
    finally:
        hosts.hosts["h1"].run("mv /mnt/sshd/others /mnt/sshd/authorized_keys")
    assert isinstance(refused, LoginRefused)
    assert "root@h1" in refused.message


def test_hosts_that_cannot_be_reached_are_all_named(hosts: Network) -> None:
    error = refusal(hosts=("h1:1", "127.0.0.1:1", "no.such.host.invalid:1"))
    assert isinstance(error, HostUnreachable)
    assert "127.0.0.1" in error.message
    assert "no.such.host.invalid" in error.message


PYTHONS = {
    "none": ("", "no python3 on h1"),
    "old": ("#!/bin/sh\\necho 'muster: python3 is Python 3.5.3' >&2; exit 1\\n", "too old: .*3.5.3"),
}


@pytest.mark.parametrize("which", PYTHONS)
def test_a_host_without_a_python_that_will_do(hosts: Network, which: str) -> None:
    program, words = PYTHONS[which]
    host = hosts.hosts["h1"]
    host.run("mkdir /root/bin && ln -s /usr/bin/env /usr/bin/sh /root/bin && echo 'PATH=/root/bin' > /root/.bashrc")
    if program:
        host.run(f'printf "{program}" > /root/bin/python3 && chmod +x /root/bin/python3')
    try:
        error = refusal(hosts=("h1:1",))
        assert isinstance(error, HostUnreachable)
        assert re.search(words, error.message), error
    finally:
        host.run("rm -r /root/bin /root/.bashrc")


@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9", "3.10", "3.12", "3.13"])
def test_the_guard_the_agent_and_the_script_run_on_the_pythons_that_hosts_have(
    hosts: Network, project: Path, version: str
) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    if not found:
        pytest.skip(f"there is no Python {version}")
    (project / "train.py").write_text(
        "import os, sys\n"
        "from pathlib import Path\n"
        "import muster.training.progress\n"
        "Path(os.environ['MUSTER_RESULTS'], 'made').write_text(Path('data.txt').read_text())\n"
        "agent = os.getppid()\n"
        "guard = int(open('/proc/%d/stat' % agent).read().rpartition(')')[2].split()[1])\n"
        "print(*(os.path.realpath('/proc/%s/exe' % pid) for pid in (guard, agent, 'self')))\n"
    )
    host = hosts.hosts["h1"]
    host.run(f"mkdir /root/bin && ln -s {found[0]} /root/bin/python3 && echo 'PATH=/root/bin:$PATH' > /root/.bashrc")
    try:
        cluster = muster.run_cluster(
            1, worker_script="train.py", strategy="processes", memory=0.5, platform="hosts", hosts=["h1"],
            python="/root/bin/python3", dashboard=False,
        ).cluster  # fmt: skip
    finally:
        host.run("rm -r /root/bin /root/.bashrc")
    assert cluster.logs("worker-0").split() == [str(found[0].resolve())] * 3
    assert (cluster.run_dir / "results" / "made").read_text() == "of the project"


def test_an_interpreter_without_what_the_job_needs_is_named_before_anything_starts(
    hosts: Network, project: Path
) -> None:
    job: Any = {"worker_script": "train.py", "platform": "hosts", "hosts": HOSTS, "dashboard": False}
    with pytest.raises(InterpreterError, match=r"/usr/bin/python3 on h1 has no horovod"):
        muster.run_cluster(2, strategy="horovod", python="/usr/bin/python3", **job)
    with pytest.raises(InterpreterError, match=r"/no/such/python on h1"):
        muster.run_cluster(2, strategy="processes", python="/no/such/python", **job)


def test_a_full_disk_of_a_host(hosts: Network, project: Path) -> None:
    host = hosts.hosts["h1"]
    host.run("mount -t tmpfs -o size=32k none /var/tmp && echo 'export TMPDIR=/var/tmp' > /root/.bashrc")
    try:
        error = refusal(hosts=("h1:1",))
        assert "h1" in error.message
        assert "No space left" in error.message
        host.run("mount -o remount,size=3000k /var/tmp")
        (project / "large").write_bytes(bytes(5 << 20))
        job: Any = {"worker_script": "train.py", "platform": "hosts", "hosts": ["h1"], "dashboard": False}
        with pytest.raises(PlatformError, match=r"worker-0 .*No space left on device: '/var/tmp/.*/large'") as raised:
            muster.run_cluster(1, strategy="processes", memory=0.5, cache=False, **job)
        assert raised.value.advice == "make room on that disk of worker-0"
    finally:
        host.run("umount /var/tmp && rm /root/.bashrc")


# -- launchers that log in to hosts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
def test_mpiexec_on_hosts_that_the_session_reaches_by_ssh_alone(start: Start, project: Path, flavour: str) -> None:
    mpiexec = shutil.which(f"mpiexec.{flavour}")
    if not mpiexec:
        pytest.skip("this MPI is not installed here")
    (project / "train.py").write_text(
        "import os\n"
        "print(os.uname().nodename, 'is rank', os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'])\n"
    )
    cluster = start(0, wait=True, strategy="mpi", mpiexec=mpiexec, tunnel=True)
    assert [cluster.logs(f"worker-{index}") for index in range(2)] == ["h1 is rank 0\n", "h2 is rank 1\n"]


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
def test_mpiexec_starts_the_ranks_of_each_of_several_workers_of_a_host(
    hosts: Network, project: Path, flavour: str
) -> None:
    mpiexec = shutil.which(f"mpiexec.{flavour}")
    if not mpiexec:
        pytest.skip("this MPI is not installed here")
    (project / "train.py").write_text(
        "import os\n"
        "print('rank', os.environ.get('PMI_RANK') or os.environ['OMPI_COMM_WORLD_RANK'], os.environ['MUSTER_WORKER'])\n"
    )
    cluster = muster.run_cluster(
        4,
        worker_script="train.py",
        strategy="mpi",
        mpiexec=mpiexec,
        memory=0.5,
        platform="hosts",
        hosts=["h1:2", "h2:2"],
    ).cluster
    for index in range(4):
        assert cluster.logs(f"worker-{index}") == f"rank {index} worker-{index}\n"


@pytest.mark.slow
def test_horovodrun_starts_the_ranks_of_several_workers_of_a_host(start: Start, hosts: Network, project: Path) -> None:
    (project / "train.py").write_text(
        "import os, horovod.tensorflow as hvd, tensorflow as tf\n"
        "hvd.init()\n"
        "print(os.uname().nodename, float(hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)))\n"
    )
    # Its login to each of them is what is tried here.
    options = {"strategy": "horovod", "launcher": "horovodrun", "memory": 2, "timeout_seconds": 240}
    cluster = start(0, wait=True, hosts=["h1:2"], **options)
    assert [cluster.logs(f"worker-{index}").split("\n")[-2] for index in range(2)] == ["h1 3.0", "h1 3.0"]
    # What TensorFlow's own imports leave for the user.
    hosts.hosts["h1"].run("rm -rf /root/.keras /root/.config /root/.cache/matplotlib")
