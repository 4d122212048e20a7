"""Clusters that never come up: the error says what is missing, where, and what to try, and nothing is left."""

from __future__ import annotations

import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.errors import (
    InterpreterError,
    JobError,
    LaunchRefused,
    MusterError,
    PlatformError,
    PlatformUnsupported,
    ResourceError,
    ServersNotListening,
    WorkersMissing,
)
from muster.platforms import machine
from muster.run.arrival import Arrival
from muster.runtime import clock

from tests.agent.test_full_disk import fill
from tests.faults.scene import SLEEP, Scene
from tests.faults.test_sessions import CELLS, reach
from tests.plain import Plain
from tests.support import needs_horovod


def shorten_start(scene: Scene, monkeypatch: pytest.MonkeyPatch, is_due: Callable[[], bool] = lambda: True) -> None:
    """Have the usual limit of the scene's start, 60 s, end after half a second, once it is due.

    A limit that is short itself would also be that of the launch, and of what a busy machine delays. Runs before and
    after it on the same pool keep their limit.
    """
    usual = Arrival.deadline

    def shortened(arrival: Arrival) -> float | None:
        deadline = usual(arrival)
        if scene.recorded.run_id.rpartition("-")[0].endswith("-looks"):
            return deadline
        return deadline - 59.5 if deadline and is_due() else clock.now() + 0.05  # when it is asked for again

    monkeypatch.setattr(Arrival, "deadline", shortened)


def test_workers_that_never_say_hello_are_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_start(scene, monkeypatch)
    monkeypatch.setattr(machine, "SSHD_PATHS", (scene.fake_sshd(),))
    started = time.monotonic()
    with pytest.raises(WorkersMissing, match="2 of 2 workers .* 60 s: worker-0 and worker-1 are") as raised:
        scene.run(SLEEP, strategy=Plain(needs_ssh=True))
    assert time.monotonic() - started < 20
    assert raised.value.worker == "worker-0"
    assert "timeout_seconds" in str(raised.value.advice)
    assert scene.recorded.status == "failed"


@pytest.mark.slow
def test_agents_that_do_not_react_are_ended_all_the_same(scene: Scene) -> None:
    notebook = reach(scene, "connecting")
    agents = scene.agents()
    scene.kill(*agents, signum=signal.SIGSTOP)
    notebook.interrupt()
    assert notebook.outcome()["raised"] == "RunInterrupted"
    scene.assert_nothing_left(within=0.5)


