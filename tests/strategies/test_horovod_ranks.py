"""Ranks that ``horovodrun`` starts and ranks that agents start: the same either way. None imports TensorFlow."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import muster
import psutil
import pytest
from muster.agent import linux
from muster.errors import LauncherFailed, RunStopped, ScriptFailed, WorkerKilled
from muster.events import Event, EventKind
from muster.platforms import machine

from tests.support import command_line, descendants_of, eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("workers_elsewhere")]

OF_THE_RUN = {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT", "HOROVOD_HOSTNAME"}
LAUNCHERS = ["horovodrun", "agents"]
either_way = pytest.mark.parametrize("launcher", LAUNCHERS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(script: Any, **options: Any) -> muster.Cluster:
    options = {"memory": 0.5, "run_timeout": 60, **options}
    cluster: muster.Cluster = muster.run_cluster(2, worker_script=script, strategy="horovod", **options).cluster
    return cluster


@pytest.fixture
def wait(folder: Path) -> Path:
    """A script whose ranks say that they are ready, and wait."""
    script = folder / "wait.py"
    script.write_text(
        "import time\ndef wait_for_ever():\n    print('ready', flush=True)\n    time.sleep(600)\nwait_for_ever()\n"
    )
    return script


def environments(**options: Any) -> list[dict[str, str]]:
    """Return the variables of each rank that its launcher or its user has set."""

    def told() -> dict[str, str]:
        import os

        of_interest = ("HOROVOD_", "NCCL_", "PYTHONUNBUFFERED", "SECRET", "MUSTER_RANK", "MUSTER_WORLD_SIZE")
        return {name: value for name, value in os.environ.items() if name.startswith(of_interest)}

    values = run(told, **options).result.values
    assert values is not None
    return list(values)


def rendezvous_of(cluster: muster.Cluster) -> int:
    """Process id of its rendezvous server."""
    marked = linux.marked("MUSTER_RUN_ID", cluster.run_id)
    (pid,) = [pid for pid in marked if "horovod_rendezvous.py" in command_line(pid)]
    return pid


def test_agents_give_ranks_the_environment_that_horovodrun_gives_them() -> None:
    found = {}
    for launcher in LAUNCHERS:
        env = {"SECRET": "s", "HOROVOD_CYCLE_TIME": "2"}
        ranks = environments(launcher=launcher, slots=2, env=env)
        assert len({rank["HOROVOD_GLOO_RENDEZVOUS_PORT"] for rank in ranks}) == 1
        hosts = [rank["HOROVOD_HOSTNAME"] for rank in ranks]
        assert hosts[0] == hosts[1] != hosts[2] == hosts[3]
        found[launcher] = [{name: rank[name] for name in rank.keys() - OF_THE_RUN} for rank in ranks]
    assert found["agents"] == found["horovodrun"]
    assert [rank["HOROVOD_RANK"] for rank in found["agents"]] == ["0", "1", "2", "3"]
    assert [(rank["MUSTER_RANK"], rank["MUSTER_WORLD_SIZE"]) for rank in found["agents"]] == [
        (str(rank), "4") for rank in range(4)
    ]


@pytest.mark.parametrize(
    ("launcher", "last_words", "error", "words"),
    [
        (launcher, "raise ValueError('a bad batch')", ScriptFailed, "failed first: ValueError: a bad batch")
        for launcher in LAUNCHERS
    ]
    + [("agents", "os.kill(os.getpid(), 9)", WorkerKilled, "was ended by signal 9 (SIGKILL)")],
)
def test_the_rank_that_failed_is_named_and_the_others_are_ended(
    folder: Path, launcher: str, last_words: str, error: Any, words: str
) -> None:
    (folder / "train.py").write_text(
        f"import os, time\nif os.environ['HOROVOD_RANK'] == '2':\n    {last_words}\ntime.sleep(600)\n"
    )
    with pytest.raises(error) as raised:
        run("train.py", launcher=launcher, slots=2)
    assert f"rank 2 (worker-1) {words}" in raised.value.message
    assert linux.marked("MUSTER_RUN_ID", muster.open_run().run_id) == []


@either_way
def test_each_rank_has_its_log_and_its_stacks_and_all_can_be_stopped(wait: Path, launcher: str) -> None:
    cluster = run(wait, launcher=launcher, slots=2, wait=False)
    eventually(lambda: all(cluster.logs(f"worker-{n}").count("ready") == 2 for n in range(2)), "all run", 30)
    started = EventKind.PROCESS_STARTED
    eventually(
        lambda: [event.kind for event in muster.open_run(cluster.run_id).events()].count(started) == 4,
        "the session knows all ranks",
    )
    stacks = cluster.stacks()
    cluster.stop()
    assert sorted(stacks) == [f"rank {rank} (worker-{rank // 2})" for rank in range(4)]
    assert all("wait_for_ever" in stack for stack in stacks.values())
    with pytest.raises(RunStopped):
        cluster.wait()
    assert linux.marked("MUSTER_RUN_ID", cluster.run_id) == []


def test_a_rendezvous_server_that_is_killed_is_named_and_nothing_is_left(wait: Path) -> None:
    cluster = run(wait, launcher="agents", wait=False)
    eventually(lambda: "ready" in cluster.logs("worker-1"), "they run", 30)
    os.kill(rendezvous_of(cluster), signal.SIGKILL)
    with pytest.raises(LauncherFailed, match="rendezvous on worker-0 itself failed: it ended with signal 9"):
        cluster.wait()
    assert linux.marked("MUSTER_RUN_ID", cluster.run_id) == []


@pytest.mark.usefixtures("only_here")
def test_the_rendezvous_server_listens_on_its_workers_address_alone_and_no_worker_runs_sshd(wait: Path) -> None:
    cluster = run(wait, launcher="agents", wait=False)
    try:
        plan = cluster.plan
        assert plan.launcher is not None
        sockets = psutil.Process(rendezvous_of(cluster)).net_connections("tcp")
        listening = [tuple(found.laddr) for found in sockets if found.status == psutil.CONN_LISTEN]
        assert listening == [(plan.launcher.args[0], plan.servers["worker-0"])]
        eventually(lambda: "rendezvous server listens" in cluster.logs("launcher"), "what the launcher says has come")
        marked = linux.marked("MUSTER_RUN_ID", cluster.run_id)
        assert not [pid for pid in marked if "sshd" in command_line(pid)]
    finally:
        cluster.stop()


def horovodrun_listens_on() -> set[str]:
    """Addresses on which processes of horovodrun listen in this session."""
    found = set()
    for pid in descendants_of(os.getpid()):
        with contextlib.suppress(psutil.NoSuchProcess):  # what logs in to a worker ends by itself
            if "horovod_launcher.py" in command_line(pid):
                sockets = psutil.Process(pid).net_connections("tcp")
                found |= {str(made.laddr[0]) for made in sockets if made.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.usefixtures("only_here")
def test_the_rendezvous_of_horovodrun_listens_on_the_address_of_its_interface_alone(wait: Path) -> None:
    cluster = run(wait, launcher="horovodrun", wait=False, timeout_seconds=600, run_timeout=None)
    try:
        eventually(lambda: "ready" in cluster.logs("worker-0"), "a rank has come to it", timeout=100)
        name = b"HOROVOD_GLOO_RENDEZVOUS_ADDR="
        started_with = set().union(*map(linux.environment_of, linux.marked("MUSTER_RUN_ID", cluster.run_id)))
        (told,) = [text.removeprefix(name).decode() for text in started_with if text.startswith(name)]
        assert horovodrun_listens_on() == {told}
    finally:
        cluster.stop()


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize(
    ("sshd", "why"),
    [(None, "this machine has none"), ("echo 'bad configuration' >&2; exit 1", "its sshd ended by itself")],
)
def test_without_an_sshd_agents_start_the_ranks_and_the_run_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, sshd: str | None, why: str
) -> None:
    if sshd is None:
        monkeypatch.setattr(machine, "SSHD_PATHS", ())
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    else:
        program = folder / "sshd"
        program.write_text(f'#!/bin/sh\n[ "$1" = -V ] && echo OpenSSH_9.2 && exit\n{sshd}\n')
        program.chmod(0o755)
        monkeypatch.setattr(machine, "SSHD_PATHS", (str(program),))
    told: list[Event] = []
    ranks = environments(observers=[told.append])
    assert [rank["HOROVOD_RANK"] for rank in ranks] == ["0", "1"]
    notes = [event.data["text"] for event in told if event.kind is EventKind.NOTE]
    assert [note for note in notes if "agents start the ranks, as horovodrun cannot" in note and why in note]
