"""The surroundings of a session disturb no run, and a run gives nothing away to them."""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.agent import linux
from muster.errors import JobError, PlatformError, RunStopped, ScriptFailed
from muster.events import Event
from muster.platforms.local import LocalPlatform
from muster.pools.endpoint import Endpoint
from muster.records import lookup

from tests.faults.scene import SLEEP, Scene, anywhere
from tests.faults.test_sessions import CELLS, reach
from tests.plain import Plain
from tests.support import command_line, eventually, guard_of, is_gone

STRATEGIES = ["plain", pytest.param("horovod", marks=[pytest.mark.slow, pytest.mark.horovod])]


def options_of(strategy: str) -> dict[str, Any]:
    return {"strategy": "horovod"} if strategy == "horovod" else {}


@anywhere
@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_session_that_is_suspended_keeps_its_workers(scene: Scene, strategy: str) -> None:
    scene.script("import time; print('ready', flush=True); time.sleep(3); print('done')")
    notebook = scene.notebook(CELLS["training" if strategy == "plain" else "horovod"].replace("n_ps=1, ", ""))
    scene.wait_for_phase("training")
    os.kill(notebook.process.pid, signal.SIGSTOP)
    time.sleep(4)
    os.kill(notebook.process.pid, signal.SIGCONT)
    assert notebook.outcome()["raised"] is None
    assert all(scene.recorded.logs(worker) == "ready\ndone\n" for worker in scene.recorded.worker_names)


@pytest.mark.slow
def test_a_suspended_session_does_not_take_its_own_silence_for_a_stall(scene: Scene) -> None:
    scene.script("import time\nfor _ in range(100): print('ready', flush=True); time.sleep(0.1)")
    cell = CELLS["training"].replace("Plain()", "Plain(), stall_seconds=6").replace("n_ps=1, ", "")
    notebook = scene.notebook(cell)
    scene.wait_for_phase("training")
    os.kill(notebook.process.pid, signal.SIGSTOP)
    time.sleep(8)
    os.kill(notebook.process.pid, signal.SIGCONT)
    outcome = notebook.outcome()
    assert outcome["raised"] is None, outcome["text"]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_clusters_of_one_session_do_not_disturb_each_other(scene: Scene, strategy: str) -> None:
    first = scene.start(name="first", **options_of(strategy))
    scene.wait_for_phase("training")
    with pytest.raises(ScriptFailed):
        scene.run("raise ValueError", name="second", **options_of(strategy))
    third = muster.run_cluster(
        2, worker_script=scene.script("print('hello')", "third.py"), **{"strategy": Plain(), **options_of(strategy)}
    ).cluster
    assert third.result.status == "succeeded"
    assert first.is_running
    assert len(first.stacks()) == 2
    first.stop()
    with pytest.raises(RunStopped):
        first.wait()


def test_two_clusters_on_one_platform_object_do_not_disturb_each_other(scene: Scene) -> None:
    platform = LocalPlatform()
    first = scene.start(name="first", platform=platform)
    scene.wait_for_phase("training")
    second = scene.start("print('hello')", name="second", platform=platform)
    assert second.wait().status == "succeeded"
    assert first.is_running
    assert len(first.stacks()) == 2
    first.stop()
    assert not is_gone(guard_of(platform.list()[0].id)), "it is the caller's, and lives on"
    platform.close()


