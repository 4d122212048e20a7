"""The contract of platforms on a real Kubernetes: as ``tests/platforms/test_contract.py``, with few pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from muster.agent.places import symbol
from muster.errors import LaunchRefused
from muster.job import Process, Resources, Status, Worker, WorkerSpec
from muster.platforms import get_platform
from muster.platforms.base import Platform

from tests.platforms.kubernetes.cluster import until
from tests.platforms.kubernetes.space import Space
from tests.support import Run, StubSession, handles_of, shell

SMALL = Resources(cpu=0.1, memory=0.2)


@pytest.fixture
def platform(space: Space, run: Run) -> Iterator[Platform]:
    platform = get_platform("kubernetes", **space.options, tunnel=False)
    yield platform
    platform.close()


def spec(run: Run, number: int = 0, process: Process | None = None, **changes: Any) -> WorkerSpec:
    changes = {"scratch": Path(symbol("scratch")), "cwd": symbol("scratch"), "resources": SMALL, **changes}
    return run.spec(f"worker-{number}", process=process, **changes)


def polled(platform: Platform, handles: Sequence[str], *statuses: Status) -> list[Worker]:
    """The workers with these handles, once each has one of these statuses."""

    def poll() -> list[Worker] | None:
        found = platform.poll(handles)
        return found if all(worker.status in statuses for worker in found) else None

    found: list[Worker] = until(poll, f"all are {statuses}")
    return found


def ended(platform: Platform, handles: Sequence[str]) -> list[Worker]:
    return polled(platform, handles, *[status for status in Status if status.is_final])


def test_workers_end_with_their_processes(platform: Platform, run: Run) -> None:
    commands = ["echo out; echo err >&2; printf $GREETING", "exit 3", "kill -9 $$"]
    specs = [spec(run, number, shell(command), env={"GREETING": "hi"}) for number, command in enumerate(commands)]
    specs.append(spec(run, 3, Process(("/no/such/program",))))
    handles = platform.submit(specs, run.id)
    assert len(set(handles)) == 4
    assert [worker.name for worker in platform.poll(handles)] == [f"worker-{number}" for number in range(4)]
    assert [worker.id for worker in platform.poll(handles[::-1])] == handles[::-1]
    succeeded, failed, killed, missing = ended(platform, handles)
    assert (succeeded.status, succeeded.exit_code, succeeded.reason) == (Status.SUCCEEDED, 0, None)
    assert (failed.status, failed.exit_code) == (Status.FAILED, 3)
    assert (killed.status, killed.signal) == (Status.FAILED, 9)
    assert "/no/such/program" in str(missing.reason)
    assert all(worker.finished_at and worker.created_at for worker in (succeeded, failed, killed, missing))
    assert list(platform.logs(handles[0])) == ["out", "err", "hi"]
    assert handles_of(platform.list()) == handles


def test_other_objects_find_take_over_and_stop_workers(platform: Platform, run: Run, space: Space) -> None:
    specs = [spec(run, number, shell("sleep 600")) for number in range(2)]
    handles = platform.submit(specs, run.id)
    assert platform.submit(specs, run.id) == handles
    running = polled(platform, handles, Status.RUNNING)
    assert all(worker.address and worker.running_at and worker.placed_at for worker in running)
    other = get_platform("kubernetes")
    assert [(worker.id, worker.name, worker.address) for worker in other.poll(handles)] == [
        (worker.id, worker.name, worker.address) for worker in running
    ]
    assert other.poll(["stranger"])[0].status is Status.FAILED
    other.stop(handles[:1])
    other.stop(handles[:1])
    assert ended(platform, handles[:1])[0].status is Status.STOPPED
    assert platform.poll(handles[1:])[0].status is Status.RUNNING
    assert handles_of(other.reattach(handles[1:])) == handles[1:]
    other.close()
    assert ended(platform, handles)[1].status is Status.STOPPED
    (again,) = platform.submit([replace(specs[0], generation=1)], f"{run.id}.1")
    assert again not in handles
    polled(platform, [again], Status.RUNNING)
    platform.close()
    assert platform.poll([again])[0].status is Status.STOPPED
    assert space.is_empty()
    platform.close()


def test_workers_say_hello(platform: Platform, run: Run, stub_session: StubSession) -> None:
    stub_session.listen_for(platform)
    handles = platform.submit([spec(run, session=stub_session.address, ports=2)], run.id)
    hello = stub_session.wait_for("hello", timeout=60)
    (worker,) = polled(platform, handles, Status.RUNNING)
    assert hello["host"] == worker.address
    assert len(set(hello["ports"])) == 2


def test_all_or_nothing(platform: Platform, run: Run, space: Space) -> None:
    """A name that is taken by somebody else's pod refuses the whole submission, which can be made again."""
    specs = [spec(run, number, shell("sleep 600")) for number in range(2)]
    path = f"/api/v1/namespaces/{space.name}/pods"
    name = platform.submit([specs[1]], "before")[0].partition("/")[2]
    with pytest.raises(LaunchRefused, match="worker-1 was refused: there is something of that name already"):
        platform.submit(specs, run.id)
    assert [pod["metadata"]["name"] for pod in space.cluster.pods(space.name)] == [name]
    space.cluster.client.delete(f"{path}/{name}", gracePeriodSeconds="0")
    assert len(platform.submit(specs, run.id)) == 2
