"""Runs that live in a process of their own: whoever asked for them may end, and any process of the user attaches."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from click.testing import CliRunner
from muster.commands.main import main
from muster.dashboard.follow import follow
from muster.errors import JobError, PlatformError, ResourceError, RunInterrupted, RunLost, RunStopped, ScriptFailed
from muster.events import Event, EventKind
from muster.job import Resources
from muster.platforms.local import LocalPlatform
from muster.records import control, lookup, sessions
from muster.records.runs import Run
from muster.run import controller
from muster.run.check import check
from muster.run.request import RunRequest
from muster.text.arguments import ArgumentText

from tests.support import IMPORT_PATH, eventually

SESSION = """
import muster, os, time
print(muster.run_cluster(2, strategy="processes", worker_script="train.py", detach="5m", dashboard=False,
                         env={"SECRET": os.environ.pop("GIVEN")}).run_id, flush=True)
time.sleep(600)
"""
WAITS = """
import os, pathlib, time
print("trains", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory, with a script that waits for a file; in the end no run is left in it."""
    (tmp_path / "train.py").write_text(WAITS)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for run in lookup.list_runs():
        with contextlib.suppress(muster.MusterError):
            run.stop(now=True)


def detach() -> Run:
    """A run of the script, detached, once it trains."""
    run = muster.run_cluster(2, strategy="processes", worker_script="train.py", detach=300, dashboard=False)
    await_training(run)
    return run


def await_training(run: Run) -> None:
    """Wait until every worker has printed what the script says."""
    eventually(lambda: [path.read_text() for path in run.run_dir.glob("logs/*.log")] == ["trains\n"] * 2, "it trains")


def processes_of(run: Run) -> list[int]:
    """All processes that belong to the run, its controller among them."""
    marked = f"MUSTER_RUN_ID={run.run_id}".encode()
    found = [controller_of(run)] if run.status == "running" else []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if marked in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def controller_of(run: Run) -> int:
    """Process id of a run's controller."""
    return int(next(run.events()).data["session"]["pid"])


def test_it_outlives_the_session_that_asked_for_it(here: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "GIVEN": "swordfish"}
    session = subprocess.Popen(
        [sys.executable, "-c", SESSION], cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, text=True,
    )  # fmt: skip
    with session:
        assert session.stdout is not None
        run = muster.attach(session.stdout.readline().strip() or "none", dashboard=False)
        try:
            await_training(run)
        finally:
            os.killpg(session.pid, signal.SIGKILL)  # as a notebook's server restarts a kernel
    assert run.status == "running"
    assert run.detached_until == pytest.approx(time.time() + 300, abs=60)
    command_line = Path(f"/proc/{controller_of(run)}/cmdline").read_bytes()
    assert b"swordfish" not in command_line
    (here / "go").touch()
    result = run.wait(timeout=60)
    assert (result.status, dict(result.exit_codes)) == ("succeeded", {"rank 0": 0, "rank 1": 0})
    eventually(lambda: not processes_of(run), "nothing is left of it")
    assert not [path for path in run.run_dir.rglob("*") if path.is_file() and b"swordfish" in path.read_bytes()]
    assert (run.run_dir / "controller.log").read_bytes() == b""


def test_any_process_stops_it(here: Path) -> None:
    run = detach()
    assert "train.py" in "".join(run.stacks().values())
    listed = CliRunner().invoke(main, ["runs"]).output
    assert f"{run.run_id}  (here, detached until" in listed
    assert CliRunner().invoke(main, ["stop", run.run_id]).exit_code == 0
    with pytest.raises(RunStopped, match="by request"):
        run.wait(timeout=10)
    eventually(lambda: not processes_of(run), "nothing is left of it")


@pytest.mark.slow
def test_it_ends_when_its_time_is_over(here: Path) -> None:
    run = muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="2s", dashboard=False)
    with pytest.raises(RunStopped, match="the time that it was detached for is over"):
        run.wait(timeout=60)
    assert run.seconds < 30
    eventually(lambda: not processes_of(run), "nothing is left of it")


def test_nothing_is_left_when_its_controller_is_killed(here: Path) -> None:
    run = detach()
    os.kill(controller_of(run), signal.SIGKILL)
    with pytest.raises(RunLost, match="was lost"):
        run.wait(timeout=60)
    eventually(lambda: not processes_of(run), "nothing is left of it")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["logout", "closed laptop"])
