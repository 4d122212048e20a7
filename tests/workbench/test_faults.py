"""Each way in which the network or the workbench may fail: what the user sees, and that no worker is lost or left."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import muster
import pytest
from muster.errors import LaunchRefused, PlatformError, RunFailed, WorkerLost
from muster.events import Event
from muster.job import Status
from muster.platforms.workbench import clients
from muster.platforms.workbench.platform import WorkbenchPlatform
from muster.run.cluster import Cluster

from tests.plain import Plain
from tests.serve.service import Service
from tests.support import SENDER, Run, eventually, handles_of, shell
from tests.workbench.proxy import Proxy, proxying
from tests.workbench.session import WorkbenchSession

pytestmark = pytest.mark.slow


@pytest.fixture
def proxy(
    workbench: Service,
    workbench_session: WorkbenchSession,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[Proxy]:
    """A proxy through which this process's session reaches the workbench; its repeats come quickly."""
    for name in ("SAFE", "LAUNCH"):
        monkeypatch.setattr(clients, name, getattr(clients, name).new(backoff_factor=0.02, backoff_jitter=0.02))
    if "[slow" in request.node.name:  # no other test waits for an answer that comes late
        for name in ("TIMEOUT", "LAUNCH_TIMEOUT"):
            monkeypatch.setattr(clients, name, (1.0, 1.0))
        monkeypatch.setattr(clients, "SAFE", clients.SAFE.new(total=20, read=20))  # on a busy machine, more are late
    with proxying(workbench.url) as proxy:
        for name, value in workbench_session.through(proxy.url).environment.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def platform(proxy: Proxy, workbench_session: WorkbenchSession) -> Iterator[WorkbenchPlatform]:
    """The platform behind the proxy; fails the test where a worker is left, whether it was closed or not."""
    yield WorkbenchPlatform()
    eventually(lambda: not workbench_session.living(), "no worker lives")


def refusal(platform: WorkbenchPlatform, run: Run, n: int = 3) -> str:
    """Return the message of a launch that must fail."""
    with pytest.raises(PlatformError) as caught:
        platform.launch([run.spec(f"worker-{index}", process=shell("sleep 600")) for index in range(n)])
    assert not list(run.folder.glob("*.launch"))
    return str(caught.value)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("refuse", "does not answer: Remote end closed"),
        ("500", "the proxy says no .HTTP 500"),
        # The session waits a second for each answer.
        pytest.param("slow", "does not answer: .*timed out", marks=pytest.mark.alone),
        ("drop", "answer cannot be read: IncompleteRead"),
        ("garble", "answer cannot be read: (Unterminated|Expecting) "),
    ],
)
def test_a_launch_without_an_answer_is_never_repeated_and_leaves_nobody(
    platform: WorkbenchPlatform, proxy: Proxy, run: Run, how: str, says: str
) -> None:
    proxy.harm("POST", how, times=1, after=1)
    text = refusal(platform, run)
    became = "Should it have been launched all the same|It had started all the same"
    assert re.match(rf"worker-[0-2] could not be launched: The workbench.*{says}.*({became})", text), text
    assert re.search(r"The others that had been launched \([12]\) were stopped", text)
    assert proxy.seen.count("POST") <= 3


def test_a_launch_that_is_too_much_at_the_moment_is_repeated(
    platform: WorkbenchPlatform, proxy: Proxy, run: Run
) -> None:
    proxy.harm("POST", "429", times=2)
    workers = platform.launch([run.spec("worker-0", process=shell("exit 0"))])
    eventually(lambda: platform.poll(handles_of(workers))[0].status is Status.SUCCEEDED, "it has run")
    assert proxy.seen.count("POST") == 3


def test_a_launch_that_stays_too_much_is_refused(platform: WorkbenchPlatform, proxy: Proxy, run: Run) -> None:
    proxy.harm("POST", "429", after=1)
    text = refusal(platform, run)
    assert re.match(r"worker-[0-2] was refused: .*HTTP 429 Too Many Requests.*The others.*\(1\) were stopped", text)


def test_a_key_that_has_expired(platform: WorkbenchPlatform, proxy: Proxy, run: Run) -> None:
    for method in ("GET", "POST", "PUT"):
        proxy.harm(method, "401")
    text = refusal(platform, run)
    assert re.match("worker-[0-2] was refused: The workbench does not accept the key in CDSW_API_KEY", text)