@pytest.mark.slow
@pytest.mark.horovod
def test_clusters_of_two_sessions_do_not_disturb_each_other(scene: Scene) -> None:
    one = reach(scene, "horovod")
    other = scene.notebook(CELLS["horovod"])
    eventually(lambda: len(lookup.list_runs()) == 2, "both run")
    scene.wait_for_phase("training")
    one.interrupt()
    assert one.outcome()["raised"] == "RunInterrupted"
    assert [run.status for run in lookup.list_runs()] == ["running", "stopped"]
    assert all(linux.stat(scene.pid(f"rank {rank}")) for rank in (0, 1))
    other.interrupt()
    assert other.outcome()["raised"] == "RunInterrupted"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_folders_with_a_space_in_their_names(
    scene: Scene, strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, home, temp = tmp_path / "my proj", tmp_path / "my home", tmp_path / "my tmp"
    for folder in (project / "data", home, temp):
        folder.mkdir(parents=True)
    for name in filter(Path.exists, scene.home.glob("horovod-*")):
        (home / name.name).write_bytes(name.read_bytes())
    monkeypatch.chdir(project)
    monkeypatch.setenv("MUSTER_HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temp))
    monkeypatch.setattr("tempfile.tempdir", str(temp))
    Path("helper.py").write_text("VALUE = 42")
    Path("data/rows.csv").write_text("1,2,3")
    Path("my train.py").write_text(
        "import helper, os, sys, tempfile\n"
        "print(helper.VALUE, open('data/rows.csv').read(), sys.argv[1:], os.getcwd())\n"
        "tempfile.TemporaryFile().write(b'x')\n"
    )
    cluster = muster.run_cluster(
        2, worker_script="my train.py", args=["a b", "$HOME", "'"], **{"strategy": Plain(), **options_of(strategy)}
    ).cluster
    wanted = f"42 1,2,3 {['a b', '$HOME', chr(39)]} {project}\n"
    assert [cluster.logs(worker) for worker in ("worker-0", "worker-1")] == [wanted, wanted]
    assert not list(temp.glob("muster-*"))
    assert not list(Path("/tmp").glob(f"muster-*{cluster.run_id}*"))


@pytest.mark.slow
@pytest.mark.horovod
def test_a_hostile_ssh_configuration_does_not_matter(scene: Scene) -> None:
    """The account's own is not to be touched; the system's, which is read in the same way, is mounted over."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount")
    hostile = scene.folder / "ssh"
    hostile.mkdir()
    (hostile / "ssh_config").write_text("Host *\n Port 1\n User nobody\n ProxyCommand /bin/false\n RequestTTY force\n")
    scene.script("print('hello')", "hello.py")
    scene.script(
        """
        import muster
        print(muster.run_cluster(2, worker_script="hello.py", strategy="horovod").cluster.logs("worker-1"))
        """,
        "cell.py",
    )
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"mount --bind {hostile} /etc/ssh && exec {sys.executable} cell.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "SSH_AUTH_SOCK": str(scene.folder / "no agent")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "hello" in done.stdout, done.stderr


@contextlib.contextmanager
def all_command_lines() -> Iterator[set[str]]:
    """Command lines of all processes that are seen meanwhile, by looking all the time."""
    found: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            found.update(command_line(pid) for pid in linux.all_pids())

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_secrets_are_on_no_command_line_and_in_no_record(
    scene: Scene, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, inherited = secrets.token_hex(16), secrets.token_hex(16)
    monkeypatch.setenv("CLOUD_PASSWORD", inherited)
    script = f"""
        import hashlib, os
        secrets = os.environ["API_KEY"] + os.environ["CLOUD_PASSWORD"]
        assert hashlib.sha256(secrets.encode()).hexdigest() == "{_digest(given + inherited)}"
        print("ready", flush=True)
        raise ValueError("wrong")
        """
    with all_command_lines() as seen, pytest.raises(ScriptFailed) as raised:
        cluster = scene.start(script + "\n", env={"API_KEY": given}, **options_of(strategy))
        cluster.wait()
    assert any("train.py" in line for line in seen)
    records = [path.read_text(errors="replace") for path in scene.home.rglob("*") if path.is_file()]
    assert any("ready" in text for text in records)
    places = [*seen, *records, str(raised.value), repr(raised.value), raised.value.__dict__.__repr__()]
    for secret in (given, inherited, "PRIVATE KEY", "BEGIN CERTIFICATE"):
        assert not [place for place in places if secret in place]
    started = [event.data for event in scene.events("run_requested")]
    assert started[0]["job"]["env"] == ["API_KEY"]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_the_token_is_on_no_command_line_and_in_no_record(scene: Scene) -> None:
    tokens: list[str] = []
    original = Endpoint.__init__

    def remember(self: Endpoint, *args: object, **options: object) -> None:
        original(self, *args, **options)  # type: ignore[arg-type]
        tokens.append(self._token("worker-0", 0))

    with pytest.MonkeyPatch.context() as patch, all_command_lines() as seen:
        patch.setattr(Endpoint, "__init__", remember)
        cluster = scene.run("import os; print(dict(os.environ))")
    records = [path.read_text(errors="replace") for path in scene.home.rglob("*") if path.is_file()]
    assert tokens
    assert not [place for place in (*seen, *records, repr(cluster), repr(cluster.plan)) if tokens[0] in place]


def test_an_observer_that_fails_is_dropped(scene: Scene) -> None:
    seen: list[Event] = []

    def fails(event: Event) -> None:
        seen.append(event)
        raise RuntimeError("broken")

    cluster = scene.run("print('hello')", observers=[fails])
    assert cluster.result.status == "succeeded"
    assert len(seen) == 1


def test_an_observer_may_stop_its_run_but_not_wait_for_it(scene: Scene) -> None:
    waited: list[str] = []

    def stops(event: Event) -> None:
        if event.kind == "output":
            try:
                cluster.wait()
            except JobError as error:
                waited.append(str(error))
            cluster.stop()

    cluster = scene.start("import time\nwhile True: print('ready', flush=True); time.sleep(0.1)")
    cluster.subscribe(stops)
    with pytest.raises(RunStopped, match="by an observer"):
        cluster.wait(timeout=10)
    assert "cannot wait" in waited[0]


def test_the_journal_is_valid_json_from_the_request_to_the_end(scene: Scene) -> None:
    with pytest.raises(ScriptFailed):
        scene.run("raise ValueError('\\udcff\\x00 \\u2028 done')")
    lines = (scene.recorded.run_dir / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert events[0]["kind"] == "run_requested"
    assert events[-1]["kind"] == "run_ended"
    phases = [event["phase"] for event in events if event["kind"] == "run_phase"]
    assert phases == ["launching", "connecting", "starting", "training", "ending"]


def test_a_record_that_is_deleted_meanwhile_does_not_keep_anybody_waiting(scene: Scene) -> None:
    cluster = scene.start()
    scene.remember()
    shutil.rmtree(cluster.run_dir)
    cluster.stop()
    with pytest.raises(RunStopped):
        cluster.wait(timeout=5)


@pytest.mark.parametrize("leave", ["sys.exit(0)", "raise ValueError", ""])
def test_a_session_that_leaves_its_cluster_alone_stops_it(scene: Scene, leave: str) -> None:
    scene.script(SLEEP)
    cell = CELLS["training"].replace("strategy=Plain()", "strategy=Plain(), wait=False") + f"\n{leave}\n"
    notebook = scene.notebook("import sys\n" + cell.replace("\n        ", "\n"))
    notebook.outcome()
    scene.assert_nothing_left(within=0.5)
    assert scene.recorded.status == "stopped"


def test_a_forked_child_of_the_session_does_not_end_its_run(scene: Scene) -> None:
    cluster = scene.start()
    scene.wait_for_phase("training")
    pid = os.fork()
    if pid == 0:
        atexit._run_exitfuncs()  # as at the end of a child that was not made by multiprocessing
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert cluster.is_running
    assert len(cluster.stacks()) == 2
    cluster.stop()


def test_a_full_disk_is_named(scene: Scene, small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_disk = small_disk(64)
    monkeypatch.setenv("MUSTER_HOME", str(tiny_disk))
    (tiny_disk / "ballast").write_bytes(bytes(60 << 10))
    with pytest.raises(PlatformError, match="No space left on device") as raised:
        muster.run_cluster(1, worker_script=scene.script("print()"), strategy=Plain())
    assert "MUSTER_HOME" in str(raised.value)
