"""A cluster as users hold it, with scripted workers: real threads, real time, and TLS."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from muster.checks.script import make_script
from muster.errors import JobError, MusterError, PlatformError, RunStopped, RunTimeout, ScriptFailed, WorkerLost
from muster.events import Event
from muster.job import Job
from muster.records import control, folders
from muster.run import cluster as clusters
from muster.run import execution
from muster.run.cluster import Cluster
from muster.run.request import RunRequest
from muster.runtime.background import background_loop
from muster.testing import ScriptedPlatform

QUICK = {"hello_after": 0.0, "starts_after": 0.0, "stops_after": 0.0, "leaves_after": 0.0}


@pytest.fixture
def platform() -> ScriptedPlatform:
    """A platform whose workers do everything at once, and go on until they are stopped."""
    platform = ScriptedPlatform()
    platform.explain_seconds, platform.poll_seconds = 0.02, (0.02, 0.02)
    for name in ("worker-0", "worker-1"):
        vars(platform.player(name).behaviour).update(QUICK, runs_for=None)
    return platform


def train() -> None:
    """Stand for a script, which scripted workers do not run."""


@pytest.fixture
def made(platform: ScriptedPlatform) -> Iterator[Cluster]:
    cluster = Cluster.of(RunRequest(train, n_workers=2, strategy="processes", platform=platform))
    yield cluster
    cluster.stop()


def do(function: Any, *args: Any, **kwargs: Any) -> None:
    """Have it done on the background thread."""
    background_loop().call_soon_threadsafe(lambda: function(*args, **kwargs))


def finish(platform: ScriptedPlatform) -> None:
    """Let both processes end well."""
    for rank, name in enumerate(("worker-0", "worker-1")):
        do(platform.player(name).exit, 0, rank)


def test_from_start_to_end(made: Cluster, platform: ScriptedPlatform) -> None:
    assert "not started" in repr(made)
    assert (made.status, made.workers) == ("not started", [])
    assert made.cluster_spec == {}
    assert "<scratch>" in made.command
    told: list[Event] = []
    with made as cluster:
        forget = cluster.subscribe(told.append)
        assert cluster.is_running
        assert cluster.status == "running"
        assert "running" in repr(cluster)
        assert [str(worker.status) for worker in cluster.workers] == ["running", "running"]
        assert cluster.stacks() == {
            "rank 0 (worker-0)": "stack of worker-0", "rank 1 (worker-1)": "stack of worker-1",
        }  # fmt: skip
        with pytest.raises(TimeoutError):
            cluster.wait(timeout=0.01)
        with pytest.raises(JobError, match="has not ended"):
            cluster.result  # noqa: B018
        with pytest.raises(JobError, match="started already"):
            cluster.start()
        assert clusters.running_clusters(cluster.job.name) == [cluster]
        assert set(cluster.plan.processes) == {"worker-0", "worker-1"}
        finish(platform)
        result = cluster.wait()
    assert (result.status, cluster.status) == ("succeeded", "succeeded")
    assert result.exit_codes == {"rank 0": 0, "rank 1": 0}
    assert not cluster.is_running
    assert cluster.stacks() == {}
    assert clusters.running_clusters(cluster.job.name) == []
    forget()
    assert told
    assert "succeeded" in cluster.explain()
    assert cluster.logs("worker-0") == ""


def test_a_failure_is_raised_where_somebody_waits(made: Cluster, platform: ScriptedPlatform) -> None:
    with pytest.raises(ScriptFailed) as caught, made as cluster:
        do(platform.player("worker-1").exit, 3, 1)
        cluster.wait()
    assert caught.value.worker == "worker-1"


def test_a_failure_that_nobody_waited_for_comes_at_the_end(made: Cluster, platform: ScriptedPlatform) -> None:
    with pytest.raises(WorkerLost), made as cluster:
        do(platform.player("worker-1").hang_up)
        while cluster.is_running:
            time.sleep(0.01)


def test_a_start_that_fails(made: Cluster, platform: ScriptedPlatform) -> None:
    platform.errors["submit"] = ValueError("a defect")
    with pytest.raises(MusterError, match="a defect"):
        made.start()


def test_stop_and_misuse(made: Cluster) -> None:
    made.stop()  # which was never started
    with pytest.raises(JobError, match="not been started"):
        made.wait()
    made.start()
    made.stop()
    with pytest.raises(RunStopped):
        made.wait()
    made.stop()


def test_awaiting_and_cancelling(made: Cluster, platform: ScriptedPlatform) -> None:
    async def main() -> None:
        waiting = asyncio.ensure_future(made)
        await asyncio.sleep(0.05)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    made.start()
    asyncio.run(main())
    with pytest.raises(RunStopped):
        made.result  # noqa: B018

    async def at_the_end() -> None:
        with pytest.raises(RunStopped):
            await made

    asyncio.run(at_the_end())


def test_an_interrupt_ends_it(made: Cluster) -> None:
    made.start()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        made.wait()
    assert not made.is_running


def test_observers_may_stop_it_and_not_wait(platform: ScriptedPlatform) -> None:
    refused: list[str] = []

    def observer(event: Event) -> None:
        if event.kind == "run_phase" and event.data["phase"] == "training":
            with pytest.raises(JobError) as caught:
                cluster.wait()
            refused.append(str(caught.value))
            assert len(cluster.stacks()) == 2
            cluster.stop()

    request = RunRequest(train, n_workers=2, strategy="processes", platform=platform)
    cluster = Cluster.of(request, [observer])
    with pytest.raises(RunStopped, match="by an observer"):
        cluster.start().wait()
    assert len(refused) == 1


def test_an_observer_that_blocks_holds_up_neither_the_engine_nor_the_end(
    platform: ScriptedPlatform, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(execution, "OBSERVERS_SECONDS", 0.02)
    goes_on, told = threading.Event(), []

    def blocks(event: Event) -> None:
        goes_on.wait(60)

    request = RunRequest(train, n_workers=2, strategy="processes", platform=platform, run_timeout=0.05)
    began = time.monotonic()
    with pytest.raises(RunTimeout):
        Cluster.of(request, [blocks, lambda event: told.append(event.kind)]).start().wait()
    assert time.monotonic() - began < 10
    goes_on.set()
    assert (told[0], told[-1]) == ("run_requested", "run_ended")
    assert "too slow" in caplog.text


def test_events_and_record_agree_on_how_long_a_run_took(
    made: Cluster, platform: ScriptedPlatform, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = folders.write_json_durably

    def slowly(*args: Any) -> None:
        time.sleep(0.05)  # as on a disk that is busy
        write(*args)

    monkeypatch.setattr(folders, "write_json_durably", slowly)
    told: list[Event] = []
    made.subscribe(told.append)
    made.start()
    finish(platform)
    result = made.wait()
    assert told[-1].time - told[0].time == pytest.approx(result.seconds, abs=0.001)


def test_other_processes_may_ask(made: Cluster) -> None:
    made.start()
    where = json.loads(control.control_file(made.run_dir).read_text())

    async def ask(line: bytes) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(where["socket"])
        writer.write(line)
        answer = await reader.readline()
        writer.close()
        return dict(json.loads(answer))

    def question(**fields: Any) -> bytes:
        return json.dumps({"token": where["token"], **fields}).encode() + b"\n"

    async def main() -> None:
        state = await ask(question(ask="state"))
        assert state["workers"] == {"worker-0": "running", "worker-1": "running"}
        assert len((await ask(question(ask="stacks")))["stacks"]) == 2
        assert await ask(question(ask="logs", name="worker-0")) == {"lines": []}
        assert "error" in await ask(question(ask="logs", name="nobody"))
        assert "error" in await ask(question(ask="tea"))
        assert "token" in (await ask(question(ask="state", token="guessed")))["error"]
        assert "not a request" in (await ask(b"GET / HTTP/1.0\n"))["error"]
        assert await ask(question(ask="stop")) == {}

    asyncio.run(main())
    with pytest.raises(RunStopped):
        made.wait()


def test_other_processes_open_commands_and_ports_of_workers(made: Cluster, platform: ScriptedPlatform) -> None:
    player = platform.player("worker-1")

    def opens(kind: str, fields: dict[str, Any]) -> None:
        if kind in ("execute", "dial"):
            player.say("opened", stream=fields["stream"])

    player.on_order = opens
    made.start()
    where = json.loads(control.control_file(made.run_dir).read_text())

    async def ask(**fields: Any) -> Any:
        reader, writer = await asyncio.open_unix_connection(where["socket"])
        writer.write(json.dumps({"token": where["token"], **fields}).encode() + b"\n")
        answer = await reader.readline()
        writer.close()
        return json.loads(answer)

    async def main() -> None:
        shell = {"argv": ["sh"], "size": [24, 80], "terminal": "xterm"}
        assert await ask(ask="exec", worker="rank-1", **shell) == {"opened": True}
        assert await ask(ask="forward", worker="worker-1", port=6006) == {"opened": True}
        for nonsense in ({"argv": "ls"}, {"size": [-1, 0]}, {"terminal": 5}):
            assert "makes no sense" in (await ask(ask="exec", worker="worker-1", **nonsense))["error"]
        assert "port must be" in (await ask(ask="forward", worker="worker-1", port=0))["error"]
        unknown = (await ask(ask="forward", worker="worker-9", port=80))["error"]
        assert "no worker 'worker-9': there is worker-0, worker-1" in unknown

    asyncio.run(main())
    (execute,) = [fields for kind, fields in player.orders if kind == "execute"]
    assert (execute["argv"], execute["rows"], execute["columns"]) == (["sh"], 24, 80)
    script = made.plan.processes["worker-1"]
    assert execute["env"] == {**script.env, **made.plan.rank_env[1], "TERM": "xterm"}
    assert execute["cwd"] == script.cwd


def test_files_of_workers_that_share_them(platform: ScriptedPlatform, tmp_path: Path) -> None:
    request = RunRequest(train, n_workers=2, strategy="processes", platform=platform, cwd=str(tmp_path))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1,2")
    with Cluster.of(request) as cluster:
        got = cluster.get("worker-0", "data/a.csv")
        assert got == cluster.run_dir / "collected" / "worker-0" / "data" / "a.csv"
        assert got.read_text() == "1,2"
        cluster.put(tmp_path / "data", "worker-1", "copy/of/it")
        assert (tmp_path / "copy" / "of" / "it" / "a.csv").read_text() == "1,2"
        cluster.put(tmp_path / "data" / "a.csv", "worker-1", "data/a.csv")  # where it is already
        cluster.collect()
        with pytest.raises(JobError, match="no worker 'worker-9'"):
            cluster.get("worker-9", "data")
        with pytest.raises(JobError, match="There is no"):
            cluster.put(tmp_path / "nothing", "worker-0")
        with pytest.raises(PlatformError, match="could not be copied: .*No such file"):
            cluster.get("worker-0", "nothing")
        finish(platform)
        cluster.wait()
        with pytest.raises(JobError, match="not under way"):
            cluster.get("worker-0", "data")
        cluster._pid = -1
        with pytest.raises(JobError, match="forked from"):
            cluster.wait()
        cluster._pid = os.getpid()


def test_what_still_lives_when_the_session_ends_is_stopped(made: Cluster) -> None:
    made.start()
    clusters._stop_all()
    with pytest.raises(RunStopped, match="session has ended"):
        made.wait()


def test_a_cluster_of_a_job(platform: ScriptedPlatform, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)\n")
    with Cluster(Job(make_script(script), 2), strategy="processes", platform=platform) as cluster:
        assert str(script) in cluster.command
        finish(platform)
        assert cluster.wait().status == "succeeded"
    assert cluster.platform is platform
    assert cluster.strategy.name == "processes"