def test_a_key_that_expires_during_a_launch(
    platform: WorkbenchPlatform, proxy: Proxy, run: Run, workbench_session: WorkbenchSession
) -> None:
    proxy.harm("POST", "401", after=2)
    proxy.harm("PUT", "401")
    text = refusal(platform, run)
    assert re.match("worker-[0-2] was refused: The workbench does not accept the key", text)
    assert "Not all that had been launched could be stopped: The workbench does not accept the key" in text
    # Where an agent was quick its worker runs; closing, with a key that is good again, ends it.
    proxy.harm("PUT", "", times=0)
    platform.close()


@pytest.mark.parametrize("how", ["refuse", "500", "429", "slow", "drop", "garble"])
def test_looks_and_stops_survive_it(platform: WorkbenchPlatform, proxy: Proxy, run: Run, how: str) -> None:
    workers = platform.launch([run.spec("worker-0", process=shell("sleep 600"))])
    for method in ("GET", "PUT"):
        proxy.harm(method, how, times=2)
    eventually(lambda: platform.poll(handles_of(workers))[0].status is Status.RUNNING, "it runs")
    platform.close()
    assert platform.poll(handles_of(workers))[0].status is Status.STOPPED


@pytest.mark.parametrize("how", ["refuse", "500", "401"])
def test_a_run_does_not_need_the_workbench_once_its_workers_run(
    proxy: Proxy, workbench_session: WorkbenchSession, tmp_path: Path, how: str
) -> None:
    """Its agents speak for themselves, and end when the session does."""
    script = tmp_path / "train.py"
    script.write_text("import time; time.sleep(0.5); print('trained')")
    cluster = muster.run_cluster(2, worker_script=script, strategy=Plain(), wait=False).cluster
    for method in ("GET", "PUT"):
        proxy.harm(method, how)
    assert cluster.wait().status == "succeeded"
    eventually(lambda: not workbench_session.living(), "no worker lives")
    assert cluster.logs("worker-1") == "trained\n"


@pytest.fixture
def broken(
    proxy: Proxy, workbench_session: WorkbenchSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """A run whose worker 1 has been lost, of which worker 0 has died, while the workbench says nothing."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("link")
    Path("train.py").write_text(SENDER)
    cluster = muster.run_cluster(2, worker_script="train.py", strategy=Plain(), args=["abort"], wait=False).cluster
    eventually(lambda: all("ready" in cluster.logs(f"worker-{index}") for index in (0, 1)), "both are connected")
    proxy.harm("GET", "500")

    def of(worker: str, kind: str) -> list[Event]:
        return [event for event in muster.open_run().events() if (event.worker, event.kind) == (worker, kind)]

    os.kill(of("worker-1", "worker_ready")[0].data["pid"], signal.SIGKILL)
    eventually(lambda: of("worker-0", "process_exited"), "worker 0 has noticed")
    yield cluster
    proxy.harm("GET", "", times=0)
    eventually(lambda: not workbench_session.living(), "no worker lives")


def test_a_lost_worker_is_named_although_its_peer_dies_of_it_and_the_workbench_says_nothing(broken: Cluster) -> None:
    with pytest.raises(WorkerLost) as raised:
        broken.wait(timeout=30)
    assert raised.value.worker == "worker-1"


def test_a_run_can_be_stopped_while_the_workbench_is_asked_why_it_failed(
    broken: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WorkbenchPlatform, "explain_seconds", 60.0)
    asked = time.monotonic()
    broken.stop()
    assert time.monotonic() - asked < 30, "half as long as the workbench has for an answer"
    with pytest.raises(RunFailed):
        broken.wait()


@pytest.mark.parametrize(("how", "says"), [("500", "the proxy says no"), ("drop", "all the same")])
def test_a_run_that_cannot_be_launched(
    proxy: Proxy, workbench_session: WorkbenchSession, tmp_path: Path, how: str, says: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text("import time; time.sleep(600)")
    proxy.harm("POST", how, after=1)
    with pytest.raises(LaunchRefused, match=says):
        muster.run_cluster(3, worker_script=script, strategy=Plain())
    eventually(lambda: not workbench_session.living(), "no worker lives")
