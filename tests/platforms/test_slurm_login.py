"""Runs on a real Slurm from a machine that is not part of it, through ssh to a login node."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from muster.commands.main import main
from muster.errors import (
    HostKeyUnknown,
    HostUnreachable,
    JobError,
    LaunchRefused,
    PlatformError,
    PlatformUnsupported,
    WorkerLost,
    WorkersMissing,
)
from muster.events import Event
from muster.job import Job, Resources, Status
from muster.platforms.slurm.platform import SlurmPlatform
from muster.records import scratch

from benchmarks.idle import Idle
from benchmarks.simulated_agents import PROGRESS, simulated_agents
from benchmarks.slurm_load import Simulated
from tests.platforms.each_strategy import TENSORFLOW, Training, each_strategy
from tests.platforms.slurm_login import NAME, NO_FORWARDING, NO_PYTHON, NO_SLURM, OLD_PYTHON, TERMINAL, LoginMachine
from tests.platforms.slurm_stand_in import StandIn
from tests.support import Run, StubSession, command_line, descendants_of, environment, eventually, shell

NOTEBOOK = (
    "import muster, sys; muster.run_cluster(2, strategy='processes', worker_script='endless.py', platform='slurm',"
    " login='login1', nodes='2', memory=0.5, sbatch_args=tuple(sys.argv[1:]))"
)
HUNDREDS = 400
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def project(login: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, which is the working directory, on a machine without Slurm."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "endless.py").write_text(ENDLESS)
    monkeypatch.chdir(folder)
    return folder


def run(script: str, n: int = 2, **options: Any) -> muster.Cluster:
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, "login": NAME, **options}
    options.setdefault("nodes", str(n))
    cluster: muster.Cluster = muster.run_cluster(n, worker_script=script, platform="slurm", **options).cluster
    return cluster


def started(**options: Any) -> muster.Cluster:
    """A run whose scripts have started on both nodes."""
    running = run("endless.py", wait=False, **options)
    for worker in ("worker-0", "worker-1"):
        eventually(lambda: "started" in running.logs(worker), f"{worker} has started", timeout=60)  # noqa: B023
    return running


def ssh_processes() -> list[int]:
    """Ids of this process's ssh clients."""
    return [pid for pid in descendants_of(os.getpid()) if f" -T -- {NAME} python3" in command_line(pid)]


def test_two_nodes_train_that_know_nothing_of_this_machine(project: Path, login: LoginMachine) -> None:
    (project / "train.py").write_text(
        "import json, os\n"
        "said = {'rank': os.environ['RANK'], 'node': os.uname().nodename, 'data': open('data.txt').read()}\n"
        "print(json.dumps(said))\n"
        "open(os.path.join(os.environ['MUSTER_RESULTS'], 'model-' + os.environ['RANK']), 'w').close()\n"
    )
    (project / "data.txt").write_text("of the project")
    trained = run("train.py")
    said = [json.loads(trained.logs(f"worker-{index}")) for index in range(2)]
    assert [entry["rank"] for entry in said] == ["0", "1"]
    assert sorted(entry["node"] for entry in said) == ["n1", "n2"]
    assert {entry["data"] for entry in said} == {"of the project"}
    assert sorted(path.name for path in (trained.run_dir / "results").iterdir()) == ["model-0", "model-1"]


def test_secrets_are_neither_in_command_lines_nor_open_to_others(login: LoginMachine, run: Run) -> None:
    session = StubSession("127.0.0.1")
    platform = SlurmPlatform(login=NAME)
    reach = platform.reach()
    assert (reach.listen, reach.relayed) == ("127.0.0.1", True)
    spec = run.spec(session=session.address, process=shell("sleep 600"))
    ((host, port),) = platform.open_relay("127.0.0.1", session.address.port).addresses_for([spec])
    assert host == login.address
    handles = platform.submit([run.spec(session=session.address, process=shell("sleep 600"))], run.id)
    with socket.create_connection((host, port), timeout=10):
        pass  # which reaches the session
    (folder,) = {handle.partition("@")[2] for handle in handles}
    modes = login.run(f"stat -c '%a %n' {folder} {folder}/*").splitlines()
    assert [line for line in modes if not line.split()[0].endswith("00") and not line.endswith("/output")] == []
    for pid in [*login.pids(), *ssh_processes()]:
        for name in ("cmdline", "environ"):
            assert session.token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    platform.close()
    session.close()