def test_a_server_that_never_listens_is_named(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def are_ready() -> bool:
        return sum("ready" in log.read_text() for log in scene.home.glob("runs/*/logs/worker-*.log")) == 2

    shorten_start(scene, monkeypatch, are_ready)
    with pytest.raises(ServersNotListening, match="worker-0 and worker-1 were not listening on their ports") as raised:
        scene.run(SLEEP, strategy=Plain(listens=True))
    assert raised.value.worker == "worker-0"
    assert "ready" in str(raised.value.details)


def test_an_sshd_that_does_not_start_is_shown_with_its_words(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SSHD_PATHS", (scene.fake_sshd("echo 'bad configuration' >&2; exit 1"),))
    with pytest.raises(LaunchRefused, match="worker-0 did not come up: its sshd ended by itself.*\n.*bad config"):
        scene.run(SLEEP, n_workers=1, strategy=Plain(needs_ssh=True))


def test_a_session_address_that_is_taken_is_refused(scene: Scene) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(JobError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            scene.run(SLEEP, session_address=f"127.0.0.1:{port}")


def test_ports_that_are_all_taken_are_refused(scene: Scene) -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MusterError, match=rf"worker-0 .*\b{port}\b"):
            scene.run(SLEEP, n_workers=1, worker_ports=(port, port))


@needs_horovod
@pytest.mark.parametrize("missing", ["ssh", "sshd"])
def test_horovodrun_without_openssh_says_what_to_install(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    if missing == "ssh":
        monkeypatch.setenv("PATH", str(scene.folder))
    else:
        monkeypatch.setattr(machine, "SSHD_PATHS", ())
        (scene.folder / "ssh").symlink_to("/bin/true")
        monkeypatch.setenv("PATH", str(scene.folder))
    with pytest.raises(PlatformUnsupported) as raised:
        scene.run(SLEEP, strategy="horovod", launcher="horovodrun")
    assert "openssh-server" in str(raised.value.advice)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"n_workers": 0}, JobError, "n_workers is 0"),
        ({"n_workers": 10**9}, JobError, "n_workers is 1000000000"),
        ({"memory": 1e6}, ResourceError, "each worker asks for .* of memory; this machine has"),
        ({"cpu": 10_000}, ResourceError, "each worker asks for 10000 cores; this machine has"),
        ({"nvidia_gpu": 800}, ResourceError, "800 GPUs; this machine has"),
        ({"env": {"A=B": "secret"}}, JobError, "'A=B' has an impossible name"),
        ({"env": {"A": "secret" * 400_000}}, JobError, "'A' has 2400002 bytes, and Linux gives a process at most"),
        ({"args": ["secret" * 400_000]}, JobError, "An argument of the script has 2400000 bytes, and Linux gives"),
        ({"env": {"KEY": "sec\0ret"}}, JobError, "'KEY' has a NUL character"),
        ({"args": ["a\0b"]}, JobError, "NUL character"),
        ({"env": {"KEY": "sec\ud800ret"}}, JobError, "'KEY' has a lone surrogate"),
        ({"env": {"\ud800": "secret"}}, JobError, "has a lone surrogate"),
        ({"args": ["\udfff"]}, JobError, "a lone surrogate"),
        ({"args": ["secret" * 10_000] * 60}, JobError, "arguments and variables have .* bytes"),
        ({"env": {f"A{number}": "secret" * 10_000 for number in range(60)}}, JobError, "variables have .* bytes"),
        ({"python": "/no/such/python"}, InterpreterError, "no interpreter '/no/such/python'"),
        ({"python": "/bin/false"}, InterpreterError, "/bin/false is no usable Python"),
        ({"python": "/bin/echo"}, InterpreterError, "/bin/echo is no usable Python"),
        ({"strategy": Plain(requires=("no_such_package",))}, InterpreterError, "has no no_such_package"),
    ],
)
def test_what_cannot_be_is_refused(scene: Scene, options: dict[str, Any], error: type[MusterError], words: str) -> None:
    with pytest.raises(MusterError, match=words) as raised:
        muster.run_cluster(**{"n_workers": 1, "worker_script": scene.script(SLEEP), "strategy": Plain(), **options})
    assert type(raised.value) is error
    assert "sec" not in str(raised.value)


def test_a_home_that_cannot_be_written_is_an_error(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with monkeypatch.context() as home:  # the scene looks for what is left in its own home
        home.setenv("MUSTER_HOME", str(tmp_path / "file"))
        with pytest.raises(PlatformError, match="The folders of the run cannot be made"):
            scene.run(SLEEP)


def test_a_disk_without_room_keeps_nothing_of_a_run(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(64)
    fill(disk)
    with monkeypatch.context() as home:
        home.setenv("MUSTER_HOME", str(disk))
        with pytest.raises(PlatformError, match="The folders of the run cannot be made"):
            scene.run(SLEEP)
    assert not list(disk.glob("runs/*"))


@pytest.mark.parametrize("cell", ["connecting", "starting", pytest.param("horovod", marks=pytest.mark.horovod)])
@pytest.mark.slow
def test_an_agent_that_is_killed_on_the_way_up_is_named(scene: Scene, cell: str) -> None:
    scene.script(SLEEP)
    notebook = scene.notebook(CELLS[cell]) if cell == "horovod" else reach(scene, cell)
    scene.wait_for_phase("starting" if cell == "horovod" else cell)
    killed = scene.kill(scene.agents()[0] if cell == "connecting" else "agent worker-0")
    outcome = notebook.outcome()
    assert outcome["raised"] == ("LaunchRefused" if cell == "connecting" else "WorkerLost")
    assert "Its agent was ended by SIGKILL" in outcome["text"]
    print(f"raised after {outcome['at'] - killed:.2f} s")


@pytest.mark.parametrize("phase", ["connecting", pytest.param("starting", marks=pytest.mark.horovod)])
@pytest.mark.slow
def test_a_launcher_that_is_killed_on_the_way_up_is_named(scene: Scene, phase: str) -> None:
    scene.fake_sshd()
    scene.script(SLEEP)
    cell = CELLS["horovod"]
    if phase == "connecting":
        cell = CELLS["connecting"].replace("Plain(needs_ssh=True)", '"horovod"')
    notebook = scene.notebook(cell)
    scene.wait_for_phase(phase)
    killed = scene.kill("launcher")
    outcome = notebook.outcome()
    assert outcome["raised"] == "LauncherFailed"
    assert "SIGKILL" in outcome["text"]
    print(f"raised after {outcome['at'] - killed:.2f} s")
