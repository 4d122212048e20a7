"""Whole runs on a real Slurm, and what becomes of them when jobs wait, are ended, or lose their nodes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from muster.agent import linux
from muster.agent.worker import UNPACKED
from muster.commands.main import main
from muster.errors import (
    JobError,
    LaunchRefused,
    ResourceError,
    RunTimeout,
    WorkerCancelled,
    WorkerLost,
    WorkerPreempted,
    WorkersMissing,
)
from muster.events import Event
from muster.job import EndCause, Resources, Status, Worker
from muster.platforms.slurm.platform import SlurmPlatform
from muster.platforms.slurm.queue import POLL_SECONDS, Queue
from muster.platforms.slurm.site import HERE

from tests.platforms.each_strategy import TENSORFLOW, Training, each_strategy
from tests.platforms.in_a_terminal import Terminal
from tests.platforms.slurm_engine import Engine
from tests.support import Run, command_line, environment, eventually, shell

NOTEBOOK = (
    "import muster, sys; muster.run_cluster(2, strategy='processes', worker_script='endless.py', platform='slurm',"
    " nodes='2', memory=0.5, sbatch_args=tuple(sys.argv[1:]))"
)
CONSTRAINTS = ("new", "new|fast", "[new|fast]", "new|fast&new", "new*1", "[fast*1&new*1]", "[fast*2&new*1]", "fast,new")
ENDLESS = "import time\nprint('started', flush=True)\ntime.sleep(600)\n"


@pytest.fixture
def project(slurm: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the user's, which is the working directory, on a machine with Slurm."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "endless.py").write_text(ENDLESS)
    monkeypatch.chdir(folder)
    return folder


def run(script: str, n: int = 2, **options: Any) -> muster.Cluster:
    options = {"strategy": "processes", "memory": 0.5, "timeout_seconds": 120, "nodes": str(n), **options}
    cluster: muster.Cluster = muster.run_cluster(n, worker_script=script, platform="slurm", **options).cluster
    return cluster


def asked(constraint: str, count: int, cores: int, folder: Path) -> tuple[bool, bool]:
    """Return whether the platform refuses workers for what nodes have, and whether Slurm would take their job."""
    platform, each = SlurmPlatform(constraint=constraint), Resources(cores, 0.1)
    try:
        platform.shortages([each] * count)
        is_refused = False
    except ResourceError:
        is_refused = True
    except LaunchRefused:  # that is Slurm's word
        is_refused = False
    workers = Run(folder)
    text = platform.submission_text([workers.spec(f"worker-{number}", resources=each) for number in range(count)])
    workers.remove()
    return is_refused, HERE.run("sbatch", "--test-only", given=text)[0] == 0


def folders_of_agents() -> list[Path]:
    """The files that workers have unpacked, and have there."""
    return [*Path(os.environ["TMPDIR"]).glob(f"{UNPACKED}*")]


def started(**options: Any) -> muster.Cluster:
    """A run whose scripts have started on both nodes."""
    running = run("endless.py", wait=False, **options)
    for worker in ("worker-0", "worker-1"):
        eventually(lambda: "started" in running.logs(worker), f"{worker} has started", timeout=60)  # noqa: B023
    return running


def test_two_nodes_train_and_slurm_sees_no_secrets(project: Path, slurm: Engine, muster_home: Path) -> None:
    (project / "train.py").write_text(
        "import json, os, time\n"
        "job = os.environ['MUSTER_SLURM_JOB_ID']\n"
        "print(json.dumps({'rank': os.environ['RANK'], 'node': os.uname().nodename, 'job': job,\n"
        "    'slurm': [name for name in os.environ if name.startswith('SLURM')], 'data': open('data.txt').read()}))\n"
        "open(os.path.join(os.environ['MUSTER_RESULTS'], 'model-' + os.environ['RANK']), 'w').close()\n"
        "time.sleep(3)\n"
    )
    (project / "data.txt").write_text("of the project")
    before, began = len(slurm.asked()), time.monotonic()
    running = run("train.py", wait=False, env={"PASSWORD": "fish and chips"})
    (job,) = eventually(slurm.jobs, "there is a job", timeout=30)
    shown = slurm.run("scontrol", "show", "job", job) + slurm.run("scontrol", "write", "batch_script", job, "-")
    (folder,) = (muster_home / "slurm").iterdir()
    assert folder.stat().st_mode & 0o77 == 0
    assert [path.name for path in folder.iterdir() if path.stat().st_mode & 0o77 and path.name != "output"] == []
    running.wait()
    took = time.monotonic() - began
    assert "fish and chips" not in shown
    assert "CERTIFICATE" not in shown
    assert [word for word in ("srun", "sbatch") if word in shown]
    said = [json.loads(running.logs(f"worker-{index}")) for index in range(2)]
    assert [entry["rank"] for entry in said] == ["0", "1"]
    assert sorted(entry["node"] for entry in said) == ["n1", "n2"]
    assert {(entry["job"], entry["data"]) for entry in said} == {(job, "of the project")}
    assert [entry["slurm"] for entry in said] == [[], []]
    assert sorted(path.name for path in (running.run_dir / "results").iterdir()) == ["model-0", "model-1"]
    assert slurm.asked()[before:].count("squeue") - 1 <= took / POLL_SECONDS + 1  # one is the test's
    eventually(lambda: slurm.jobs() == [], "the job has ended", timeout=20)
    assert not any((muster_home / "slurm").iterdir())


def test_a_folder_is_taken_as_it_is_called(project: Path, slurm: Engine, tmp_path: Path) -> None:
    folder = tmp_path / "100%j of it's \"a#"
    running = run("endless.py", 1, folder=str(folder), wait=False)
    eventually(lambda: "started" in running.logs("worker-0"), "it has started", timeout=60)
    (made,) = folder.iterdir()
    assert (made / "output").exists()
    running.stop()
    assert not any(folder.iterdir())
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("100")] == [folder.name]


def test_what_the_environment_says_of_jobs_does_not_undo_what_the_user_says(
    project: Path, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "urgent")
    monkeypatch.setenv("SBATCH_ARRAY_INX", "1-2")
    running = run("endless.py", 1, partition="main", wait=False)
    eventually(lambda: "started" in running.logs("worker-0"), "it has started", timeout=60)
    assert slurm.run("squeue", "-h", "-o", "%P %F %a").split("\n")[0].split()[0] == "main"
    assert len(slurm.jobs()) == 1
    running.stop()


def test_no_more_of_the_environment_is_sent_than_the_user_says(
    project: Path, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text("import os\nprint(os.environ.get('CLOUD_TOKEN'), 'PATH' in os.environ)\n")
    monkeypatch.setenv("CLOUD_TOKEN", "mine")
    assert run("train.py", 1).logs("worker-0") == "mine True\n"
    assert (
        run("train.py", 1, sbatch_args=("--export=PATH,HOME,LD_LIBRARY_PATH,SLURM_CONF",)).logs("worker-0")
        == "None True\n"
    )


MUSTER = f"{sys.executable} -m muster"
AT_A_TERMINAL = (  # as from the login node, of whose environment a step gets no list of the job's nodes
    "env -u SLURM_JOB_NODELIST srun --jobid=$SLURM_JOB_ID --overlap --nodes=1 --ntasks=1"
    f" sh -c '{MUSTER} run --detach 5m {{}} && {MUSTER} attach last'"
)


@pytest.mark.parametrize("way", [f"{MUSTER} run {{}}", AT_A_TERMINAL], ids=["batch script", "detached at a terminal"])
def test_a_session_that_is_a_job_itself_needs_no_way_to_the_login_node(project: Path, slurm: Engine, way: str) -> None:
    (project / "train.py").write_text(
        f"import os, time\nprint(os.uname().nodename, flush=True)\nwhile not os.path.exists({str(project / 'go')!r}):\n"
        "    time.sleep(0.1)\n"
    )
    told = "-p slurm -s processes -n 2 --nodes 2 --memory 0.5 train.py"
    command = f"cd {project} && export MUSTER_DASHBOARD=plain; ({way.format(told)}) > out 2>&1; echo $? > status"
    job = slurm.submit("--nodes=2", "--ntasks=2", "--cpus-per-task=2", "--mem-per-cpu=1000", command=command)
    out, status = project / "out", project / "status"
    eventually(lambda: status.exists() or (out.exists() and "training" in out.read_text()), "it trains", timeout=120)
    assert not status.exists(), out.read_text()
    within = ("srun", f"--jobid={job}", "--overlap", "--nodes=1", "--ntasks=1", sys.executable, "-m", "muster")
    reached = 'train.py", line 4'
    eventually(lambda: slurm.run(*within, "stacks", "last").count(reached) == 2, "a step of the job reaches it", 30)
    (project / "go").touch()
    said = eventually(lambda: status.exists() and status.read_text(), "the job has ended", timeout=120)
    assert said == "0\n", (project / "out").read_text()
    logs = muster.open_run("last").run_dir / "logs"
    assert sorted((logs / f"worker-{index}.log").read_text().strip() for index in range(2)) == ["n1", "n2"]


def test_a_job_that_waits_says_why_and_one_that_is_held_is_given_up(project: Path, slurm: Engine) -> None:
    (project / "train.py").write_text("print('done')\n")
    other = slurm.submit("--nodes=2", "--exclusive")
    seen: list[Event] = []

    def look(event: Event) -> None:
        seen.append(event)
        if "Slurm expects to start it at" in str(event.data.get("reason")):
            slurm.run("scancel", other)

    run("train.py", observers=[look], queue_timeout=90)
    told = [event.data["reason"] for event in seen if event.kind == "worker_state" and event.data.get("reason")]
    assert told[0].startswith("The job is queued: it waits for nodes that are free (Slurm says Resources)")
    with pytest.raises(WorkersMissing, match=r"2 of 2 workers were still queued after 5 s: .*you hold it.*JobHeldUser"):
        run("endless.py", sbatch_args=("--hold",), queue_timeout=5)
    eventually(lambda: slurm.jobs() == [], "nothing is left", timeout=20)


def test_a_job_waits_for_a_node_that_is_drained(project: Path, slurm: Engine) -> None:
    (project / "train.py").write_text("print('done')\n")
    told: list[str] = []

    def look(event: Event) -> None:
        if "nodes that it needs are down, drained" in str(event.data.get("reason")):
            told.append(event.data["reason"])
            slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME")

    slurm.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=a new disk")
    try:
        with pytest.raises(LaunchRefused, match="no node has these features"):  # however many nodes are drained
            run("train.py", constraint="fast")
        run("train.py", observers=[look], queue_timeout=60)
        assert told
    finally:
        slurm.run("scontrol", "update", "NodeName=n2", "State=RESUME", check=False)  # refused if it was done


def test_a_job_that_somebody_cancels(project: Path, slurm: Engine) -> None:
    running = started()
    slurm.run("scancel", *slurm.jobs())
    with pytest.raises(WorkerCancelled, match=r"(was|were) cancelled: Somebody has cancelled its job.*CANCELLED"):
        running.wait()


def test_a_job_that_has_to_make_way(project: Path, slurm: Engine) -> None:
    running = started()
    slurm.submit("--nodes=2", "--exclusive", "--partition=urgent")
    with pytest.raises(WorkerPreempted, match=r"(was|were) taken away: A job with a higher priority.*PREEMPTED"):
        running.wait()


def test_scripts_save_before_their_job_is_ended(project: Path, slurm: Engine) -> None:
    """They have a handler, as the guide says, as Slurm may send the signal to them as well."""
    (project / "endless.py").write_text(
        "import signal, time\nfrom muster.training import preempted\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\nprint('started', flush=True)\n"
        "while not preempted():\n    time.sleep(0.05)\nprint('saved', flush=True)\ntime.sleep(600)\n"
    )
    running = started()
    slurm.run("scancel", "--signal=TERM", *slurm.jobs())
    eventually(lambda: all("saved" in running.logs(f"worker-{index}") for index in range(2)), "both have saved", 15)
    running.stop()


def test_a_job_that_takes_too_long(project: Path, slurm: Engine) -> None:
    running = started(time="10m")
    slurm.run("scontrol", "update", f"JobId={slurm.jobs()[0]}", "EndTime=now+2")
    with pytest.raises(RunTimeout, match=r"ran out of time: Its job had run for as long as it may.*TIMEOUT") as error:
        running.wait()
    assert "time" in str(error.value.advice)


def test_nodes_that_cannot_dial_the_session_say_so_and_there_is_another_way(project: Path, slurm: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    said = rf"worker-\d did not come up: .*cannot reach the session at 127.0.0.1:{port}"
    with pytest.raises(LaunchRefused, match=said) as told:
        run("endless.py", session_address=f"127.0.0.1:{port}")  # where each node finds only itself
    assert "have the session run on a compute node, in a job" in str(told.value.advice)
    assert "session_address" in str(told.value.advice)


def test_a_node_that_is_gone(project: Path, slurm: Engine) -> None:
    (project / "endless.py").write_text(f"import os\nprint('on', os.uname().nodename)\n{ENDLESS}")
    running = started()
    (worker,) = [name for name in ("worker-0", "worker-1") if "on n2" in running.logs(name)]
    slurm.power_off("n2")
    try:
        with pytest.raises(WorkerLost, match=f"{worker} was lost"):  # long before Slurm knows
            running.wait()
    finally:
        slurm.power_on("n2")
    (project / "train.py").write_text("print('done')\n")
    run("train.py", 1, nodelist="n2")  # removes what the agent that went with the node has left there


def test_nothing_is_left_when_the_notebook_is_killed(project: Path, slurm: Engine) -> None:
    for arguments in ([], ["--hold"]):
        command = [sys.executable, "-c", NOTEBOOK, *arguments]
        notebook = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
        wanted = "PENDING" if arguments else "RUNNING"
        eventually(lambda: slurm.run("squeue", "-h", "-o", "%T").split() == [wanted], wanted, timeout=60)  # noqa: B023
        notebook.send_signal(signal.SIGKILL)
        notebook.wait()
        eventually(lambda: slurm.jobs() == [], "nothing is left", timeout=20)


def test_inside_a_job_the_workers_are_a_step_of_it(
    project: Path, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text("import os\nprint(os.uname().nodename)\n")
    job = slurm.submit("--nodes=2", "--ntasks=2", "--mem-per-cpu=1000")
    eventually(lambda: slurm.run("squeue", "-h", "-o", "%T").split() == ["RUNNING"], "it runs", timeout=30)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    found = run("train.py")
    assert sorted(found.logs(f"worker-{index}").strip() for index in range(2)) == ["n1", "n2"]
    running = started()
    running.stop()
    assert slurm.run("squeue", "-h", "-o", "%i %T").split() == [job, "RUNNING"]
    no_step: tuple[list[str], ...] = ([], [f"{job}.batch"])
    eventually(lambda: slurm.run("squeue", "-h", "-s", "-o", "%i").split() in no_step, "no step is left")
    eventually(lambda: not folders_of_agents(), "workers that were stopped have taken their folders along")
    running = started()
    slurm.run("scancel", *(step for step in slurm.run("squeue", "-h", "-s", "-o", "%i").split() if "batch" not in step))
    with pytest.raises(WorkerCancelled, match=r"(was|were) cancelled: Somebody has cancelled its step"):
        running.wait()
    notebook = subprocess.Popen([sys.executable, "-c", NOTEBOOK], env=environment(), stderr=subprocess.DEVNULL)
    eventually(lambda: "started" in "".join(muster.open_run("last").logs("worker-1")), "it has started", 60)
    notebook.kill()
    notebook.wait()
    eventually(lambda: slurm.run("squeue", "-h", "-s", "-o", "%i").split() in no_step, "no step is left", 20)
    assert slurm.run("squeue", "-h", "-o", "%i %T").split() == [job, "RUNNING"]


def test_in_an_allocation_of_a_terminal_runs_are_steps_and_leave_the_job_alone(project: Path, slurm: Engine) -> None:
    command = ["salloc", "--nodes=2", "--ntasks=2", "--mem-per-cpu=1000"]
    variables = environment(PATH=slurm.path, TERM="xterm", MUSTER_DASHBOARD="plain")
    options = "-p slurm -s processes -n 2 --nodes 2 --memory 0.5 endless.py; echo ended with $?"
    with Terminal(command, variables) as terminal:
        terminal.read_until("Granted job allocation")
        (job,) = slurm.jobs()
        terminal.type(f"{sys.executable} -m muster plan {options}")
        terminal.read_until(f"workers run on slurm, steps of job {job},")
        terminal.read_until(rf"srun --job-name=muster --jobid={job} --overlap --nodes=2 .*\r\nended with 0\r\n")
        terminal.type(f"{sys.executable} -m muster run {options}")
        terminal.read_until("running the script")
        steps = slurm.run("squeue", "-h", "-s", "-o", "%i %j").split()
        terminal.interrupt()
        terminal.read_until(r"stopped after [\s\S]*\r\nInterrupted\.\r\nended with 130\r\n")
        assert re.fullmatch(rf"{job}\.0 muster-.*", " ".join(steps))
        assert "SBATCH" not in terminal.said
        assert slurm.run("squeue", "-h", "-o", "%i %T").split() == [job, "RUNNING"]
        terminal.type("exit")
        terminal.read_until("Relinquishing job allocation")


@each_strategy
@pytest.mark.elsewhere
@pytest.mark.slow
def test_each_strategy_trains_in_a_step_of_the_session_s_job(
    training: Training, project: Path, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text(training.script)
    job = slurm.submit("--nodes=2", "--ntasks=6", "--mem-per-cpu=2000")
    eventually(lambda: slurm.run("squeue", "-h", "-o", "%T").split() == ["RUNNING"], "it runs", timeout=30)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    options = {**TENSORFLOW, "nodes": None, **training.options}
    if training.n_ps:
        options |= {"ps_memory": 1.0}  # so that the step has parts of two sizes
    training.check(run("train.py", n_ps=training.n_ps, **options))
    assert slurm.run("squeue", "-h", "-o", "%i %T").split() == [job, "RUNNING"]


def test_workers_with_more_gpus_than_the_job_of_the_session_are_told_so(
    project: Path, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slurm.submit("--nodes=2", "--ntasks=2", "--mem-per-cpu=1000")
    eventually(lambda: slurm.run("squeue", "-h", "-o", "%T").split() == ["RUNNING"], "it runs", timeout=30)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    with pytest.raises(
        LaunchRefused, match=r"Its step could not be started: its job has not so many GPUs.*\(gres\)"
    ) as told:
        run("endless.py", nvidia_gpu=1)
    assert "nvidia_gpu=" in str(told.value.advice)


def test_a_task_whose_first_process_is_killed_is_lost_and_was_not_taken_away_for_others(
    project: Path, slurm: Engine
) -> None:
    running = started()
    first, agent = (  # which is a fork of the task's first process
        pid
        for pid in sorted(linux.marked("MUSTER_HOME", os.environ["MUSTER_HOME"]))
        if "/start.py" in command_line(pid) and b"SLURM_PROCID=1" in linux.environment_of(pid)
    )
    opened = {os.readlink(descriptor) for descriptor in Path(f"/proc/{agent}/fd").iterdir()}
    (unpacked,) = (Path(path) for path in opened if Path(path).name.startswith(UNPACKED))
    killed = time.monotonic()
    os.kill(first, signal.SIGKILL)
    with pytest.raises(WorkerLost, match="worker-1") as raised:
        running.wait()
    assert not isinstance(raised.value, WorkerPreempted)
    assert time.monotonic() - killed < 15
    eventually(lambda: not unpacked.exists(), "the agent has removed what it was unpacked into")


def test_mpiexec_runs_beside_the_first_worker(project: Path, slurm: Engine) -> None:
    mpiexec = shutil.which("mpiexec.mpich")
    if not mpiexec:
        pytest.skip("MPICH is not installed here")
    (project / "rank.py").write_text("import os\nprint('rank', os.environ['PMI_RANK'], 'on', os.uname().nodename)\n")
    found = run("rank.py", strategy="mpi", mpiexec=mpiexec)
    said = [found.logs(f"worker-{index}").split() for index in range(2)]
    assert [words[1] for words in said] == ["0", "1"]
    assert sorted(words[3] for words in said) == ["n1", "n2"]


def test_where_the_project_is_shared_nothing_is_sent(project: Path, slurm: Engine) -> None:
    (project / "train.py").write_text("import os\nprint(os.getcwd())\n")
    assert run("train.py", shared=True).logs("worker-1") == f"{project}\n"


ALONE: list[dict[str, Any]] = [{"sbatch_args": ("--exclusive",)}, {"partition": "alone"}]


@pytest.mark.parametrize("options", ALONE, ids=["by an option", "by the partition"])
def test_workers_that_have_their_nodes_for_themselves_may_have_as_much_memory_as_these(
    project: Path, slurm: Engine, options: dict[str, Any]
) -> None:
    """Each of the four cores of a node that has 8000 MiB would have too much, also where a worker uses one of them."""
    (project / "train.py").write_text("import os\nprint(os.uname().nodename)\n")
    found = run("train.py", memory=5, nodes=None, **options)
    assert sorted(found.logs(f"worker-{number}") for number in range(2)) == ["n1\n", "n2\n"]
    found = run("train.py", 3, memory=2.6, nodes=None, **options)
    assert {found.logs(f"worker-{number}") for number in range(3)} == {"n1\n"}
    found = run("train.py", 3, memory=2.6, nodes=2, **options)
    assert {found.logs(f"worker-{number}") for number in range(3)} == {"n1\n", "n2\n"}


def test_workers_of_two_sizes_that_have_their_nodes_for_themselves_find_their_memory_there(
    project: Path, slurm: Engine, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    platform = SlurmPlatform(sbatch_args=("--exclusive",))
    sizes = {"ps-0": Resources(1, 5), "worker-0": Resources(1, 2.6), "worker-1": Resources(1, 2.6)}
    specs = [run.spec(name, process=shell("sleep 600"), resources=size) for name, size in sizes.items()]
    try:
        handles = platform.submit(specs, "key")
        eventually(lambda: {worker.status for worker in platform.poll(handles)} == {Status.RUNNING}, "all run", 60)
        first, *others = platform.poll(handles)
        assert {worker.address for worker in others} == {others[0].address} != {first.address}
    finally:
        platform.close()


def test_nodes_that_have_too_little_memory_for_the_workers_on_each_are_refused_at_once(
    project: Path, slurm: Engine
) -> None:
    with pytest.raises(LaunchRefused, match="no nodes of the partition could ever hold these workers"):
        run("endless.py", memory=5, nodes=1, sbatch_args=("--exclusive",))
    assert slurm.jobs() == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"partition": "nowhere"}, JobError, "There is no partition 'nowhere'"),
        ({"time": "3h"}, JobError, "time is 3h, 180 minutes; main allows 60"),
        ({"time": "soon"}, JobError, "no time limit"),
        ({"cpu": 5}, ResourceError, "asks for 5 cores; the largest node that this platform has .main. has 4"),
        ({"n": 9}, ResourceError, "9 workers ask for 9 cores together; all nodes that this platform has .main. have 8"),
        (
            {"memory": 9},
            ResourceError,
            "asks for 9.07 GB of memory; the largest node that this platform has .main. has 8.38",
        ),
        ({"nvidia_gpu": 1}, ResourceError, "asks for 1 GPUs"),
        ({"nodelist": "n9"}, LaunchRefused, "no node of that name. Slurm says: Invalid node name"),
        ({"constraint": "fast"}, LaunchRefused, "no node has these features. Slurm says: Invalid feature"),
        ({"sbatch_args": ("--output=x",)}, JobError, "is Muster's to say"),
    ],
)
def test_what_can_never_run_is_refused_at_once(
    project: Path, slurm: Engine, options: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run("endless.py", **options)
    assert slurm.jobs() == []
    assert muster.list_runs() == []  # none has begun


def test_nothing_is_refused_for_its_constraint_that_slurm_would_take(
    project: Path, slurm: Engine, tmp_path: Path
) -> None:
    of_nodes = {"n1": "fast,new", "n2": "fast"}
    for node, features in of_nodes.items():
        slurm.run(
            "scontrol", "update", f"NodeName={node}", f"AvailableFeatures={features}", f"ActiveFeatures={features}"
        )
    try:
        found = {
            (constraint, count, cores): asked(constraint, count, cores, tmp_path)
            for constraint in CONSTRAINTS
            for count, cores in ((1, 5), (2, 4), (5, 1))
        }
    finally:
        for node in of_nodes:
            slurm.run("scontrol", "update", f"NodeName={node}", "AvailableFeatures=", "ActiveFeatures=")
    assert not [case for case, (is_refused, is_taken) in found.items() if is_refused and is_taken]
    refused = [
        (count, cores)
        for (constraint, count, cores), (is_refused, _) in found.items()
        if is_refused and constraint == "new"
    ]
    assert refused == [(1, 5), (2, 4), (5, 1)]
    assert [found["[fast*1&new*1]", 2, 4], found["[fast*1&new*1]", 5, 1]] == [(False, True)] * 2


def test_the_script_of_a_plan_is_one_that_slurm_takes(project: Path, slurm: Engine) -> None:
    options = [
        "-p",
        "slurm",
        "-s",
        "processes",
        "--time",
        "30m",
        "--queue-timeout",
        "3600",
        "--sbatch-args=--exclusive",
        "--cpu",
        "2",
        "--memory",
        "1",
        "-n",
        "3",
    ]
    shown = CliRunner().invoke(main, ["plan", "--json", *options, "endless.py"])
    assert shown.exit_code == 0, shown.output
    text = json.loads(shown.output)["submission"]
    assert CliRunner().invoke(main, ["plan", "--submission", *options, "endless.py"]).output == text
    slurm.run("sbatch", "--test-only", given=text)
    assert "#SBATCH --ntasks=3" in text
    assert "#SBATCH --time=0-00:30:00" in text
    assert "#SBATCH --deadline=now+100minutes" in text


def test_parameter_servers_of_another_size_start_with_the_workers_and_are_told_of_by_themselves(
    run: Run, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    platform = SlurmPlatform()
    sizes = {"chief-0": Resources(2, 0.3), "ps-0": Resources(1, 0.1), "worker-0": Resources(2, 0.3)}
    specs = [run.spec(name, process=shell("sleep 600"), resources=size) for name, size in sizes.items()]

    def states() -> dict[str, Worker]:
        return {worker.name: worker for worker in platform.poll(handles)}

    def all_are(*wanted: Status) -> bool:
        return [worker.status for worker in states().values()] == [*wanted]

    try:
        handles = platform.submit(specs, "key")
        (job,) = {line.partition("+")[0] for line in slurm.jobs()}
        eventually(lambda: all_are(*[Status.RUNNING] * 3), "all run", timeout=60)
        nodes = {name: worker.address for name, worker in states().items()}
        assert nodes["chief-0"] == nodes["worker-0"] != nodes["ps-0"]
        platform.stop(handles[2:])
        eventually(lambda: all_are(Status.RUNNING, Status.RUNNING, Status.STOPPED), "one has stopped", timeout=60)
        slurm.run("scancel", f"{job}+1")  # the second part
        eventually(lambda: all_are(Status.RUNNING, Status.FAILED, Status.STOPPED), "its part has ended", timeout=60)
        assert states()["ps-0"].cause is EndCause.CANCELLED
    finally:
        platform.close()
    eventually(lambda: slurm.jobs() == [], "nothing is left", timeout=20)


def test_sizes_that_need_more_nodes_than_there_are_never_wait(project: Path, slurm: Engine) -> None:
    options = ["plan", "-p", "slurm", "--submission", "--memory", "0.5", "--ps", "1", "--ps-memory", "1"]
    text = CliRunner().invoke(main, [*options, "-n", "2", "endless.py"]).output
    slurm.run("sbatch", "--test-only", given=text)
    assert text.count("#SBATCH hetjob") == 1
    refused = CliRunner().invoke(main, ["run", *options[1:3], *options[4:], "-n", "5", "endless.py"])
    assert "Workers of 2 sizes ask for 2 + 1 nodes, as Slurm takes other nodes for each size" in refused.output
    assert slurm.jobs() == []


def test_a_queued_job_that_nobody_waits_for_any_more_goes_by_itself(
    run: Run, slurm: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HERE, "queue", Queue(HERE))
    monkeypatch.setattr("muster.platforms.slurm.script.DEADLINE_MARGIN", -1)  # so that its time is over at once
    slurm.submit("--nodes=2", "--exclusive")
    platform = SlurmPlatform(time="1m")
    handles = platform.submit([run.spec(process=shell("sleep 600"), queue_seconds=1.0)], "key")
    eventually(lambda: platform.poll(handles)[0].status.is_final, "Slurm has dropped it", timeout=60)
    (worker,) = platform.poll(handles)
    assert worker.cause is EndCause.OVERTIME
    assert "Its job's deadline has passed (Slurm says DEADLINE" in str(worker.reason)
    platform.close()


def test_a_session_and_its_guard_killed_together_are_swept_by_the_next(
    project: Path, slurm: Engine, muster_home: Path
) -> None:
    program = (
        "import os, signal; from tests.support import Run, shell; from pathlib import Path\n"
        "from muster.platforms.slurm.platform import SlurmPlatform\n"
        "platform = SlurmPlatform(); run = Run(Path.cwd(), scratch=Path('/tmp/muster-none'))\n"
        "platform.submit([run.spec(process=shell('sleep 600'))], 'key')\n"
        "os.kill(platform._guard.pid, signal.SIGKILL); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = f"{environment()['PYTHONPATH']}{os.pathsep}{Path(__file__).parents[2]}"
    subprocess.run([sys.executable, "-c", program], env=environment(PYTHONPATH=path), check=False)
    assert len(slurm.jobs()) == 1
    (left,) = (muster_home / "slurm").iterdir()
    (project / "train.py").write_text("print('done')\n")
    run("train.py", 1)
    assert not left.exists()
    eventually(lambda: slurm.jobs() == [], "nothing is left", timeout=20)