@each_strategy
@pytest.mark.elsewhere
@pytest.mark.slow
def test_each_strategy_trains(training: Training, project: Path, login: LoginMachine) -> None:
    (project / "train.py").write_text(training.script)
    training.check(run("train.py", nodes=None, n_ps=training.n_ps, **{**TENSORFLOW, **training.options}))
    login.remove_what_tensorflow_leaves()


def test_a_project_of_megabytes_comes_through_the_relay(project: Path) -> None:
    (project / "data").write_bytes(os.urandom(20 << 20))
    (project / "train.py").write_text(
        "import os, shutil\nprint(os.path.getsize('data'))\n"
        "shutil.copy('data', os.path.join(os.environ['MUSTER_RESULTS'], os.environ['RANK']))\n"
    )
    trained = run("train.py")
    assert {trained.logs(f"worker-{index}") for index in range(2)} == {f"{20 << 20}\n"}
    assert (trained.run_dir / "results" / "1").read_bytes() == (project / "data").read_bytes()


def test_a_job_that_waits_says_why_and_one_that_is_held_is_given_up(project: Path, login: LoginMachine) -> None:
    (project / "train.py").write_text("print('done')\n")
    other = login.engine.submit("--nodes=2", "--exclusive")
    seen: list[Event] = []

    def look(event: Event) -> None:
        seen.append(event)
        if "Resources" in str(event.data.get("reason")):
            login.engine.run("scancel", other)

    run("train.py", observers=[look])
    told = [event.data["reason"] for event in seen if event.kind == "worker_state" and event.data.get("reason")]
    assert told[0].startswith("The job is queued: it waits for nodes that are free (Slurm says Resources)")
    with pytest.raises(WorkersMissing, match=r"2 of 2 workers were still queued after 5 s: .*you hold it.*JobHeldUser"):
        run("endless.py", sbatch_args=("--hold",), queue_timeout=5)


def test_a_run_is_stopped(project: Path, login: LoginMachine) -> None:
    running = started()
    assert len(login.engine.jobs()) == 1
    running.stop()
    login.expect_nothing_left()
    assert ssh_processes() == []


def test_one_worker_of_a_job_is_stopped(login: LoginMachine, run: Run) -> None:
    platform = SlurmPlatform(login=NAME)
    platform.check()
    handles = platform.submit([run.spec(f"worker-{index}", process=shell("sleep 600")) for index in range(2)], "key")

    def states() -> list[Status]:
        return [worker.status for worker in platform.poll(handles)]

    try:
        eventually(lambda: states() == [Status.RUNNING] * 2, "both run", 60)
        platform.stop(handles[1:])
        eventually(lambda: states() == [Status.RUNNING, Status.STOPPED], "one has stopped", 60)
        assert [worker.status for worker in SlurmPlatform(login=NAME).poll(handles)][0] is Status.RUNNING
    finally:
        platform.close()


def test_a_pool_trains_twice(project: Path) -> None:
    (project / "train.py").write_text("import os\nprint(os.uname().nodename)\n")
    with muster.pool(2, platform="slurm", login=NAME, nodes="2", memory=0.5, timeout_seconds=120) as pool:
        first, second = (
            pool.run_cluster(strategy="processes", worker_script="train.py", timeout_seconds=120).cluster
            for _ in range(2)
        )
    for trained in (first, second):
        assert sorted(trained.logs(f"worker-{index}").strip() for index in range(2)) == ["n1", "n2"]