def test_neither_a_logout_nor_a_closed_laptop_ends_it(here: Path, how: str) -> None:
    run = detach()
    pid = controller_of(run)
    if how == "logout":
        os.kill(pid, signal.SIGHUP)
    else:  # everything of it stands still, workers as well
        everything = processes_of(run)
        for each in everything:
            os.kill(each, signal.SIGSTOP)
        time.sleep(4)
        for each in everything:
            os.kill(each, signal.SIGCONT)
    time.sleep(1)
    assert run.status == "running"
    (here / "go").touch()
    assert run.wait(timeout=60).status == "succeeded"
    eventually(lambda: not processes_of(run), "nothing is left of it")


def test_a_failure_is_told_to_whoever_waits_as_to_a_session(here: Path) -> None:
    (here / "train.py").write_text("raise ValueError('no such data')")
    run = muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="5m", dashboard=False)
    with pytest.raises(ScriptFailed, match="no such data") as raised:
        run.wait(timeout=60)
    assert raised.value.worker == "worker-0"
    assert "train.py" in (raised.value.details or "")
    attached = CliRunner().invoke(main, ["attach", run.run_id])
    assert attached.exit_code == 1
    assert "no such data" in attached.output


def test_what_a_function_returns_is_there_for_any_session(here: Path) -> None:
    def train(factor: int) -> dict[str, int]:
        return {"product": factor * 7}

    run = muster.run_cluster(
        1, strategy="processes", worker_script=train, kwargs={"factor": 6}, detach="5m", dashboard=False
    )
    with pytest.raises(JobError, match="has not ended"):
        _ = run.values
    assert run.wait(timeout=60).value == {"product": 42}
    assert (run.values, lookup.open_run().values) == ([{"product": 42}], [{"product": 42}])


def test_the_command_line_detaches_and_attaches(here: Path) -> None:
    muster_command = [sys.executable, "-m", "muster"]
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "MUSTER_DASHBOARD": "plain"}
    asked = subprocess.run(
        [*muster_command, "run", "-s", "processes", "--detach", "5m", "--json", "train.py"],
        env=environment, capture_output=True, check=True,
    )  # fmt: skip
    run = lookup.open_run(json.loads(asked.stdout)["id"])
    watching = subprocess.Popen([*muster_command, "attach"], env=environment, stdout=subprocess.PIPE, text=True)
    with watching:
        assert watching.stdout is not None
        assert any("training" in line for line in watching.stdout)
        watching.send_signal(signal.SIGINT)
    assert run.status == "running"  # only the view has ended
    (here / "go").touch()
    ended = subprocess.run([*muster_command, "attach", run.run_id], env=environment, capture_output=True, text=True)
    assert (ended.returncode, run.status) == (0, "succeeded"), ended


@pytest.mark.parametrize("wanted", ["8 parsecs", "", 0, -1, "h", True, float("inf"), "4000000d"])
def test_a_time_that_is_none_is_refused(here: Path, wanted: object) -> None:
    with pytest.raises(JobError, match="it must be (a time span|longer than 0 s, and ten years at most)"):
        muster.run_cluster(1, strategy="processes", worker_script="train.py", detach=wanted)  # type: ignore[call-overload]
    assert not lookup.list_runs()


def test_python_is_told_to_find_no_modules_in_the_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    (here / "go").touch()
    run = muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="5m", dashboard=False)
    assert run.wait(timeout=60).status == "succeeded"


def test_a_strategy_may_be_of_a_module_of_the_users(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "own_strategy.py").write_text(
        "from muster.strategies.processes import Processes\nclass Own(Processes):\n    name = 'own'\n"
    )
    monkeypatch.syspath_prepend(str(here))
    own = importlib.import_module("own_strategy").Own()
    (here / "go").touch()
    run = muster.run_cluster(1, strategy=own, worker_script="train.py", detach="5m", dashboard=False)
    assert run.wait(timeout=60).status == "succeeded"
    assert run.strategy == "own"


