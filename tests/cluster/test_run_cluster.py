"""run_cluster and Cluster on real workers, with a strategy that needs neither TensorFlow nor Horovod."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.checks.script import make_script
from muster.errors import JobError, RunStalled, RunStopped, ScriptFailed
from muster.events import Event
from muster.job import Job, Status
from muster.platforms.local import LocalPlatform
from muster.run import ending
from muster.run.address import ClusterAddress
from muster.run.cluster import Cluster
from muster.run.request import AT_ONCE

from tests.plain import Plain
from tests.support import IMPORT_PATH, alarms, eventually, free_port


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes a script into the working directory, and returns its path."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "train.py") -> str:
        (tmp_path / name).write_text(textwrap.dedent(text))
        return name

    return write


def run(script: Any, n_workers: int = 2, **options: Any) -> ClusterAddress:
    address: ClusterAddress = muster.run_cluster(n_workers, worker_script=script, strategy=Plain(), **options)
    return address


def test_a_script_runs_on_every_worker_with_its_arguments_and_environment(script: Any) -> None:
    path = script(
        """
        import os, sys
        print(os.environ["MUSTER_WORKER"], sys.argv[1:], os.environ["GREETING"], os.getcwd(), __name__)
        """
    )
    address = run(path, args=["--epochs", 3], env={"GREETING": "hello"})
    assert tuple(address) == (None, None)
    for worker in ("worker-0", "worker-1"):
        assert address.cluster.logs(worker) == f"{worker} ['--epochs', '3'] hello {os.getcwd()} __main__\n"
    assert address.cluster.result.exit_codes == {"worker-0": 0, "worker-1": 0}
    assert set(address.cluster.result.timings) == {"launching", "connecting", "starting", "training", "ending"}


def test_a_handler_of_a_signal_that_raises_ends_the_run_that_the_call_waits_for(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def out_of_time(*_: object) -> None:
        raise TimeoutError("the time of the cell is over")

    def train() -> None:
        import time

        begun.touch()
        time.sleep(600)

    def tell() -> None:
        eventually(begun.exists, "it trains")
        os.kill(os.getpid(), signal.SIGALRM)

    with alarms(out_of_time):
        telling = threading.Thread(target=tell)
        telling.start()
        with pytest.raises(TimeoutError, match="the time of the cell"):
            run(train)
    telling.join()
    assert muster.open_run().status == "stopped"


def test_what_a_function_returns_comes_back_in_order() -> None:
    def train() -> dict[str, Any]:
        import os

        return {"worker": os.environ["MUSTER_WORKER"], "version": os.sys.version_info[:2]}  # type: ignore[attr-defined]

    result = run(train, n_workers=3).cluster.result
    assert [value["worker"] for value in result.values] == ["worker-0", "worker-1", "worker-2"]
    assert result.value == {"worker": "worker-0", "version": sys.version_info[:2]}


def test_what_a_function_is_called_with_is_written_nowhere(muster_home: Path) -> None:
    def train(password: str, rate: float) -> str:
        return "trained" if password == "hunter2" and rate == 7310.58578125 else "wrong"

    cluster = run(functools.partial(train, "hunter2"), n_workers=1, kwargs={"rate": 7310.58578125}).cluster
    assert cluster.result.value == "trained"
    written = [path for path in muster_home.rglob("*") if path.is_file() and not path.is_symlink()]
    assert {"events.jsonl", "plan.json", "result.json"} <= {path.name for path in written}
    for path in written:
        assert b"hunter2" not in path.read_bytes(), path
        assert b"7310.58578125" not in path.read_bytes(), path
    assert re.fullmatch(r"\d+-\d+-train-\w{4}", cluster.run_id)


def test_a_value_that_cannot_be_pickled_is_an_error_of_that_worker() -> None:
    def train() -> Any:
        import threading

        return threading.Lock()

    with pytest.raises(ScriptFailed, match="worker-0 failed first: TypeError") as caught:
        run(train, n_workers=1)
    assert "File" not in str(caught.value.details), "neither cloudpickle's code nor ours says anything of the lock"


def test_progress_and_metrics_reach_observers_and_the_result(script: Any) -> None:
    path = script("from muster.training import report\nreport(step=7, epoch=1, loss=0.5)\n")
    events: list[Event] = []
    ended = run(path, n_workers=1, observers=[events.append])
    result = ended.cluster.result
    for name, meant in (("loss", "it is a metric, .metrics"), ("cancel", "is it .stop"), ("folder", "is it .run_dir")):
        with pytest.raises(AttributeError, match=meant):
            getattr(ended, name)
    progress = [event for event in events if event.kind == "progress"]
    assert progress[0].worker == "worker-0"
    assert progress[0].data["step"] == 7
    assert progress[0].data["metrics"] == {"loss": 0.5}
    assert result.metrics == {"loss": 0.5}
    phases = [event.data["phase"] for event in events if event.kind == "run_phase"]
    assert phases == ["launching", "connecting", "starting", "training", "ending"]
    assert events[-1].kind == "run_ended"


def test_statuses_only_move_forward_and_end(script: Any) -> None:
    seen: dict[str, list[str]] = {}

    def observe(event: Event) -> None:
        if event.kind == "worker_state":
            seen.setdefault(str(event.worker), []).append(event.data["status"])

    address = run(script("print('x')"), observers=[observe])
    order = [str(status) for status in Status]
    for statuses in seen.values():
        assert statuses == sorted(statuses, key=order.index)
        assert statuses[-1] == "succeeded"
    assert {worker.status for worker in address.cluster.workers} == {Status.SUCCEEDED}
    assert repr(muster.open_run().workers) == repr(address.cluster.workers)
    heading, first, _ = repr(address.cluster.workers).splitlines()
    assert (heading.split(), first.split()[:2]) == (["worker", "status", "address"], ["worker-0", "succeeded"])


def test_the_handle_waits_stops_and_tells(script: Any) -> None:
    path = script("import time\nprint('started', flush=True)\ntime.sleep(60)")
    address = run(path, wait=False)
    cluster = address.cluster
    assert cluster.is_running
    assert "is running; it has wait(), stop(), logs(), stacks()>" in repr(address)
    with pytest.raises(TimeoutError):
        cluster.wait(timeout=0.1)
    eventually(lambda: all("started" in cluster.logs(worker.name) for worker in cluster.workers), "the script runs")
    assert all("sleep" in text or "train.py" in text for text in cluster.stacks().values())
    assert len(cluster.stacks()) == 2
    cluster.stop()
    cluster.stop()
    assert not cluster.is_running
    with pytest.raises(RunStopped):
        cluster.wait()
    assert "stopped" in repr(cluster)
    assert "stopped" in cluster.explain()
    for ended in (address, ClusterAddress({"ps": ["127.0.0.1:1"]}, "grpc://127.0.0.1:1", cluster)):
        assert re.fullmatch(r"<run \S+ stopped in [\d.]+ s; it has logs\(\) and explain\(\)>", repr(ended))


def test_leaving_the_context_stops_the_run(script: Any) -> None:
    path = script("import time\ntime.sleep(60)")
    with Cluster(Job(make_script(path), 1), strategy=Plain()) as cluster:
        (worker,) = cluster.workers
        assert worker.status is Status.RUNNING
    assert not cluster.is_running


@pytest.mark.parametrize(
    ("interrupt", "said"), [(KeyboardInterrupt(), "interrupted"), (KeyboardInterrupt("by SIGTERM"), "by SIGTERM")]
)
def test_an_interrupt_that_leaves_the_context_is_the_reason(
    script: Any, interrupt: KeyboardInterrupt, said: str
) -> None:
    path = script("import time\ntime.sleep(60)")
    with pytest.raises(KeyboardInterrupt), Cluster(Job(make_script(path), 1), strategy=Plain()) as cluster:
        raise interrupt
    assert f"({said})" in muster.open_run(cluster.run_id).explain()


@pytest.mark.parametrize(("text", "status"), [("pass", "succeeded"), ("raise SystemExit(3)", "failed")])
def test_an_interrupt_of_a_run_that_has_just_ended_says_what_it_came_to(script: Any, text: str, status: str) -> None:
    def interrupt(event: Event) -> None:
        if event.kind == "run_ended":
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=f"The run had {status} before the interrupt") as told:
        run(script(text), n_workers=1, observers=[interrupt])
    identifier = re.search(r"open_run\('(.*?)'\)", str(told.value))
    assert identifier is not None
    assert muster.open_run(identifier.group(1)).status == status


def test_servers_must_listen_before_the_cluster_counts_as_up(script: Any) -> None:
    path = script(
        """
        import os, socket, time
        time.sleep(0.3)
        with socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("0.0.0.0", int(os.environ["PORT"])))
            server.listen()
            time.sleep(60)
        """
    )
    address = muster.run_cluster(1, worker_script=path, strategy=Plain(listens=True), wait=False)
    cluster = address.cluster
    (worker,) = cluster.workers
    (port,) = cluster.plan.servers.values()
    socket.create_connection((str(worker.address), port), timeout=5).close()
    cluster.stop()


def test_a_server_that_ends_by_itself_is_a_failure(script: Any) -> None:
    path = script("import os, time\ntime.sleep(0 if os.environ['MUSTER_ROLE'] == 'ps' else 60)")
    with pytest.raises(ScriptFailed, match="ps-0 ended, which a server never does"):
        run(path, n_workers=1, n_ps=1)


def test_servers_end_after_the_workers_that_depend_on_them(script: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ending, "STOP_GRACE", 20.0)
    path = script(
        """
        import os, signal, sys, time
        def note(*_):
            print("told to end at", time.time(), flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, note)
        if os.environ["MUSTER_ROLE"] == "ps":
            open("listens", "w").close()
            time.sleep(60)
        while not os.path.exists("listens"):
            time.sleep(0.01)
        time.sleep(0.5)
        print("ended at", time.time())
        """
    )
    cluster = run(path, n_workers=1, n_ps=1).cluster
    worker_ended = float(cluster.logs("worker-0").split()[-1])
    server_told = float(cluster.logs("ps-0").split()[-1])
    assert server_told >= worker_ended


@pytest.mark.parametrize("how", ["it has ended", "it was interrupted"])
def test_a_session_that_is_told_to_end_while_it_ends_its_run_records_that(
    script: Any, muster_home: Path, how: str
) -> None:
    path = script(
        """
        import signal, time
        signal.signal(signal.SIGTERM, lambda *_: print("told to end", flush=True))
        print("trains", flush=True)
        time.sleep(60)
        """
    )
    program = "import muster, muster.run.ending\nmuster.run.ending.STOP_GRACE = 20.0\n"
    program += f"muster.run_cluster(1, strategy='processes', worker_script={str(path)!r}, wait={{}})\n"
    if how == "it has ended":
        program += "import sys\nsys.stdin.readline()"
    environment = {**os.environ, "PYTHONPATH": IMPORT_PATH, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", program.format(how != "it has ended")]

    def printed(text: str) -> bool:
        return any(text in log.read_text() for log in muster_home.rglob("worker-0.log"))

    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as session:
        assert session.stdin is not None
        eventually(lambda: printed("trains"), "it trains", 60)
        if how == "it has ended":
            session.stdin.write(b"\n")
            session.stdin.flush()
        else:
            session.send_signal(signal.SIGINT)
        eventually(lambda: printed("told to end"), "it ends its run")
        session.send_signal(signal.SIGTERM)
        assert session.wait(30) == -signal.SIGTERM
    (run,) = muster.list_runs()
    assert run.status == "stopped"


@pytest.mark.parametrize("jump", [-86400.0, 86400.0])
def test_a_clock_that_is_set_during_the_run_changes_nothing(
    script: Any, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    path = script(
        """
        import time
        from muster.training import report
        report(step=1)
        time.sleep(0.5)
        """
    )
    shown, is_set = time.time, threading.Event()
    monkeypatch.setattr(time, "time", lambda: shown() + jump * is_set.is_set())

    def observe(event: Event) -> None:
        if event.kind == "progress":
            is_set.set()

    address = run(path, observers=[observe], stall_seconds=60, run_timeout=60)
    assert is_set.is_set()
    recorded = muster.open_run(address.run_id)
    assert recorded.status == "succeeded"
    assert 0 < recorded.seconds < 60
    (recorded.run_dir / "result.json").unlink()
    assert recorded.seconds >= 0


def test_the_run_is_recorded_without_the_values_of_the_environment(script: Any) -> None:
    cluster = run(script("print('x')"), n_workers=1, env={"API_KEY": "hunter2"}).cluster
    recorded = muster.open_run(cluster.run_id)
    assert recorded.status == "succeeded"
    assert (
        json.loads((cluster.run_dir / "plan.json").read_text())["processes"]["worker-0"]["env"]["API_KEY"]
        == "<redacted>"
    )
    assert "hunter2" not in "".join(p.read_text() for p in cluster.run_dir.rglob("*") if p.is_file())
    assert cluster.run_dir.stat().st_mode & 0o077 == 0


def test_a_run_of_the_same_name_is_replaced(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    path = script("import time\ntime.sleep(60)")
    first = run(path, n_workers=1, name="again", wait=False).cluster
    second = run(path, n_workers=1, name="again", wait=False).cluster
    assert not first.is_running
    assert second.is_running
    assert "replaced" in capsys.readouterr().err
    with pytest.raises(RunStopped, match="replaced by another of its name"):
        first.wait()
    run(script("print(1)", "other.py"), n_workers=1)  # another name does not disturb it
    assert second.is_running
    second.stop()


@pytest.mark.parametrize(
    "options",
    [
        {"n_workers": 0},
        {"cpu": 0},
        {"memory": -1},
        {"memory": 10**9},
        {"nvidia_gpu": 10_000},
        {"timeout_seconds": -1},
        {"run_timeout": float("nan")},
        {"session_address": "nonsense"},
        {"platform": "no_such_platform"},
        {"python": "/no/such/python"},
    ],
)
def test_bad_input_is_refused_before_anything_starts(script: Any, options: dict[str, Any], muster_home: Path) -> None:
    started = time.monotonic()
    with pytest.raises(JobError):
        run(script("print('x')"), **{"n_workers": 1, **options})
    assert time.monotonic() - started < 20
    assert not list(muster_home.glob("runs/*/logs/*.log"))


def test_workers_that_have_to_share_the_machine_are_noted_in_the_run(script: Any) -> None:
    cores = len(os.sched_getaffinity(0))
    cluster = run(script("print(1)"), n_workers=2, cpu=cores).cluster
    notes = [event.data["text"] for event in muster.open_run(cluster.run_id).events() if event.kind == "note"]
    assert [note.partition(":")[0] for note in notes] == [f"2 workers x {cores} cores on this machine's {cores}"]


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("input('password: ')", "workers have no standard input"),
        ("import sys; sys.exit(3)", "as by sys.exit(3)"),
        ("import socket as s; first = s.create_server(('', 0)); s.create_server(first.getsockname())", "bind port 0"),
    ],
)
def test_what_a_script_does_wrong_has_advice(script: Any, text: str, advice: str) -> None:
    with pytest.raises(ScriptFailed) as caught:
        run(script(text), n_workers=1)
    assert advice in (caught.value.advice or "")


def test_the_session_address_and_the_ports_can_be_fixed(script: Any) -> None:
    port = free_port()
    path = script("import sys\nsys.exit(0)")
    cluster = run(path, session_address=f"127.0.0.1:{port}", worker_ports=(42_000, 42_100)).cluster
    ports = [event.data["ports"] for event in muster.open_run(cluster.run_id).events() if event.kind == "worker_ready"]
    assert len(ports) == len(cluster.workers)
    assert all(42_000 <= port <= 42_100 for of_a_worker in ports for port in of_a_worker)


def test_help_shows_the_signature_users_know() -> None:
    names = list(inspect.signature(muster.run_cluster).parameters)
    assert names[:7] == ["n_workers", "n_ps", "cpu", "memory", "nvidia_gpu", "worker_script", "timeout_seconds"]
    assert "dashboard" in names


def test_an_older_interpreter_runs_the_script(script: Any, other_python: str) -> None:
    path = script("import sys\nfrom muster.training import report\nreport(step=1)\nprint(sys.version_info[:2])")
    cluster = run(path, n_workers=1, python=other_python).cluster
    version = subprocess.run(
        [other_python, "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True
    )
    assert cluster.logs("worker-0") == version.stdout


def test_a_cluster_can_be_awaited_while_other_tasks_go_on(script: Any) -> None:
    path = script("import time; time.sleep(0.3)")

    async def main() -> int:
        cluster = run(path, wait=False).cluster
        ended = asyncio.ensure_future(_end(cluster))
        turns = 0
        while not ended.done():
            turns += 1
            await asyncio.sleep(0.01)
        assert (await ended).status == "succeeded"
        return turns

    assert asyncio.run(main()) > 5


def test_what_run_cluster_returns_has_what_its_cluster_and_its_result_have() -> None:
    def train() -> str:
        print("trained")
        return os.environ["MUSTER_WORKER"]

    ended = run(train)
    assert tuple(ended) == (None, None)
    assert ended.values == ended.result.values == ["worker-0", "worker-1"]
    assert ended.logs("worker-1") == "trained\n"
    assert "succeeded" in ended.explain()
    assert {"values", "metrics", "logs", "explain", "wait", "stop", "cluster"} <= set(dir(ended))
    assert not {"start", "from_dict", "when_over", "count"} & set(dir(ended))  # completion has what most need
    assert not hasattr(ended, "valeus")
    hints = {"output": "what workers print is .logs", "valuess": "is it .values", "loss": "what the function returned"}
    for missing, hint in hints.items():
        with pytest.raises(AttributeError, match=hint):
            getattr(ended, missing)
    with pytest.raises(AttributeError, match="no attribute 'valeus'"):
        ended.valeus  # noqa: B018


def test_what_run_cluster_returns_can_be_awaited(script: Any) -> None:
    async def main() -> str:
        return str((await run(script("import time; time.sleep(0.3)"), wait=False)).status)

    assert asyncio.run(main()) == "succeeded"


async def _within_a_timeout(cluster: Cluster) -> None:
    if sys.version_info >= (3, 11):  # which the test has made sure of; mypy looks for this
        async with asyncio.timeout(0.2):
            await cluster


@pytest.mark.parametrize("limited", [lambda cluster: asyncio.wait_for(cluster, 0.2), _within_a_timeout])
def test_cancelling_what_awaits_a_cluster_ends_the_run(script: Any, limited: Callable[[Cluster], Any]) -> None:
    if limited is _within_a_timeout and sys.version_info < (3, 11):
        pytest.skip("asyncio.timeout came with Python 3.11")
    path = script("import time; time.sleep(60)")

    async def main() -> Cluster:
        cluster: Cluster = run(path, wait=False).cluster
        with pytest.raises(asyncio.TimeoutError):
            await limited(cluster)
        return cluster

    cluster = asyncio.run(main())
    assert not cluster.is_running
    with pytest.raises(RunStopped):
        cluster.result  # noqa: B018


async def _end(cluster: Cluster) -> Any:
    return await cluster


def test_calls_that_could_never_end_are_refused(script: Any) -> None:
    cluster = Cluster(Job(make_script(script("print(1)")), 1), strategy=Plain())
    with pytest.raises(JobError, match="has not been started"):
        cluster.wait()
    cluster.stop()
    assert cluster.start().wait().status == "succeeded"
    with pytest.raises(JobError, match="started already"):
        cluster.start()


@pytest.mark.alone
def test_a_short_wait_is_short(script: Any) -> None:
    cluster = run(script("import time\ntime.sleep(60)"), n_workers=1, wait=False).cluster
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        cluster.wait(0.05)
    assert time.monotonic() - started < 0.3
    cluster.stop()


def test_leaving_the_context_of_a_failed_run_raises_its_error_once(script: Any) -> None:
    job = Job(make_script(script("import time\ntime.sleep(0.2)\nraise ValueError('late')")), 1)
    with pytest.raises(ScriptFailed, match="late"), Cluster(job, strategy=Plain()) as cluster:
        while cluster.is_running:
            time.sleep(0.05)
    with Cluster(job, strategy=Plain()) as cluster, pytest.raises(ScriptFailed):
        cluster.wait()


@pytest.mark.slow
def test_a_stall_names_the_silent_worker_and_not_a_server(script: Any) -> None:
    path = script(
        """
        import os, time
        while os.environ["MUSTER_WORKER"] == "worker-1":
            print("step", flush=True)
            time.sleep(0.1)
        time.sleep(60)
        """
    )
    with pytest.raises(RunStalled, match="worker-0 has shown no progress") as caught:
        run(path, n_ps=1, stall_seconds=6)  # longer than a busy machine keeps worker-1 from talking
    assert re.search(r"train\.py|does not answer", str(caught.value.details))  # it has a second for its stacks


@pytest.mark.slow
def test_a_long_import_is_no_silence_and_one_that_hangs_is(script: Any, tmp_path: Path) -> None:
    package = tmp_path / "heavy"
    package.mkdir()
    for number in range(12):
        (package / f"part{number}.py").write_text("import time; time.sleep(0.6)")
    parts = [f"from heavy import part{number}\n" for number in range(12)]
    (package / "__init__.py").write_text("".join(parts))
    path = script("import heavy\n")
    assert run(path, n_workers=1, stall_seconds=6).cluster.result.status == "succeeded"
    (package / "__init__.py").write_text("".join([*parts[:3], "import time; time.sleep(60)\n"]))
    with pytest.raises(RunStalled):
        run(path, n_workers=1, stall_seconds=6)


def test_a_rank_of_a_job_around_the_session_is_not_taken_for_the_workers(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("HOROVOD_RANK", "3")
    monkeypatch.setenv("HOROVOD_FUSION_THRESHOLD", "1")
    assert (
        run(
            lambda: sorted(n for n in __import__("os").environ if n.startswith(("PMI", "HOROVOD")))
        ).cluster.result.values
        == [["HOROVOD_FUSION_THRESHOLD"]] * 2
    )


def test_a_given_platform_is_left_open_and_its_workers_are_ended(script: Any) -> None:
    platform = LocalPlatform()
    try:
        run(script("print(1)"), platform=platform)
        assert run(script("print(2)"), platform=platform).cluster.result.status == "succeeded"
        assert all(worker.status.is_final for worker in platform.list())
    finally:
        platform.close()


def test_options_are_never_ignored(script: Any) -> None:
    with pytest.raises(JobError, match="tpyo"):
        run(script("print(1)"), tpyo=1)
    with pytest.raises(JobError, match="tpyo"):
        muster.run_cluster(1, worker_script=script("print(1)"), tpyo=1)


def test_files_with_odd_names_are_tasks_too(script: Any) -> None:
    text = "def run(cluster, server, task_index): pass\n"
    for name in ("train.v2.py", "signal.py"):
        assert make_script(script(text, name)).is_task
    assert not make_script(script("def run(model, data, epochs): pass\n", "own.py")).is_task


def test_a_scratch_folder_that_nobody_was_left_to_remove_goes_with_the_next_run(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    program = "from muster.records.scratch import make_scratch; print(make_scratch())"
    environment = {**os.environ, "TMPDIR": str(temporary)}
    made = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert Path(made.stdout.strip()).is_dir()
    run(script("print(1)"), n_workers=1)
    assert list(temporary.iterdir()) == []
    temporary.rmdir()


def test_the_first_reason_to_stop_counts_unless_somebody_is_in_a_hurry() -> None:
    execution = Cluster(Job(make_script(sys.executable), 1), strategy=Plain())._execution
    reasons = []
    for reason in ("interrupted", "by request", AT_ONCE, "by request"):
        execution.ask_to_stop(reason)
        reasons.append(execution.stop_reason)

    assert reasons == ["interrupted", "interrupted", AT_ONCE, AT_ONCE]