@pytest.mark.parametrize("options", [[], ["--hold"]], ids=["running", "queued"])
def test_nothing_is_left_when_the_notebook_is_killed(project: Path, login: LoginMachine, options: list[str]) -> None:
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK, *options], env=environment(), stderr=subprocess.DEVNULL
    )
    wanted = "PENDING" if options else "RUNNING"
    engine = login.engine
    eventually(lambda: engine.run("squeue", "-h", "-o", "%T").split() == [wanted], wanted, timeout=60)
    assert login.processes()
    notebook.send_signal(signal.SIGKILL)
    notebook.wait()
    eventually(lambda: engine.left_behind() == [], "the job is cancelled", timeout=20)
    login.expect_nothing_left()
    scratch.sweep(Path(tempfile.gettempdir()))  # as the next run does


@pytest.mark.elsewhere  # it takes 15 s
def test_hundreds_of_agents_come_through_one_login(
    login: LoginMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agents are simulated, as is Slurm: sshd, ssh and the relay are real."""
    monkeypatch.setattr("muster.platforms.slurm.platform.END_SECONDS", 0.1)  # the job of the stand-in runs for ever
    heard: set[str] = set()
    behind = tmp_path / "slurm"
    stand_in = StandIn(behind)
    stand_in.has_a_job()
    stand_in.says("sinfo", f"main*|infinite|NO|n1|{login.engine.subnet}.2|4096|8000000|idle|(null)\n")
    login.old.symlink_to(behind / "bin")
    try:
        with simulated_agents(HUNDREDS, PROGRESS) as channels:
            platform = Simulated(channels, login=OLD_PYTHON, folder=str(tmp_path / "made"))
            job = Job(None, HUNDREDS, resources=Resources(1, 0.1))
            observers = [lambda event: heard.add(event.worker) if event.kind == "progress" else None]
            with (
                contextlib.closing(platform),
                muster.Cluster(job, strategy=Idle(), platform=platform, timeout_seconds=120, observers=observers),
            ):
                relayed = [pid for pid in login.pids() if "sys.stdin.buffer.raw" in command_line(pid)]
                assert sum(len([*Path(f"/proc/{pid}/fd").iterdir()]) for pid in relayed) > 2 * HUNDREDS
                eventually(lambda: len(heard) == HUNDREDS, "all agents have reported", 60)
            assert all(channel.recv().stopped_at for channel in channels), "the agents have been told to stop"
    finally:
        login.old.unlink()
    assert len(stand_in.asked("sbatch --parsable")) == 1


def test_more_workers_than_sshd_may_have_connections_are_refused_with_the_number(
    project: Path, login: LoginMachine
) -> None:
    with (
        login.open_files(70),
        pytest.raises(PlatformError, match="can carry the connections of 6 workers, and not of 8"),
    ):
        run("endless.py", 8, nodes="2", memory=0.1)
    assert login.engine.jobs() == []


def guard_of(login: LoginMachine) -> int:
    """Id of the guard on the login node."""
    (guard,) = [pid for pid in login.pids() if "sys.stdin.buffer.raw" in command_line(pid)]
    return guard


def test_a_run_goes_on_by_another_login_where_one_is_cut_while_it_waits_and_while_it_trains(
    project: Path, login: LoginMachine, caplog: pytest.LogCaptureFixture
) -> None:
    (project / "train.py").write_text(
        "import time\nfor step in range(100):\n    print('step', step, flush=True)\n    time.sleep(0.1)\n"
    )

    def cut() -> None:
        (ssh,), guard = ssh_processes(), guard_of(login)
        os.kill(ssh, signal.SIGKILL)
        eventually(lambda: guard not in login.pids() and ssh_processes(), "it logs in again", 20)

    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(run, "train.py", sbatch_args=("--hold",), wait=False)
        eventually(lambda: any(name.endswith("job.json") for name in login.files()), "it is queued", 60)
        cut()
        (job,) = login.engine.jobs()
        login.engine.run("scontrol", "release", job)
        running = future.result(60)
    eventually(lambda: "step 9\n" in running.logs("worker-1"), "it trains", timeout=60)
    cut()
    running.wait()
    for worker in ("worker-0", "worker-1"):
        assert running.logs(worker).splitlines() == [f"step {number}" for number in range(100)]
    assert caplog.text.count("This session has logged in again, and goes on") == 2
    login.expect_nothing_left()


def test_a_run_is_tried_again_where_a_login_was_lost_with_its_guard(project: Path, login: LoginMachine) -> None:
    (project / "train.py").write_text(
        "import os, time\nprint('attempt', os.environ['MUSTER_ATTEMPT'], flush=True)\n"
        "time.sleep(600 if os.environ['MUSTER_ATTEMPT'] == '1' else 0)\n"
    )
    running = run("train.py", restarts=1, wait=False)
    for worker in ("worker-0", "worker-1"):
        eventually(lambda: "attempt 1" in running.logs(worker), f"{worker} has started", timeout=60)  # noqa: B023
    os.kill(guard_of(login), signal.SIGKILL)
    running.wait()
    assert "The login to login1, through which its agent" in running.explain()
    assert "attempt 2" in running.logs("worker-0")


@pytest.mark.elsewhere  # it takes 30 s
def test_a_job_ends_where_nobody_logs_in_again_for_longer_than_the_lease(project: Path, login: LoginMachine) -> None:
    running = started()
    keys = login.folder / "authorized_keys"
    keys.rename(login.folder / "none")
    os.kill(ssh_processes()[0], signal.SIGKILL)
    try:
        with pytest.raises(WorkerLost, match="The login to login1, through which its agent .* has ended"):
            running.wait()
        eventually(lambda: login.engine.left_behind() == [], "the job is cancelled", timeout=20)
        login.expect_nothing_left()
    finally:
        (login.folder / "none").rename(keys)


@pytest.mark.elsewhere  # it takes 18 s
def test_a_network_that_is_away_for_some_seconds_and_an_sshd_that_starts_anew_end_nothing(
    project: Path, login: LoginMachine
) -> None:
    (project / "train.py").write_text(
        "import os, time\nprint('attempt', os.environ['MUSTER_ATTEMPT'], flush=True)\n"
        "for step in range(130):\n    time.sleep(0.1)\n    print('step', step, flush=True)\n"
    )
    running = run("train.py", restarts=1, wait=False)
    eventually(lambda: "step 1\n" in running.logs("worker-1"), "it has started", timeout=60)
    (job,) = login.engine.jobs()
    login.restart_sshd()
    login.switch(on=False)
    time.sleep(10)
    assert "step 129\n" not in running.logs("worker-1")
    login.switch(on=True)
    running.wait()
    for worker in ("worker-0", "worker-1"):
        said = running.logs(worker).splitlines()
        assert said == ["attempt 1", *(f"step {number}" for number in range(130))]
    assert login.engine.jobs() in ([], [job])


@pytest.mark.elsewhere  # it takes 38 s
def test_a_network_that_goes_away_silently_is_noticed(project: Path, login: LoginMachine) -> None:
    running = started()
    login.switch(on=False)
    began = time.monotonic()
    try:
        with pytest.raises(WorkerLost):
            running.wait()
        # ssh notices it after 15 s; then logins are tried for the lease of 15 s, of which the last takes up to 10.
        assert time.monotonic() - began < 50
        # The agents end by themselves, 15 s after they have lost the session, and the job with them.
        eventually(lambda: login.engine.left_behind() == [], "the job is over", timeout=40)
    finally:
        login.switch(on=True)
        for pid in login.pids():  # the guard would notice within two minutes
            if command_line(pid).startswith("sshd: root"):
                os.kill(pid, signal.SIGKILL)


def test_a_guard_that_is_killed_leaves_its_queued_job_to_the_next_run(project: Path, login: LoginMachine) -> None:
    notebook = subprocess.Popen(
        [sys.executable, "-c", NOTEBOOK, "--hold"], env=environment(), stderr=subprocess.DEVNULL
    )
    eventually(lambda: len(login.engine.jobs()) == 1, "it is queued", timeout=60)
    eventually(lambda: any(name.endswith("job.json") for name in login.files()), "it is known there", timeout=20)
    os.kill(guard_of(login), signal.SIGKILL)
    notebook.kill()
    notebook.wait()
    time.sleep(1)
    assert len(login.engine.jobs()) == 1
    (project / "train.py").write_text("print('done')\n")
    run("train.py", 1)
    eventually(lambda: login.engine.jobs() == [], "both jobs are gone", timeout=20)


def test_nodes_that_cannot_dial_the_login_node_say_so(project: Path, login: LoginMachine) -> None:
    said = rf"worker-\d did not come up: .*cannot reach the session at {login.address}:\d+"
    with login.firewall(), pytest.raises(LaunchRefused, match=said) as told:
        run("endless.py")
    assert "have the login node's firewall let compute nodes dial it" in str(told.value.advice)


def test_plan_and_doctor_ask_there(project: Path, login: LoginMachine) -> None:
    (project / "train.py").write_text("print('done')\n")
    options = ["-p", "slurm", "--login", NAME, "-s", "processes", "-n", "2", "--memory", "0.5", "train.py"]
    text = CliRunner().invoke(main, ["plan", "--submission", *options]).output
    assert f"#SBATCH --output={login.home}/.muster/slurm/" in text
    login.engine.run("sbatch", "--test-only", given=text)
    said = CliRunner().invoke(main, ["doctor", *options])
    assert said.exit_code == 0, said.output
    assert f"slurm, partition main, through {NAME}" in said.output
    limits = "partition main: 2 nodes, the largest with 4 cores and 8.38 GB; a job may take 60 minutes"
    assert limits in " ".join(said.output.split())


def test_the_oldest_python_that_a_login_node_may_have(project: Path, login: LoginMachine) -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.6.*/bin/python3"))
    if not found:
        pytest.skip("there is no Python 3.6 here")
    login.old.mkdir()
    (login.old / "python3").symlink_to(found[0])
    (project / "train.py").write_text("print('done')\n")
    assert run("train.py", login=OLD_PYTHON).logs("worker-1") == "done\n"


def test_commands_that_only_terminals_there_have_are_found(project: Path, login: LoginMachine) -> None:
    (project / "train.py").write_text("print('done')\n")
    assert run("train.py", 1, login=TERMINAL).logs("worker-0") == "done\n"


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        (
            {"login": NO_SLURM},
            PlatformUnsupported,
            "There is no sbatch on no-slurm: this is no machine",
        ),
        ({"login": NO_PYTHON}, HostUnreachable, "There is no python3 on no-python, which Muster's agent needs"),
        ({"login": NO_FORWARDING}, HostUnreachable, "no-forwarding .*: its sshd forwards none"),
        ({"login": "off"}, HostUnreachable, "off refuses connections for ssh"),
        ({"login": "-oProxyCommand=touch stolen"}, JobError, "is no host"),
        ({"shared": True}, JobError, "shared has workers work in the project's folder, which is on this machine"),
        ({"partition": "nowhere"}, JobError, "There is no partition 'nowhere'"),
        ({"constraint": "quick"}, LaunchRefused, "no node has these features. Slurm says: Invalid feature"),
    ],
)
def test_what_cannot_be_is_refused_at_once(
    project: Path, login: LoginMachine, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run("endless.py", **options)
    assert login.engine.jobs() == []
    assert not (project / "stolen").exists()


def test_a_login_node_whose_key_is_not_known_is_not_trusted(project: Path, login: LoginMachine) -> None:
    known = login.folder / "known_hosts"
    keys = known.read_text()
    known.write_text("")
    try:
        with pytest.raises(HostKeyUnknown, match="The key of login1 is not known here"):
            run("endless.py")
    finally:
        known.write_text(keys)
