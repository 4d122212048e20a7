"""A suspended agent, and a suspended process, of a real run: told of in every view until they go on."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import muster
import pytest
from muster.dashboard.plain import PlainDashboard
from muster.events import ProcessStarted, WorkerReady
from muster.records.lookup import open_run
from muster.run import silence_watch

from tests.plain import Plain
from tests.support import eventually


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: io.StringIO) -> Iterator[muster.Cluster]:
    monkeypatch.setattr(silence_watch, "LOOK_SECONDS", 0.1)  # each worker is looked at every second
    (tmp_path / "sleeps.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    options: dict[str, Any] = {"strategy": Plain(), "dashboard": False, "observers": [PlainDashboard(shown)]}
    cluster = muster.run_cluster(2, worker_script=tmp_path / "sleeps.py", wait=False, **options).cluster
    try:
        eventually(lambda: all("here" in cluster.logs(f"worker-{number}") for number in range(2)), "it trains")
        yield cluster
    finally:
        cluster.stop()


def pid_of(cluster: muster.Cluster, kind: type[WorkerReady] | type[ProcessStarted]) -> int:
    """The process of worker-1 of which an event of this kind tells."""
    seen = (event for event in open_run(cluster.run_id).events() if event.worker == "worker-1")
    told = next(event.data for event in seen if isinstance(event.data, kind))
    assert told.pid is not None
    return told.pid


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (WorkerReady, "worker-1 has not answered for {}. Its agent is suspended, by SIGSTOP or a debugger."),
        (ProcessStarted, "worker-1 is suspended, by SIGSTOP or a debugger, for {}."),
    ],
    ids=["agent", "process"],
)
def test_who_is_suspended_is_told_of_until_it_goes_on(
    cluster: muster.Cluster, shown: io.StringIO, kind: type[WorkerReady] | type[ProcessStarted], text: str
) -> None:
    before, after = text.split("{}")

    def is_told() -> bool:
        lines = cluster.explain().splitlines()
        return any(line.startswith(before) and line.endswith(after) for line in lines)

    assert not is_told()
    pid = pid_of(cluster, kind)
    os.kill(pid, signal.SIGSTOP)
    eventually(is_told, "it is told")
    os.kill(pid, signal.SIGCONT)
    eventually(lambda: not is_told(), "it is told no more")
    eventually(lambda: "worker-1 goes on" in shown.getvalue(), "it is said to go on")
    assert before in shown.getvalue()
    assert "worker-0 has" not in shown.getvalue()
    assert cluster.is_running