def test_it_is_stopped_where_nobody_waits_for_it_to_begin(here: Path) -> None:
    request = controller._pickle(check(RunRequest("train.py", strategy="processes", detach="5m")))
    command = [sys.executable, "-c", controller.PROGRAM, str(controller.PACKAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        asked.stdout.close()
        asked.stdin.write(request)
    run = eventually(lookup.list_runs, "it begins", 60)[0]
    with pytest.raises(RunStopped, match="nobody waited"):
        run.wait(timeout=60)


HANGS = """
import os, pathlib, signal, sys
sys.path.insert(0, sys.argv[1])
from muster.run import controller, execution
def hang():
    {before}
    pathlib.Path({told!r}).write_text(str(os.getpid()))
    open({pipe!r})
execution.make_scratch = hang
controller.main()
"""
DEAF = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"


def hanging(here: Path, before: str = "pass") -> tuple[str, Path]:
    """A program of a controller that hangs before it has begun, and the file that it writes its process id to."""
    pipe, told = here / "pipe", here / "hangs"
    os.mkfifo(pipe)
    return HANGS.format(before=before, told=str(told), pipe=str(pipe)), told


def await_end(pid: int) -> None:
    """Wait until a process of another parent has ended."""
    try:
        eventually(lambda: sessions.start_time(pid) is None, "it has ended")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["pass", DEAF], ids=["hangs", "is deaf"])
def test_a_controller_that_does_not_begin_in_time_is_ended(
    here: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    program, told = hanging(here, before)
    monkeypatch.setattr(controller, "PROGRAM", program)
    monkeypatch.setattr(controller, "SECONDS_TO_BEGIN", 12.0)
    monkeypatch.setattr(controller, "SECONDS_TO_END", 1.0)
    with pytest.raises(PlatformError, match="had not begun after 12 s"):
        muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="5m", dashboard=False)
    await_end(int(told.read_text()))
    assert not lookup.list_runs()


@pytest.mark.slow
def test_an_interrupt_ends_a_controller_that_has_not_begun(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, told = hanging(here)
    monkeypatch.setattr(controller, "PROGRAM", program)

    def interrupt() -> None:
        eventually(lambda: told.exists() and told.read_text(), "it hangs", 60)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(RunInterrupted, match="was interrupted; nothing of it is left") as caught:
        muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="5m", dashboard=False)
    assert caught.value.__suppress_context__, "no frames of what was interrupted"
    await_end(int(told.read_text()))


def test_sigterm_ends_a_controller_that_hangs_before_it_has_begun(here: Path) -> None:
    program, told = hanging(here)
    request = controller._pickle(check(RunRequest("train.py", strategy="processes", detach="5m")))
    command = [sys.executable, "-c", program, str(controller.PACKAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as asked:
        assert asked.stdin is not None
        asked.stdin.write(request)
        asked.stdin.close()
        pid = int(eventually(lambda: told.exists() and told.read_text(), "it hangs", 60))
        os.kill(pid, signal.SIGTERM)
        await_end(pid)
    assert not lookup.list_runs()


def test_it_takes_the_place_of_a_run_of_its_name_in_this_session(here: Path) -> None:
    options: dict[str, Any] = {"strategy": "processes", "worker_script": "train.py", "name": "trial"}
    cluster = muster.run_cluster(1, wait=False, dashboard=False, **options).cluster
    run = muster.run_cluster(1, detach="5m", dashboard=False, **options)
    assert not cluster.is_running
    assert run.status == "running"


@pytest.mark.slow
def test_a_process_without_a_standard_output_detaches(here: Path) -> None:
    program = """
import os, pathlib, sys
for descriptor in range(3):
    os.close(descriptor)
sys.stdin = sys.stdout = sys.stderr = None
import muster
run = muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="5m")
pathlib.Path("began").write_text(run.run_id)
"""
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)
    assert lookup.open_run().run_id == (here / "began").read_text()


@pytest.mark.slow
def test_a_script_that_ends_before_its_run_gives_the_terminal_back(here: Path) -> None:
    program = """
import time, muster
run = muster.run_cluster(1, strategy="processes", worker_script="train.py", detach="5m")
time.sleep(1)
"""
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "MUSTER_DASHBOARD": "rich", "TERM": "xterm"}
    shown = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, timeout=60, stdout=subprocess.PIPE
    ).stdout
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") > 0  # the cursor is hidden, and shown again


def test_what_lives_in_this_session_cannot_be_handed_on(here: Path) -> None:
    with pytest.raises(JobError, match="platform object"):
        muster.run_cluster(1, strategy="processes", worker_script="train.py", detach=9, platform=LocalPlatform())
    with pytest.raises(JobError, match="observers="):
        muster.run_cluster(1, strategy="processes", worker_script="train.py", detach=9, observers=iter([print]))
    assert not lookup.list_runs()


def test_a_run_of_the_session_is_not_moved_out_of_it_and_that_is_said(here: Path) -> None:
    with pytest.raises(JobError, match="No run"):
        muster.detach("of nobody")
    cluster = muster.run_cluster(1, strategy="processes", worker_script="train.py", dashboard=False, wait=False).cluster
    try:
        with pytest.raises(JobError, match=f"Run {cluster.run_id} cannot be moved") as refused:
            muster.detach()
        assert "detach=" in str(refused.value)
        with pytest.raises(JobError, match="No run called 'another'"):
            muster.detach("another")
        assert cluster.is_running
    finally:
        cluster.stop()


def test_of_a_run_that_could_not_be_detached_it_is_said_how_it_could(here: Path) -> None:
    """No run of a pool takes ``detach=``: so it is not advised to be begun again with it, as it was."""
    with muster.pool(1) as pool:
        pool.run_cluster(strategy="processes", worker_script="train.py", dashboard=False, wait=False)
        with pytest.raises(JobError) as refused:
            muster.detach()
    advice = str(refused.value.advice)
    assert 'muster.run_cluster(..., detach="8h")' in advice
    assert "workers of its own" in advice


def test_what_is_refused_is_refused_as_without_detaching(here: Path) -> None:
    different: list[dict[str, Any]] = [{"cpu": 4096}, {"project": "nowhere"}, {"platform": "hosts", "hosts": ()}]
    detached: dict[str, Any] = {"detach": 300}
    for options in different:
        raised = []
        for more in ({}, detached):
            with pytest.raises(muster.MusterError) as refused:
                muster.run_cluster(1, strategy="processes", worker_script="train.py", **options, **more)
            raised.append((type(refused.value), refused.value.message, str(refused.value.advice)))
        assert raised[0] == raised[1]


def test_what_a_controller_alone_finds_keeps_its_kind_and_its_advice(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = check(
        RunRequest(script="train.py", n_workers=1, strategy="processes", detach=300, resources=Resources(cpu=4096))
    )
    with pytest.raises(ResourceError, match="4096 cores") as raised:
        controller.start(checked)
    assert isinstance(raised.value.advice, ArgumentText)


@pytest.mark.slow
def test_all_that_attach_see_the_same_from_the_first_event_on(here: Path) -> None:
    """Two notebooks: whatever one is told the other is, whenever it came; and what one does the other sees."""
    run = detach()
    told: list[list[tuple[str, str | None, float]]] = [[], []]
    leave = [threading.Event(), threading.Event()]

    def watch(number: int) -> None:
        def note(event: Event) -> None:
            if event.kind not in (EventKind.USAGE, EventKind.OUTPUT):  # which each asks for when it likes
                told[number].append((str(event.kind), event.worker, event.time))

        follow(lookup.open_run(run.run_id), note)
        leave[number].set()

    threading.Thread(target=watch, args=(0,), daemon=True).start()
    eventually(lambda: len(told[0]) > 5, "the first sees it")
    threading.Thread(target=watch, args=(1,), daemon=True).start()
    eventually(lambda: told[1][:3] == told[0][:3] != [], "the second sees its beginning")
    assert told[0][0][0] == "run_requested"
    first, second = muster.attach(run, dashboard=False), muster.attach(run.run_id, dashboard=False)
    assert {*first.stacks()} == {*second.stacks()} == {"rank 0 (worker-0)", "rank 1 (worker-1)"}
    assert first.logs("worker-0") == second.logs("worker-0") == "trains\n"
    second.stop()
    assert all(ended.wait(30) for ended in leave)
    assert told[0] == told[1]
    assert told[0][-1][0] == "run_ended"
    assert first.status == second.status == "stopped"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_others_who_may_read_the_folder_see_records_and_can_ask_nothing(here: Path) -> None:
    run = detach()
    told = control.control_file(run.run_dir)
    asked = Path(json.loads(told.read_text())["socket"])
    for folder in (run.run_dir, *run.run_dir.parents, *asked.parents):
        if folder.stat().st_mode & 0o777 == 0o700:
            folder.chmod(0o755)  # as somebody does who lets others read the records; here even where the socket is
    (run.run_dir / "events.jsonl").chmod(0o644)
    program = f"""
import os, socket
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(open({str(run.run_dir / "events.jsonl")!r}).readline()[:200].count("run_requested"))
for ask in (lambda: open({str(told)!r}), lambda: socket.socket(socket.AF_UNIX).connect({str(asked)!r})):
    try:
        ask()
    except PermissionError:
        print("refused")
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert said.stdout.split() == ["1", "refused", "refused"], said.stderr
